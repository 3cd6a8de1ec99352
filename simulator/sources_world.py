"""Sources in the migration model: real listers and readers, with the cursors as the state that moves.

Partitions appear and grow at any time, workers list and read them, and rescales go on meanwhile. The checkers watch
what is sent on: of each partition every record once, in order. ``UnsplitWorld`` is a source that was not split.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.icadd_campaign import play
from simulator.icadd_coordinator import ModelRescale
from simulator.icadd_node import NodeKind, NodePart, ProtocolViolation
from simulator.icadd_rows import ModelRows, TracedRow
from simulator.icadd_scenario import Rulebook, Scenario, mended
from simulator.icadd_world import IcaddStep, IcaddWorld
from simulator.published.sources import (
    FILES,
    TOPICS,
    DirectoryLister,
    Emit,
    FileName,
    Listing,
    PartitionReader,
    PartitionsCame,
    Polled,
    RecordsRead,
    SourceRead,
    TopicLister,
    TopicPartition,
)
from upriver.ids import VnodeId, WorkerId
from upriver.migration.events import Collect, Collected, Drop, Interrogate, Interrogated, PassDown, TakeState
from upriver.migration.icadd import TOGETHER_KEYS
from upriver.migration.phases import Left, Normal
from upriver.state.vectors import key_set
from upriver.vnodes import VnodeMap, vnodes_of

Partition = FileName | TopicPartition
Reader = PartitionReader[Any]

REGION = "region 0"
WORKERS_MAX = 4
VNODES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesScenario(Scenario):
    """growth: partitions and how many records each gains, in the order in which that happens; a partition is new at
    its first. listers: workers that have one; each lists everything. records_max: of one read.
    """

    growth: tuple[tuple[Partition, int], ...]
    listers: tuple[WorkerId, ...]
    records_max: int
    reader: Callable[..., Reader] = PartitionReader

    def new_reader(self) -> Reader:
        files = isinstance(self.growth[0][0], FileName)
        return self.reader(FILES if files else TOPICS, self.records_max)


@dataclass(slots=True)
class ReaderPart(NodePart):
    """A worker with a reader for operators. reads: those out, in order."""

    reader: Reader = field(kw_only=True)
    reads: tuple[SourceRead[Any], ...] = ()

    def copy(self) -> "ReaderPart":
        other = copy.deepcopy(self)
        other.forget()
        return other


class SourcesWorld(IcaddWorld):
    """One region, whose rows name partitions. For runs by seeds: it tells no two states apart.

    sizes: records of each partition so far. grown: steps of growth so far. listed: per worker, what its lister has
    passed on. read: records of each partition that were sent on.
    """

    scenario: SourcesScenario

    def __init__(self, scenario: SourcesScenario, rulebook: Rulebook) -> None:
        self.sizes: dict[Partition, int] = {}
        self.grown = 0
        self.listers = {worker: _lister(scenario) for worker in scenario.listers}
        self.listed: dict[WorkerId, tuple[TracedRow, ...]] = dict.fromkeys(scenario.listers, ())
        self.named: dict[int, list[Partition]] = {}
        self.read: Counter[Partition] = Counter()
        super().__init__(scenario, rulebook)

    def _new_part(self, worker: WorkerId, region: str, map: VnodeMap) -> NodePart:
        machine = self.rulebook.machine(worker, map, self.scenario.together)
        return ReaderPart(machine, self.rulebook.operators, reader=self.scenario.new_reader())

    def possible(self) -> list[IcaddStep]:
        steps = super().possible()
        if self.grown < len(self.scenario.growth):
            steps.append(IcaddStep("grow"))
        for (worker, region), part in self.parts.items():
            assert isinstance(part, ReaderPart)
            if part.left:
                continue
            if self._can_list(worker, part):
                steps.append(IcaddStep("list", worker, region))
            if part.reads:
                steps.append(IcaddStep("read", worker, region))
            if any(self._has_more(partition, part.reader) for partition in part.reader.cursors):
                steps.append(IcaddStep("poll", worker, region))
        return steps

    def _can_list(self, worker: WorkerId, part: ReaderPart) -> bool:
        lister = self.listers.get(worker)
        return lister is not None and part.peers is None and len(lister.emitted) < len(self.sizes)

    def _has_more(self, partition: Partition, reader: Reader) -> bool:
        cursor = reader.cursors[partition]
        stands = cursor.reading or cursor.hash64 in reader.sealed
        return not stands and cursor.offset < self.sizes[partition]

    def input_of(self, worker: WorkerId, region: str) -> tuple[TracedRow, ...]:
        return self.listed.get(worker, ())

    def take(self, step: IcaddStep) -> None:
        """Take one of the possible steps. Raises ``ProtocolViolation``."""
        match step.kind:
            case "grow":
                partition, records = self.scenario.growth[self.grown]
                self.sizes[partition] = self.sizes.get(partition, 0) + records
                self.grown += 1
            case "list":
                self._list(step)
            case "poll":
                self._carry_out_reads(step, self._reader_part(step).reader.step(Polled()))
            case "read":
                self._read(step)
            case _:
                super().take(step)

    def _reader_part(self, step: IcaddStep) -> ReaderPart:
        part = self._own(step)
        assert isinstance(part, ReaderPart)
        return part

    def _list(self, step: IcaddStep) -> None:
        self._own(step)
        listing = _listed(self.listers[step.worker], self.sizes)
        items = self._named(listing, step.worker)
        self.listed[step.worker] += items

    def _named(self, listing: Listing[Any], worker: WorkerId) -> tuple[TracedRow, ...]:
        keys = listing.hash64.tolist()
        for partition, key in zip(listing.partitions, keys, strict=True):
            if partition not in self.named.setdefault(key, []):
                self.named[key].append(partition)
        return tuple(TracedRow(key, worker, 1) for key in keys)

    def _read(self, step: IcaddStep) -> None:
        """What was asked for comes, as much as is there now."""
        part = self._reader_part(step)
        (asked, *rest) = part.reads
        part.reads = tuple(rest)
        end = min(asked.offset + asked.records_max, max(self.sizes[asked.partition], asked.offset))
        records = tuple(range(asked.offset, end))
        came = RecordsRead(partition=asked.partition, offset=asked.offset, records=records, next_offset=end)
        done = part.reader.step(came)
        self.happened |= {"records are sent on" if done else "nothing is sent on"}
        if records and not done:
            self.happened |= {"records are thrown away"}
        self._carry_out_reads(step, done)

    def _carry_out_reads(self, step: IcaddStep, actions: tuple[SourceRead[Any] | Emit[Any], ...]) -> None:
        part = self.parts[step.worker, step.region]
        assert isinstance(part, ReaderPart)
        for action in actions:
            if isinstance(action, SourceRead):
                part.reads = (*part.reads, action)
            else:
                self._check_records(step.worker, action)

    def _check_records(self, worker: WorkerId, sent: Emit[Any]) -> None:
        """DOUBLED, ORDER: of each partition the next records, and no others."""
        already = self.read[sent.partition]
        if sent.offset != already:
            kind = NodeKind.DOUBLED if sent.offset < already else NodeKind.ORDER
            raise ProtocolViolation(
                kind, f"{worker} sent on {sent.partition} from {sent.offset}, after {already} records"
            )
        assert isinstance(sent.records, tuple)
        self.read[sent.partition] += len(sent.records)

    def _operators(self, step: IcaddStep, part: NodePart) -> None:
        assert isinstance(part, ReaderPart)
        task, part.queue = part.queue[0], part.queue[1:]
        match task:
            case PassDown(rows=ModelRows(items=items)):
                named = tuple(dict.fromkeys(partition for item in items for partition in self.named[item.key]))
                listing = Listing(named, part.reader.type.hashes(named))
                self._carry_out_reads(step, part.reader.step(PartitionsCame(listing=listing)))
            case Interrogate(vnodes=vnodes):
                part.answer = Interrogated(keys=key_set(*(part.reader.keys_of(vnode, VNODES) for vnode in vnodes)))
            case Collect(keys=keys):
                part.answer = Collected(keys=keys, state=part.reader.collect(keys))
            case TakeState(state=state):
                assert isinstance(state, tuple)
                part.reader.install(state)
                self.happened |= {"cursors move"} if any(batch.num_rows for batch in state) else set()
            case Drop(keys=keys):
                part.reader.drop(keys)

    def check_end(self) -> None:
        """LOST, MISPLACED, STUCK: nothing more can happen."""
        if self.unsettled:
            raise ProtocolViolation(NodeKind.STUCK, f"workers and regions that never settle: {sorted(self.unsettled)}")
        owners = self._map_at_end(REGION)
        for (worker, _), part in sorted(self.parts.items()):
            assert isinstance(part, ReaderPart)
            for partition, cursor in sorted(part.reader.cursors.items()):
                place = vnodes_of(np.array([cursor.hash64], np.uint64), VNODES)
                if owners.owners_of(place)[0] != worker:
                    raise ProtocolViolation(NodeKind.MISPLACED, f"the cursor of {partition} ends at {worker}")
        for partition, size in sorted(self.sizes.items()):
            if self.read[partition] != size:
                raise ProtocolViolation(
                    NodeKind.LOST, f"of {size} records of {partition} {self.read[partition]} were sent on"
                )


class UnsplitWorld(SourcesWorld):
    """Each worker's reader lists by itself, inside the region, and takes the partitions that are its own by its map.
    So no distributor sees their keys: what the appendix warns of.
    """

    def _can_list(self, worker: WorkerId, part: ReaderPart) -> bool:
        return bool(self._its_own(worker, part))

    def _its_own(self, worker: WorkerId, part: ReaderPart) -> tuple[Partition, ...]:
        phase: Any = part.machine.phase
        map = phase.map if isinstance(phase, Normal | Left) else phase.migration.rescale.before
        unknown = tuple(partition for partition in sorted(self.sizes) if partition not in part.reader.cursors)
        mine = map.owners_of(vnodes_of(part.reader.type.hashes(unknown), VNODES)) == worker
        return tuple(partition for partition, its in zip(unknown, mine.tolist(), strict=True) if its)

    def _list(self, step: IcaddStep) -> None:
        part = self._reader_part(step)
        partitions = self._its_own(step.worker, part)
        listing = Listing(partitions, part.reader.type.hashes(partitions))
        self._carry_out_reads(step, part.reader.step(PartitionsCame(listing=listing)))


def _lister(scenario: SourcesScenario) -> DirectoryLister | TopicLister:
    return DirectoryLister() if isinstance(scenario.growth[0][0], FileName) else TopicLister()


def _listed(lister: DirectoryLister | TopicLister, sizes: Mapping[Partition, int]) -> Listing[Any]:
    if isinstance(lister, DirectoryLister):
        return lister.listed(partition.name for partition in sizes if isinstance(partition, FileName))
    return lister.listed(Counter(partition.topic for partition in sizes if isinstance(partition, TopicPartition)))


def sources_campaign(
    first_seed: int,
    runs: int,
    *,
    world: type[SourcesWorld] = SourcesWorld,
    reader: Callable[..., Reader] = PartitionReader,
) -> dict[str, Any]:
    """Run the seeds from ``first_seed`` on. For JSON: runs, violations, kinds, counters (runs by what happened in
    them), records (sent on in all), and of the first seed with a violation ``seed`` and ``message``."""
    kinds: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    first: dict[str, Any] = {}
    records = 0
    for seed in range(first_seed, first_seed + runs):
        played = world(random_sources(seed, reader), mended())
        _, violation = play(seed, played)
        counters.update(played.happened)
        counters[f"case {played.scenario.name}"] += 1
        records += played.read.total()
        if violation is not None:
            kinds[str(violation.kind)] += 1
            first = first or {"seed": seed, "message": str(violation)}
    return {
        "runs": runs,
        "violations": kinds.total(),
        "kinds": dict(sorted(kinds.items())),
        "counters": dict(sorted(counters.items())),
        "records": records,
        **first,
    }


def random_sources(seed: int, reader: Callable[..., Reader] = PartitionReader) -> SourcesScenario:
    """Files or topics that appear and grow; up to 4 workers of which worker 0 always stays; one or two rescales."""
    rng = random.Random(f"sources {seed}")
    counts = [rng.randint(1, WORKERS_MAX) for _ in range(rng.randint(2, 3))]
    groups = [tuple(map(WorkerId, range(count))) for count in counts]
    requests = [ModelRescale(workers=group) for group in groups[1:]]
    if len(groups[0]) > 1 and rng.random() < 0.3:
        moves = {VnodeId(vnode): rng.choice(groups[0]) for vnode in range(VNODES)}
        requests[:1] = [ModelRescale(moves=moves)]
    partitions = _partitions(rng)
    growth = [(partition, rng.randint(1, 5)) for partition in partitions]
    growth += [(rng.choice(partitions), rng.randint(1, 5)) for _ in range(rng.randint(0, 6))]
    return SourcesScenario(
        name="files" if isinstance(partitions[0], FileName) else "topics",
        workers=groups[0],
        maps={REGION: VnodeMap.initial(VNODES, groups[0])},
        requests=tuple(requests),
        inputs={},
        prior={},
        keys_max=rng.randint(1, 3),
        together=random.Random(f"together {seed}").choice([1, TOGETHER_KEYS]),
        asked_at_once=rng.random() < 0.5,
        slow_operators=rng.random() < 0.4,
        aborts=rng.random() < 0.2,
        growth=tuple(growth),
        listers=groups[0][: rng.choice([1, len(groups[0])])],
        records_max=rng.randint(1, 3),
        reader=reader,
    )


def _partitions(rng: random.Random) -> list[Partition]:
    count = rng.randint(2, 8)
    if rng.random() < 0.5:
        return [FileName(f"{rng.randrange(1_000_000)}.csv") for _ in range(count)]
    return [TopicPartition(f"topic {seed % 2}", seed // 2) for seed in range(count)]
