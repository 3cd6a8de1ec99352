"""How rough a simulated cluster is: the odds of each thing that can happen next, drawn once per seed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

from upriver.coordinator.group import MembershipConfig
from upriver.ids import WorkerId
from upriver.protocol.strategies import Strategy

OUTGROWN_EPOCHS = 4  # after which a checkpoint is dropped, where few are taken
PLACES_MAX = 8  # places whose pace is drawn; others go on from the first

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "crash": {"crash": 0.04, "crash_moving": 0.1},
    "hang": {"takeover": 0.05, "notice": 0.3},
    "cut": {"cut": 0.1},
    "driver": {"driver": 0.05},
    "delay": {"pace": (0.5, 6.0) * (PLACES_MAX // 2), "hear": 1.0, "carry": 0.2, "dial": 0.5},
    "duplicate": {"repeat": 0.3},
    "echo": {"echo": 0.5},
    "nonsense": {"nonsense": 0.02},
    "tear": {"torn": 0.2},
    "disk": {"spoil": 0.3},
}
"""By kind: a process dies; is replaced while it runs; a channel breaks; the driver dies; some are slow; the network
says something twice; says again what a process has reported long ago; a process reports what cannot be; a read gives
other rows than there are; the lake does not take what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWeights:
    """Weights, relative to each other; ``torn`` is a probability.

    pace: how fast each place takes its messages and reads; read: how fast it reads, beside that. hear: how fast the
    coordinator takes reports. notice: that it hears of a loss. start: that a process comes to an empty place. takeover:
    that one comes to a full place. repeat: that the network says an ``OpenEpoch`` again. torn: that a read loses or
    doubles rows. sizes: rows of an epoch, to be drawn from. crash: that a process dies; crash_moving: one that has
    peers, while a rescale is on. give_up: that a client stops waiting for a lookup. replan: that a view is declared or
    dropped; with 0, all possible views are there. rescale, abort: that a user requests one, of these strategies. move:
    how fast a process gives keys away, so many at a time. dial, carry: how fast a channel between workers comes about,
    and how fast it is. cut: that one breaks. sever, mend: that a link breaks and stays so; that all are whole again.
    free_slots: how likely there is a free slot on another host for a worker whose links are broken.
    driver: that the driver dies, and another one comes. checkpoint: that one is requested. copy, store: how fast a
    process copies its state for it, and the lake takes that. spoil: how likely the lake does not take the last of it.
    standbys, warmups: how many copies of each slice the coordinator wants,
    and how many may warm up at a time. feed: how fast a process copies its state for its followers. lease: how soon
    that of a lost process has run out. overdue: that a leaver is not waited for. record: how fast the lake takes
    control records. compact: that epochs become a segment. outgrown: after how many epochs a checkpoint is dropped.
    echo: how fast the coordinator hears again what a process has said before. nonsense: that it hears what cannot be.
    call, call_returns: that a share calls a function of a user's, and waits for it; that the function returns.
    """

    publish: float
    lookup: float
    scan: float
    pace: tuple[float, ...]
    read: float
    hear: float
    crash: float
    crash_moving: float
    notice: float
    start: float
    takeover: float
    repeat: float
    torn: float
    sizes: tuple[int, ...]
    give_up: float
    replan: float
    rescale: float
    abort: float
    strategies: tuple[Strategy, ...]
    move: float
    keys_max: int
    dial: float
    carry: float
    cut: float = 0.0
    sever: float = 0.0
    mend: float = 1.0
    free_slots: float = 0.0
    driver: float = 0.0
    checkpoint: float = 0.0
    copy: float = 1.0
    store: float = 1.0
    spoil: float = 0.0
    standbys: int = 0
    warmups: int = 2
    feed: float = 1.0
    lease: float = 1.0
    overdue: float = 0.0
    record: float = 4.0
    compact: float = 0.0
    outgrown: int | None = None
    echo: float = 0.0
    nonsense: float = 0.0
    call: float = 0.0
    call_returns: float = 1.0

    @property
    def membership(self) -> MembershipConfig:
        return MembershipConfig(
            num_standby_replicas=self.standbys, max_warmup_replicas=self.warmups, scale_down_timeout_ms=1
        )

    def with_epochs_that_pile_up(self, rng: Random) -> Self:
        """The same, where epochs come faster than some places get through them, while keys move and are asked for."""
        return replace(
            self,
            publish=3.0,
            lookup=8.0,
            rescale=2.0,
            sizes=(8, 20),
            pace=(0.2, 6.0) * (PLACES_MAX // 2),
            move=rng.choice((0.3, 2.0)),
            carry=4.0,
            dial=4.0,
            hear=6.0,
            read=1.0,
            scan=0.0,
        )

    def with_standbys(self, rng: Random) -> Self:
        """The same, where workers follow each other."""
        return replace(
            self,
            standbys=rng.choice((0, 1, 1, 2)),
            warmups=rng.choice((1, 2, 8, 64)),
            feed=rng.choice((0.1, 1.0, 6.0)),
            lease=rng.choice((0.2, 1.0, 6.0)),
            overdue=rng.choice((0.0, 0.0, 0.05)),
        )

    def with_faults(self, kinds: Collection[str]) -> Self:
        """The same, with faults of these kinds and of no others."""
        fair = self.fair()
        calm = {name: getattr(fair, name) for settings in FAULTS.values() for name in settings}
        calm |= {"pace": (2.0,) * PLACES_MAX, "notice": 2.0, "hear": 6.0, "carry": 4.0, "dial": 4.0}
        for kind in kinds:
            calm |= FAULTS[kind]
        return replace(self, checkpoint=max(self.checkpoint, 0.2), **calm)

    def with_checkpoints(self, rng: Random) -> Self:
        """The same, where checkpoints are taken."""
        checkpoint = rng.choice((0.1, 0.5, 2.0))
        return replace(
            self,
            checkpoint=checkpoint,
            outgrown=OUTGROWN_EPOCHS if checkpoint < 0.5 else None,
            copy=rng.choice((0.05, 0.5, 3.0)),
            store=rng.choice((0.2, 1.0, 4.0)),
            spoil=rng.choice((0.0, 0.0, 0.2)),
        )

    def with_compaction(self, rng: Random) -> Self:
        """The same, where epochs become segments."""
        return replace(
            self,
            compact=rng.choice((0.5, 3.0)),
            publish=min(self.publish, 0.7),
            sizes=(0, 1, 3),
            pace=(4.0,) * PLACES_MAX,
            read=1.0,
            hear=6.0,
        )

    @classmethod
    def drawn(cls, rng: Random, workers: Sequence[WorkerId]) -> Self:
        """Each seed leaves some things out and overdoes others, so that all of them meet in some seed."""
        crowd = len(workers) / 3  # more workers have more to do between two things that concern them all
        rescale = rng.choice((0.0, 0.2, 1.0, 3.0))
        return cls(
            publish=crowd * rng.choice((0.2, 0.7, 2.0)),
            lookup=crowd * rng.choice((0.3, 1.0, 3.0)),
            scan=crowd * rng.choice((0.0, 0.3, 1.5)),
            pace=tuple(rng.choice((0.5, 2.0, 6.0)) for _ in range(PLACES_MAX)),
            read=rng.choice((0.1, 1.0, 1.0)),
            hear=rng.choice((1.0, 3.0, 6.0)),
            crash=rng.choice((0.0, 0.0, 0.0, 0.01, 0.05, 0.2)),
            crash_moving=rng.choice((0.0, 0.0, 0.0, 0.1)),
            notice=rng.choice((0.3, 2.0)),
            start=rng.choice((1.0, 5.0)),
            takeover=rng.choice((0.0, 0.0, 0.05)),
            repeat=rng.choice((0.0, 0.3)),
            torn=rng.choice((0.0, 0.0, 0.1)),
            sizes=rng.choice(((0, 1), (0, 1, 3, 8), (0, 1, 5, 40), (20, 60))),
            give_up=rng.choice((0.0, 0.2)),
            replan=rng.choice((0.0, 0.0, 0.0, 0.1, 0.5)),
            rescale=rescale,
            abort=rng.choice((0.0, 0.0, 0.0, 0.1)),
            strategies=rng.choice((tuple(Strategy), (Strategy.ICADD,), tuple(Strategy))),
            move=rng.choice((0.05, 0.3, 2.0)),
            keys_max=rng.choice((1, 2, 5)),
            dial=rng.choice((0.5, 4.0)),
            carry=rng.choice((0.2, 1.0, 4.0)),
        )

    def pace_of(self, worker: WorkerId) -> float:
        return self.pace[worker % PLACES_MAX]

    def fair(self) -> Self:
        """No more accidents, and no new wishes; but what flows goes on, though less."""
        return replace(
            self,
            publish=min(self.publish, 0.2),
            lookup=min(self.lookup, 0.5),
            scan=min(self.scan, 0.03),
            crash=0,
            crash_moving=0,
            notice=1,
            takeover=0,
            repeat=0,
            torn=0,
            give_up=0,
            replan=0,
            rescale=0,
            abort=0,
            cut=0,
            sever=0,
            mend=1 if self.mend else 0,
            driver=0,
            overdue=0,
            compact=0,
            echo=0,
            nonsense=0,
            call=0,
            checkpoint=min(self.checkpoint, 0.1),
            spoil=0,
        )

    def calmed(self) -> Self:
        """Nothing new, and no more accidents: what is under way goes on to its end."""
        return replace(
            self.fair(),
            publish=0,
            lookup=0,
            scan=0,
            pace=(1.0,) * PLACES_MAX,
            read=1,
            hear=1,
            start=1,
            move=1,
            dial=1,
            carry=1,
            checkpoint=0,
            copy=1,
            store=1,
            feed=1,
            lease=1,
            call_returns=1,
        )
