"""Workers that feed and follow each other, for tests that say what happens in which order. The machines are real.

The view lists the epochs of each key's rows, so what is kept or followed shows which rows were lost or doubled.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from copying_kit import NAMES
from machines_kit import FLOW, HALVES, KEYS, SEEN, Seen, assign, hashed, meet, opened, over, vnode_map
from workers_kit import SteppedWorkers

from upriver.engine.batch import Batch
from upriver.engine.region import ALL_ROWS
from upriver.hashing import Hashes
from upriver.ids import Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.messages import Assign, BeginStage, CaughtUp, FeedEnded, Follow, Resume, Unfollow
from upriver.protocol.peers import Fed
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    PeerLost,
    ShareAction,
    TimeToFeed,
    TimeToSettle,
)
from upriver.worker.replication import ReplicaSlices
from upriver.worker.share import FlowShare

Kept = dict[str, list[int]]
"""By key, the epochs of its rows."""
COLLECTED = pa.schema([("hash64", pa.uint64()), *SEEN])


class CollectedState(Seen):
    """Names the hash64 of each row that it gives out, as real regions do: a follower may want some of them only."""

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return tuple(with_hashes(part) for part in super().collect(keys))


class FadingReplica(CollectedState):
    """A key is gone with its second row, until it has a third one."""

    def apply(self, port: int, batch: Batch) -> None:
        super().apply(port, batch)
        self.epochs = {key: epochs for key, epochs in self.epochs.items() if len(epochs) < 2}


def seen(kept: Kept) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "seen": epochs} for key, epochs in kept.items()], schema=SEEN)


def with_hashes(part: pa.RecordBatch) -> pa.RecordBatch:
    names = pa.array(hashed(part.column("k").to_pylist()), pa.uint64())
    return pa.RecordBatch.from_arrays([names, *part.columns], schema=COLLECTED)


class WorkerGroup(SteppedWorkers):
    """Workers 0, 1 and so on, that have met. Nothing happens by itself: rows are read, keys copied, and what workers
    say to each other carried, when a test says so."""

    def __init__(
        self,
        owners: Sequence[int] = HALVES,
        workers: int = 2,
        rules: Rules = ALL_RULES,
        build: Callable[[DataflowPlan, RegionPlan], Any] = lambda *_: CollectedState(),
        assigned: Callable[..., Assign] = assign,
        **fields: Any,
    ) -> None:
        """owners: of the vnodes. fields: of ``Assign``, besides those that ``assigned`` knows."""
        self.places = tuple(range(workers))
        """Of the living."""
        super().__init__([FlowShare(FLOW, build, rules) for _ in range(workers)])
        self.generation = 0
        self._after = vnode_map(owners), Epoch(0)
        for worker in self.places:
            self.step(worker, replace(assigned(tuple(owners), worker), reversible=True, **fields))
        self.meet()

    def meet(self, *workers: int) -> None:
        """These, or all, meet."""
        for worker in workers or self.places:
            self.step(worker, meet(*(workers or self.places)))

    # Epochs

    def open(self, *keys: str) -> int:
        """One more epoch, with a row of each of these keys, that no worker has read."""
        self.epochs.append(keys)
        for worker in self.places:
            self.step(worker, opened(len(self.epochs), mixed=True))
        return len(self.epochs)

    def over(self, epoch: int) -> None:
        """The epoch is over everywhere."""
        for worker in self.places:
            self.step(worker, over(epoch))

    def stage(self, stage: int) -> None:
        for worker in self.places:
            self.step(worker, BeginStage(epoch=Epoch(len(self.epochs)), stage=stage))
            self.step(worker, TimeToSettle(rows_max=ALL_ROWS))

    def epoch(self, *keys: str) -> int:
        """One more epoch, from its publication to its end everywhere."""
        epoch = self.open(*keys)
        for worker in self.places:
            self.end(worker)
        if self.phase(0).regions.is_staged:
            for stage in (0, 1):
                self.carry_all()
                self.stage(stage)
        self.carry_all()
        self.over(epoch)
        return epoch

    # Feeds

    def follow(self, follower: int, owner: int, *vnodes: int, feed: int = 1) -> None:
        """The follower is told to; no other worker knows of it yet."""
        slices = tuple(map(VnodeId, vnodes))
        self.step(follower, Follow(feed=FeedId(feed), owner=WorkerId(owner), vnodes=slices))

    def unfollow(self, follower: int, *vnodes: int, feed: int = 1) -> None:
        self.step(follower, Unfollow(feed=FeedId(feed), vnodes=tuple(map(VnodeId, vnodes))))

    def feed(self, owner: int, keys_max: int = 100) -> None:
        """There is time for the owner to copy keys."""
        assert self.machines[owner].can_feed
        self.step(owner, TimeToFeed(keys_max=keys_max))

    def has_followers(self, follower: int, owner: int, *vnodes: int, feed: int = 1) -> None:
        """The follower has everything as of the end of the last epoch."""
        self.follow(follower, owner, *vnodes, feed=feed)
        self.carry_all()
        while self.machines[owner].can_feed:
            self.feed(owner)
            self.carry_all()

    def lose(self, worker: int, peer: int) -> None:
        """The worker's channel to a peer is gone, with all that was on its way."""
        self.lines[worker, peer].clear()
        self.step(worker, PeerLost(why="silence", peer=WorkerId(peer), incarnation=Incarnation(peer + 1)))

    # Slices that change hands

    def die(self, worker: int) -> None:
        """Nothing of it is left, but for what is on its way from it."""
        self.places = tuple(place for place in self.places if place != worker)

    def decide(self, after: Sequence[int], at: int) -> None:
        """All are to go on by this map as of the end of epoch ``at``: no worker has heard of it."""
        self.generation += 1
        self._after = vnode_map(after, self.generation), Epoch(at)
        del self.epochs[at:]

    def resume(self, worker: int) -> list[ShareAction]:
        """A worker hears what was decided."""
        return self.step(worker, self.order_for(worker))

    def order_for(self, worker: int) -> Resume:
        after, at = self._after
        return Resume(
            maps=dict.fromkeys(self.phase(worker).regions.shards, after),
            reads=after.vnodes_of_worker(WorkerId(worker)),
            at=at,
            serve_from=at,
            generation=self.generation,
        )

    def all_resume(self, after: Sequence[int], at: int) -> None:
        """So do all, and they meet."""
        self.decide(after, at)
        for worker in self.places:
            self.resume(worker)
        self.meet()

    # What there is to be seen

    def kept(self, worker: int, region: str = "seen") -> Kept:
        found: Any = self.phase(worker).regions.shards[region].region
        return dict(found.epochs)

    def followed(self, worker: int, feed: int = 1, region: str = "seen") -> Kept:
        found: Any = self.shadow(worker, feed).regions[region]
        return dict(found.epochs)

    def shadow(self, worker: int, feed: int = 1) -> ReplicaSlices:
        return self.phase(worker).replication.followed[FeedId(feed)]

    def caught_up(self, worker: int) -> list[tuple[int, int]]:
        """What it has told of that since the last look: feeds and epochs."""
        found = [message for of, message in self.said if of == worker and isinstance(message, CaughtUp)]
        self.said = [(of, message) for of, message in self.said if not (of == worker and isinstance(message, CaughtUp))]
        return [(message.feed, message.epoch) for message in found]

    def ended(self, worker: int) -> list[int]:
        """Feeds that it has told to be over."""
        return [message.feed for of, message in self.said if of == worker and isinstance(message, FeedEnded)]

    def fed(self, owner: int, follower: int) -> list[tuple[int, str, Kept]]:
        """What state is on its way: the epoch, the region, and the epochs of each key; none for one that is gone."""
        loads = [envelope.content for envelope in self.lines[owner, follower] if isinstance(envelope.content, Fed)]
        return [(load.epoch, load.region, named(load)) for load in loads]


def named(load: Fed) -> Kept:
    rows = {row["k"]: row["seen"] for part in load.state for row in part.to_pylist()}
    keys = [NAMES[key] for key in load.keys.tolist()]
    assert rows.keys() <= set(keys)
    return {key: rows.get(key, []) for key in keys}


# A worker that is lost ------------------------------------------------------------------------------------------------

A, A2, B, C = KEYS[0][0], KEYS[0][1], KEYS[1][0], KEYS[4][0]
"""Keys of worker 0 (two of one slice, one of the next), and of worker 1."""
THIRDS = (0, 0, 0, 2, 1, 1, 1, 1)
"""Worker 2 owns vnode 3; it is to stand by."""


def rescued(group: WorkerGroup) -> Kept:
    """All that the living keep, of all slices."""
    found: Kept = {}
    for worker in group.places:
        kept = group.kept(worker)
        assert found.keys().isdisjoint(kept)
        found |= kept
    return found


def right(group: WorkerGroup) -> Kept:
    """What the view is after all epochs of the lake."""
    keys = sorted({key for epoch in group.epochs for key in epoch})
    return {key: [number for number, epoch in enumerate(group.epochs, 1) if key in epoch] for key in keys}


def standing_by(rules: Rules = ALL_RULES, **how: Any) -> WorkerGroup:
    """Three workers; the last one stands by for worker 0. All are at epoch 1."""
    group = WorkerGroup(owners=THIRDS, workers=3, rules=rules, **how)
    group.epoch(A, A2, B, C)
    group.has_followers(2, 0, 0, 1, 2)
    return group


def torn(*keys: str, rules: Rules = ALL_RULES, **how: Any) -> WorkerGroup:
    """Worker 0 is lost in the next epoch, when the others are through it."""
    group = standing_by(rules, **how)
    group.open(*keys)
    group.end(0)
    group.carry_all()
    for other in (1, 2):
        group.end(other)
    group.die(0)
    return group


TAKEN_OVER = tuple(2 if owner == 0 else owner for owner in THIRDS)
