"""What tests of ingest share: a driver that can be started again on one root, a source, and what is read back."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from upriver.ids import Epoch
from upriver.lake.collection import remove_litter
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.source_records import source_of
from upriver.plan.plan import TableSpec
from upriver.runtime.source_supervisor import Ingest, SourceSupervisor
from upriver.spark.ingest import STOP_S_MAX, STOPPING, EpochLog, Layout, StreamIngest
from upriver.spark.loads import LoadIngest, OnChange
from upriver.spark.session import SessionSetting
from upriver.spark.sources import source_digest
from upriver.state.runs import run_schema

TABLE = TableSpec("events", pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",), ("n",))
INDEXES = (("k",), ("n",))
VNODES = 8
Events = list[tuple[str | None, int]]
Listener = Callable[[Manifest], None]


class Unheard:
    """Is told of sources, and does nothing."""

    def source_stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None: ...

    def read_through(self, table: str, at: float, epoch: Epoch) -> None: ...


class Driver:
    """What of a driver owns a root and gives epochs. Starts as the app does: by reading all manifests."""

    def __init__(self, root: Path, on_published: Listener = lambda _: None) -> None:
        self.lake = OwnedLake(str(root), LakeRecord(VNODES, (TABLE,), {"events": INDEXES}), {})
        self.layout = Layout(root=str(root), table=TABLE, vnodes=VNODES, groups=2)
        history = IngestHistory()
        manifests = [self.lake.manifest(Epoch(e)) for e in range(1, self.lake.last_epoch() + 1)]
        for manifest in manifests:
            history.add(manifest)
        self.lake.sweep()
        self.swept = remove_litter(self.lake, self.lake.run_paths()).runs
        self.log = EpochLog(self.lake, history, on_published)
        self.supervisors: list[SourceSupervisor] = []

    def stream(self, rows: Any, *, replaces_others: bool = False, **trigger: Any) -> SourceSupervisor:
        return self._started(self.streaming(rows, replaces_others=replaces_others, **trigger))

    def streaming(
        self, rows: Any, *, replaces_others: bool = False, stopping: SessionSetting = STOPPING, **trigger: Any
    ) -> StreamIngest:
        """Not begun yet."""
        last = self.log.query_of(TABLE.name)
        source = source_of(self.lake, TABLE.name, source_digest(rows), last, replaces_others=replaces_others)
        return StreamIngest(rows, self.layout, self.log, trigger, source, stopping)

    def load(self, rows: Any, epoch_rows: int = 100, on_change: OnChange = OnChange.REFUSE) -> SourceSupervisor:
        return self._started(self.loading(rows, epoch_rows, on_change))

    def loading(
        self,
        rows: Any,
        epoch_rows: int = 100,
        on_change: OnChange = OnChange.REFUSE,
        stop_s_max: float = STOP_S_MAX,
    ) -> LoadIngest:
        """Not begun yet."""
        return LoadIngest(rows, self.layout, self.log, self.lake, on_change, epoch_rows, stop_s_max)

    def _started(self, ingest: Ingest) -> SourceSupervisor:
        supervisor = SourceSupervisor([TABLE.name])
        self.supervisors.append(supervisor)
        supervisor.start({TABLE.name: ingest}, Unheard())
        return supervisor

    def stop(self) -> None:
        for supervisor in self.supervisors:
            supervisor.stop()
        self.lake.release()


Drive = Callable[..., Driver]


@contextmanager
def driving(root: Path) -> Iterator[Drive]:
    """Starts a driver on one root, in place of the one before."""
    drivers: list[Driver] = []

    def drive(on_published: Listener = lambda _: None) -> Driver:
        for driver in drivers:
            driver.stop()
        drivers.append(Driver(root, on_published))
        return drivers[-1]

    yield drive
    for driver in drivers:
        driver.stop()


class Source:
    """A directory that files are put into; a stream reads each once."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._spark = spark
        self._files = 0

    def put(self, events: Iterable[tuple[str | None, int]]) -> None:
        unseen = self.hide(events)
        unseen.rename(self.directory / f"{unseen.name.removeprefix('.')}.parquet")

    def hide(self, events: Iterable[tuple[str | None, int]]) -> Path:
        """Write a file that the stream does not see until it has another name."""
        keys, numbers = zip(*events, strict=True)
        unseen = self.directory / f".{self._files}"
        pa.parquet.write_table(pa.table({"k": pa.array(keys, pa.string()), "n": pa.array(numbers, pa.int64())}), unseen)
        self._files += 1
        return unseen

    def stream(self, **options: Any) -> Any:
        return self._spark.readStream.schema("k string, n long").options(**options).parquet(str(self.directory))


def events(first: int, last: int) -> Events:
    return [(None if n % 7 == 0 else f"k{n % 5}", n) for n in range(first, last)]


def epochs(lake: Lake) -> list[Manifest]:
    return [lake.manifest(Epoch(epoch)) for epoch in range(1, lake.last_epoch() + 1)]


def rows_of(lake: Lake, manifest: Manifest) -> Events:
    """The epoch's rows, which must be the same in every index."""
    in_index = []
    for runs in manifest.runs.values():
        tables = [lake.open_run(run, run_schema(TABLE.schema)).all_rows() for run in runs]
        in_index.append(sorted(((r["k"], r["n"]) for t in tables for r in t.to_pylist()), key=lambda event: event[1]))
    assert len(in_index) == len(INDEXES)
    assert all(rows == in_index[0] for rows in in_index)
    return in_index[0]


def assert_exactly_once(lake: Lake, expected: Events) -> None:
    found = [event for manifest in epochs(lake) for event in rows_of(lake, manifest)]
    assert sorted(found, key=lambda event: event[1]) == expected
    batches = [(manifest.query, manifest.batch) for manifest in epochs(lake)]
    assert len(set(batches)) == len(batches)


def in_time() -> float:
    return 300.0


def no_time() -> float:
    return 0.0
