"""A worker's distributors: rows, lookups and state go into a region's distributor, and its outcomes are carried out.

Also the keys that this worker gives and takes in a rescale; rule worker.bounded_loads_out.
"""

from dataclasses import dataclass

from upriver.errors import ProtocolError
from upriver.ids import Epoch, VnodeId, WorkerId
from upriver.migration.events import Event, Leave, Received, ReportGone, ReportSettled, RowsArrived, Send
from upriver.migration.messages import Acquire
from upriver.protocol.messages import ContinueEpochs, Meet, Moved, PauseEpochs, PeerLeft, Settled, Still
from upriver.protocol.peers import (
    Applied,
    AskedHere,
    Copied,
    ForRegion,
    Gave,
    Hot,
    Installed,
    LeftBehind,
    LeftOut,
    Outcome,
    OwnersChanged,
    PeerLookup,
    PutOff,
    Took,
)
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import LookupAsked, SetRowsAside, TimeToAnswer, TimeToMove
from upriver.worker.checkpoints import CheckpointParts
from upriver.worker.lookups import Lookups
from upriver.worker.migrators import left_to_give, slices_given
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions

LOADS_OUT_MAX = 1
"""worker.bounded_loads_out: loads of state that one worker has on their way at a time. A key is out of service for no
longer than this many loads take."""


@dataclass(frozen=True, slots=True)
class ToldProgress:
    """What the worker last told the coordinator of a region's migration: the distributor's phase, the given slices."""

    phase: str
    vnodes_left: int
    gone: frozenset[VnodeId]


NOTHING_TOLD = ToldProgress("", -1, frozenset())


class Distributors:
    """Gives the distributor of each region its events, and carries out what comes of them."""

    def __init__(
        self,
        regions: Regions,
        progress: EpochProgress,
        peers: KnownPeers,
        lookups: Lookups,
        checkpoints: CheckpointParts,
        output: StepOutput,
        rules: Rules,
    ) -> None:
        self.taken = 0
        """Keys whose state was installed since the last meeting."""
        self._given = 0
        """Keys whose state was sent since the last meeting."""
        self._loads_out = 0
        """Loads of state that were sent and are not known to be installed."""
        self._awaits_loads = False
        """Of the loads that were on their way when this worker began the epoch, some may still be."""
        self._pause: int | None = None
        """Keys stay where they are: the name of the pause."""
        self._told: dict[str, ToldProgress] = {}
        """What this worker last told the coordinator of each region's migration."""
        self._owners_changed = False
        """Some waiting lookups need keys that will be present at another worker."""
        self._regions = regions
        self._progress = progress
        self._peers = peers
        self._lookups = lookups
        self._checkpoints = checkpoints
        self._output = output
        self._rules = rules

    # Lookups

    def lookup_asked(self, event: LookupAsked) -> None:
        """A client's lookup that could not be answered at once."""
        question = self._lookups.register(event)
        if question is not None:
            self.ask(event.view, question)

    def time_to_answer(self, event: TimeToAnswer) -> None:
        """Read more of a long answer."""
        if self._lookups.read_on(event.rows_max):
            self.ask_again()  # another one may begin

    def follow_owners(self) -> None:
        """Route waiting lookups anew, if keys that they need will be present at another worker."""
        if self._owners_changed:
            self._owners_changed = False
            self.ask_again()

    # Events

    def receive(self, sender: WorkerId, content: ForRegion) -> None:
        """A peer's distributor has sent a message."""
        if content.region not in self._regions.shards:
            raise ProtocolError(f"worker {sender} speaks of region {content.region!r}, which is not kept here")
        if isinstance(content.message, Acquire):
            self._progress.receive_keys(content.begun)
            if content.begun > self._progress.reflected:
                self._regions.shards[content.region].keys_came(content.begun, content.message.keys)
        self.route(content.region, Received(sender=sender, message=content.message))
        if isinstance(content.message, Acquire):
            self._output.send(sender, Installed(region=content.region))
        self.report_progress(content.region)

    def load_installed(self) -> None:
        """A peer has installed a load of state."""
        self._loads_out -= 1
        self._awaits_loads &= self._loads_out > 0

    @property
    def awaits_loads(self) -> bool:
        """clock.loads_before_the_end: keys whose state is as of an earlier clock are on their way, and no worker that
        has them knows of this epoch."""
        return self._awaits_loads and self._rules.clock_loads_before_the_end

    def begin_meeting(self, meet: Meet) -> None:
        """Before each rescale: use its strategy from now on. Nothing moves at this time."""
        self._given = self.taken = 0
        for shard in self._regions.shards.values():
            shard.begin(meet.strategy, self._regions.me, meet.keys_max)
        self._told.clear()

    def route(self, region: str, event: Event) -> None:
        """Give a region's distributor an event, and handle all outcomes."""
        self._carry_out(region, self._regions.shards[region].step(event))

    def _carry_out(self, region: str, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Applied(epoch, rows):
                    self._progress.count(epoch, region, rows)
                case PutOff(epoch=of, rows=rows):
                    self._progress.count_put_off(self._progress.begun_anywhere if of is None else of, region, rows)
                case LeftOut(epoch, aside):
                    if self._rules.worker_set_aside_at_once:
                        self._output.add(SetRowsAside(epoch=epoch, aside=aside, after=self._progress.after(epoch)))
                case LeftBehind(to=peer, keys=keys, shown=shown):
                    self._output.send(peer, Hot(region=region, keys=keys, shown=shown))
                case OwnersChanged():
                    self._owners_changed = True
                case AskedHere(question):
                    self._lookups.answer_here(region, question)
                case Gave(keys):
                    self._given += keys
                case Took(keys):
                    self.taken += keys
                case Copied(chunk):
                    self._checkpoints.write_chunk(region, chunk)
                case Send(to=peer, message=message):
                    self._loads_out += isinstance(message, Acquire)
                    self._output.send(peer, ForRegion(region=region, message=message, begun=self._progress.begun))
                case ReportSettled(version=version, kept=kept):
                    self.report_progress(region)
                    self._output.report(Settled(region=region, version=version, kept=kept))
                case ReportGone(peer=peer):
                    self._peers.part_from(peer)
                    self._output.report(PeerLeft(region=region, peer=peer))
                case Leave():
                    self._peers.leave()  # the staying workers tell the coordinator

    def advance(self, epoch: Epoch, clock: int) -> None:
        """This worker begins an epoch: the clock of every region gets to its instant."""
        if not self._regions.is_clocked:
            return
        self._awaits_loads = self._loads_out > 0
        for region, shard in self._regions.shards.items():
            self._carry_out(region, shard.advance(epoch, clock))

    def ask(self, region: str, question: PeerLookup) -> None:
        """Send a lookup to where its keys are. A lookup of no keys is answered here."""
        if len(question):
            self.route(region, RowsArrived(rows=question))
        else:
            self._lookups.answer_here(region, question)

    def ask_again(self) -> None:
        """Answer the lookups that have nothing to wait for any more, or route them."""
        for waiting in self._lookups.answer_together(self._lookups.take_ready()):
            self.ask(waiting.view, waiting.question)

    def report_progress(self, region: str) -> None:
        """Tell the coordinator the progress of a region's migration, if it has changed by a slice or a phase."""
        shard = self._regions.shards[region]
        keys, vnodes = left_to_give(shard.migrator.phase)
        name = type(shard.migrator.phase).__name__
        before = self._told.get(region, NOTHING_TOLD)
        if (before.phase, before.vnodes_left) == (name, vnodes):
            return
        gone = slices_given(shard.migrator.phase, self._regions.me)
        self._told[region] = ToldProgress(name, vnodes, gone)
        here = max(1, len(self._progress.reads))
        travelled = shard.travelled
        self._output.report(
            Moved(
                region=region,
                phase=name,
                keys=travelled.keys,
                bytes=travelled.bytes,
                keys_left=keys + vnodes * shard.region.stats()["keys"] // here,
                vnodes_left=vnodes,
                gone=tuple(sorted(gone - before.gone)),
                forwarded=travelled.forwarded,
                bounced=travelled.bounced,
            )
        )

    @property
    def next_to_move(self) -> str | None:
        """The region that ``TimeToMove`` would move keys of: the first that has keys to give; ``None`` if there is
        none."""
        if self._pause is not None or self._loads_out >= LOADS_OUT_MAX or self.awaits_loads:
            return None
        return next((name for name, shard in self._regions.shards.items() if shard.can_give), None)

    def time_to_move(self, event: TimeToMove) -> None:
        region = self.next_to_move
        if region is not None:
            self._carry_out(region, self._regions.shards[region].give(event.keys_max))
            self.report_progress(region)

    def pause_moves(self, event: PauseEpochs) -> None:
        self._pause = event.pause
        self.report_still()

    def continue_moves(self, _event: ContinueEpochs) -> None:
        self._pause = None

    def report_still(self) -> None:
        """Report how many keys were given and taken: the coordinator sees from it whether state is still on its way."""
        if self._pause is not None:
            self._output.report(Still(pause=self._pause, given=self._given, taken=self.taken))
