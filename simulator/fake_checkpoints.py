"""The checkpoints in the lake of a simulated cluster, and what is on its way there."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse

from upriver.ids import Epoch, VnodeId
from upriver.plan.flows import flows_of
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import PublishCheckpoint
from upriver.protocol.worker_events import SealState, WriteState
from upriver.state.checkpoint import Checkpoint, CheckpointPlace, FoundCheckpoints, StateChunk, StateFile, newest_of


@dataclass(slots=True)
class Writing:
    """What one process writes. queue: in order. written: chunks that are in no file yet, per checkpoint and region."""

    queue: deque[WriteState | SealState] = field(default_factory=deque)
    written: dict[int, dict[str, list[StateChunk]]] = field(default_factory=dict)

    def forget(self, checkpoint: int) -> None:
        """The checkpoint was given up."""
        self.queue = deque(action for action in self.queue if action.checkpoint != checkpoint)
        self.written.pop(checkpoint, None)


class FlowCheckpoints:
    """What was published of one flow, and the files that there are."""

    def __init__(self, vnodes: int) -> None:
        self.published: dict[Epoch, Checkpoint] = {}
        self._vnodes = vnodes
        self._files: dict[str, list[StateChunk]] = {}
        self._chains: list[tuple[Epoch, ...]] = []
        """The last two that were of use."""

    def store(self, writing: Writing, author: str) -> tuple[StateFile, ...] | None:
        """Take in what a process has written next; its files, if that was all of a checkpoint."""
        action = writing.queue.popleft()
        regions = writing.written.setdefault(action.checkpoint, {})
        if isinstance(action, WriteState):
            regions.setdefault(action.region, []).append(action.chunk)
            return None
        del writing.written[action.checkpoint]
        return tuple(
            self._file(f"{action.checkpoint} {author} {region}", region, regions[region]) for region in regions
        )

    def _file(self, name: str, region: str, chunks: list[StateChunk]) -> StateFile:
        self._files[name] = chunks
        keys = sum(len(chunk.keys) for chunk in chunks)
        return StateFile(name=name, region=region, keys=keys, nbytes=0, spans=(), checksums=())

    def publish(self, wish: PublishCheckpoint, regions: Iterable[str]) -> None:
        """Let one exist. regions: whose state it has."""
        made = Checkpoint(
            epoch=wish.epoch,
            base=wish.base,
            regions=dict.fromkeys(regions, ""),
            files=wish.files,
            failed=wish.failed,
        )
        self.published[wish.epoch] = made

    def sweep(self, chain: tuple[Epoch, ...], waiting: Iterable[PublishCheckpoint]) -> None:
        """Remove what neither this chain nor the one before it has. waiting: to be published."""
        self._chains = [*self._chains[-1:], chain]
        kept = {epoch for of_one in self._chains for epoch in of_one}
        self.published = {epoch: made for epoch, made in self.published.items() if epoch in kept}
        names = {file.name for made in self.published.values() for file in made.files}
        names |= {file.name for wish in waiting for file in wish.files}
        self._files = {name: chunks for name, chunks in self._files.items() if name in names or self._is_new(name)}

    def begin_again(self, is_of_no_use: Callable[[Epoch], bool]) -> list[Checkpoint]:
        """Another driver has come: what it finds, newest first. What was to be published is not. is_of_no_use: whether
        no worker can go on from that epoch."""
        found = self.chain(is_of_no_use)
        self._chains.clear()
        self.sweep(tuple(checkpoint.epoch for checkpoint in found), ())
        return found

    def forget(self) -> None:
        """None is of use any more."""
        self._chains.clear()
        self.published.clear()
        self._files.clear()

    def _is_new(self, name: str) -> bool:
        """Whether a checkpoint that is not published yet may have it."""
        return bool(self.published) and int(name.partition(" ")[0]) > self._newest_number()

    def _newest_number(self) -> int:
        names = [file.name for made in self.published.values() for file in made.files]
        return max((int(name.partition(" ")[0]) for name in names), default=0)

    def chain(self, is_of_no_use: Callable[[Epoch], bool]) -> list[Checkpoint]:
        """What a new driver finds, newest first."""
        epoch: Epoch | None = max(filterfalse(is_of_no_use, self.published), default=None)
        found: list[Checkpoint] = []
        while epoch is not None:
            found.append(self.published[epoch])
            epoch = found[-1].base
        return found

    def has(self, chain: Iterable[Epoch]) -> bool:
        """Whether these are there."""
        return self.published.keys() >= set(chain)

    def read(self, chain: Sequence[Epoch], region: str, vnodes: Iterable[VnodeId]) -> Iterator[StateChunk]:
        """What the chain has of a region's vnodes."""
        return newest_of((self._chunks(epoch, region) for epoch in chain), vnodes, self._vnodes)

    def read_all(
        self, chain: Sequence[Epoch], vnodes: Mapping[str, Sequence[VnodeId]]
    ) -> Iterator[tuple[str, StateChunk]]:
        """The same of several regions."""
        for region, mine in vnodes.items():
            yield from ((region, chunk) for chunk in self.read(chain, region, mine))

    def _chunks(self, epoch: Epoch, region: str) -> Iterator[StateChunk]:
        for file in self.published[epoch].files:
            if file.region == region:
                yield from self._files[file.name]


class FakeCheckpoints:
    """The checkpoints of all flows. waiting: to be published."""

    def __init__(self, vnodes: int) -> None:
        self.waiting: deque[PublishCheckpoint] = deque()
        self._vnodes = vnodes
        self._of: dict[tuple[str, ...], FlowCheckpoints] = {}

    def of(self, plans: Sequence[DataflowPlan]) -> FlowCheckpoints:
        """Those of one flow. plans: its views', whether some are dropped or not."""
        return self._of.setdefault(tuple(plan.name for plan in plans), FlowCheckpoints(self._vnodes))

    def sweep(self, plans: Sequence[DataflowPlan], chain: tuple[Epoch, ...]) -> None:
        """Remove what neither this chain of a flow nor the one before it has."""
        self.of(plans).sweep(chain, self.waiting)

    def begin_again(
        self, plans: Iterable[DataflowPlan], is_of_no_use: Callable[[Epoch], bool]
    ) -> dict[str, FoundCheckpoints]:
        """Another driver has come: what it finds of these views. What was to be published is not. is_of_no_use: whether
        no worker can go on from that epoch."""
        self.waiting.clear()
        return {
            flow[0].name: FoundCheckpoints(
                CheckpointPlace("+".join(names), names), tuple(self.of(flow).begin_again(is_of_no_use))
            )
            for flow in flows_of(plans)
            if any(plan.full_because is not None for plan in flow) and (names := tuple(plan.name for plan in flow))
        }
