"""What a worker reads of the lake for several flows: they take turns, and none waits for another that is held up."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from machines_kit import ALL_MINE, VNODES, assign, vnode_map
from relation_kit import dataflow, group, scan
from store_kit import HangingStore

from upriver.ids import Channel, Epoch, FlowId, VnodeId
from upriver.lake.files import Files
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.protocol.messages import Assign, FromWorker, HeldUp
from upriver.protocol.worker_events import EpochRead, ReadEpoch, RowsRead, SealState, ShareHears, StateWritten
from upriver.runtime.pace import ROWS_MIN
from upriver.runtime.worker_lake import WorkerLake
from upriver.state.checkpoint import CheckpointPlace
from upriver.state.runs import describe_run, encode_run, run_schema

RIDES, FARES = FlowId(1), FlowId(2)
TABLES = {
    flow: TableSpec(name, pa.schema([("k", pa.string()), ("e", pa.int64())]), ("k",))
    for flow, name in ((RIDES, "rides"), (FARES, "fares"))
}
CHANNELS = {flow: Channel(f"{table.name}/k") for flow, table in TABLES.items()}
EPOCH = Epoch(1)
WOKEN_S_MAX = 30.0
"""Seconds for a thread that no read holds up."""
ROWS = 2 * ROWS_MIN + 1
"""Of a table: three pieces."""


def planned(flow: FlowId) -> DataflowPlan:
    relation = group(scan(TABLES[flow]), "k", seen=("collect_list", "e", pa.list_(pa.int64())))
    return dataflow(TABLES[flow].name, relation, ("k",), TABLES[flow])


def assigned(flow: FlowId) -> Assign:
    plan = planned(flow)
    place = CheckpointPlace(f"place-{flow}", (plan.name,))
    return assign(plans=(plan,), maps={plan.name: vnode_map(ALL_MINE)}, checkpoints=place)


class Place:
    """A lake with an epoch of each table, and what a worker reads of it."""

    def __init__(self, root: str, files: Files | None = None) -> None:
        record = LakeRecord(VNODES, tuple(TABLES.values()), {table.name: (table.key,) for table in TABLES.values()})
        self.lake = OwnedLake(root, record, {}, files)
        for batch, flow in enumerate(TABLES):
            self._publish(flow, Epoch(batch + 1))
        self.heard: list[ShareHears] = []
        self.said: list[FromWorker] = []
        self.woken = threading.Event()
        self.worker = WorkerLake(self.lake, self.heard.append, self._fail, self.woken.set, self.said.append)
        for flow in TABLES:
            self.worker.assign(flow, assigned(flow))

    def _publish(self, flow: FlowId, epoch: Epoch) -> None:
        table, path = TABLES[flow], f"tables/{TABLES[flow].name}/k/0"
        hashes = np.arange(ROWS, dtype=np.uint64) << np.uint64(48)
        columns = [hashes, list(map(str, range(ROWS))), list(range(ROWS))]
        encoded = encode_run(pa.table(columns, schema=run_schema(table.schema)))
        self.lake.files.create(path, encoded)
        runs = {CHANNELS[flow]: (describe_run(path, encoded, hashes, VNODES),)}
        self.lake.publish(Manifest(epoch=epoch, term=self.lake.term, table=table.name, query="q", batch=0, runs=runs))

    def _fail(self, error: BaseException) -> None:
        raise AssertionError("a thread has failed") from error

    def begin(self, flow: FlowId) -> None:
        """The flow's share wants the epoch that has its table's rows."""
        vnodes = tuple(map(VnodeId, range(VNODES)))
        wish = ReadEpoch(epoch=Epoch(flow), channels=(CHANNELS[flow],), vnodes=vnodes)
        self.worker.carry_out(flow, wish)

    def read(self) -> list[tuple[FlowId, str]]:
        """All that can be read now, in order: whose, and what."""
        return [(piece.flow, type(piece.event).__name__) for piece in self._taken()]

    def _taken(self) -> list[ShareHears]:
        taken: list[ShareHears] = []
        while self.worker.can_read:
            self.worker.read(taken.append)
        return taken

    def read_through(self, flow: FlowId) -> int:
        """Read until the flow has its epoch, as a loop that waits for threads; returns how many rows it had before.
        Only this flow has anything to read."""
        rows = 0
        while True:
            self.woken.clear()
            for piece in self._taken():
                assert piece.flow == flow
                match piece.event:
                    case RowsRead(batch=batch):
                        rows += len(batch)
                    case EpochRead():
                        return rows
            assert self.worker.due_in_s > 0
            assert self.woken.wait(WOKEN_S_MAX)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(str(tmp_path / "lake"))
    yield place
    place.worker.close()
    place.lake.release()


WHOLE = [RowsRead.__name__] * 3 + [EpochRead.__name__]


def test_flows_take_turns_a_piece_each(place: Place) -> None:
    for flow in TABLES:
        place.begin(flow)
    assert place.read() == [(flow, piece) for piece in WHOLE for flow in (RIDES, FARES)]


def test_a_flow_that_is_held_up_holds_no_other_up(place: Place, tmp_path: Path) -> None:
    (tmp_path / "lake/tables/rides/k/0").unlink()
    for flow in TABLES:
        place.begin(flow)
    assert place.read() == [(FARES, piece) for piece in WHOLE]
    place.worker.tell_held_up()
    (report,) = place.said
    assert isinstance(report, HeldUp)
    assert "epoch 1: " in str(report.error)
    assert 0 < place.worker.due_in_s < 1


@pytest.mark.parametrize(
    "over", [WorkerLake.give_up_read, WorkerLake.drop, lambda worker, flow: worker.assign(flow, assigned(flow))]
)
def test_what_ends_the_read_of_one_flow_leaves_that_of_another(
    place: Place, over: Callable[[WorkerLake, FlowId], None]
) -> None:
    for flow in TABLES:
        place.begin(flow)
    over(place.worker, RIDES)
    assert place.read() == [(FARES, piece) for piece in WHOLE]


def test_what_is_written_is_told_to_the_flow_that_has_asked(place: Place) -> None:
    for flow, checkpoint in ((RIDES, 1), (FARES, 2)):
        place.worker.carry_out(flow, SealState(checkpoint=checkpoint, at=EPOCH))
        for _ in range(1000):
            if len(place.heard) == checkpoint:
                break
            threading.Event().wait(0.01)
    assert [(heard.flow, type(heard.event)) for heard in place.heard] == [(RIDES, StateWritten), (FARES, StateWritten)]


@pytest.fixture
def store() -> Iterator[HangingStore]:
    store = HangingStore()
    yield store
    store.goes_on.set()


@pytest.fixture
def remote(store: HangingStore) -> Iterator[Place]:
    """A lake behind a network."""
    place = Place("memory://lake", store)
    yield place
    place.worker.close()


def test_a_flow_goes_on_while_the_read_of_another_hangs(remote: Place, store: HangingStore) -> None:
    store.slow = "tables/rides/"
    remote.begin(RIDES)
    assert store.hangs.wait(WOKEN_S_MAX)
    assert not remote.worker.can_read
    for _ in range(3):
        remote.begin(FARES)
        assert remote.read_through(FARES) == ROWS
    store.goes_on.set()
    assert remote.read_through(RIDES) == ROWS


@pytest.mark.parametrize("over", [WorkerLake.give_up_read, lambda worker, flow: worker.assign(flow, assigned(flow))])
def test_a_flow_reads_anew_while_a_read_that_it_has_given_up_hangs(
    remote: Place, store: HangingStore, over: Callable[[WorkerLake, FlowId], None]
) -> None:
    store.slow = "tables/rides/"
    remote.begin(RIDES)
    assert store.hangs.wait(WOKEN_S_MAX)
    over(remote.worker, RIDES)
    remote.begin(RIDES)
    assert remote.read_through(RIDES) == ROWS
    store.goes_on.set()
    remote.begin(FARES)
    assert remote.read_through(FARES) == ROWS
    assert not remote.worker.can_read


def test_a_flow_that_is_dropped_while_its_read_hangs_gets_nothing(remote: Place, store: HangingStore) -> None:
    store.slow = "tables/rides/"
    remote.begin(RIDES)
    assert store.hangs.wait(WOKEN_S_MAX)
    remote.worker.drop(RIDES)
    store.goes_on.set()
    remote.begin(FARES)
    assert remote.read_through(FARES) == ROWS
    assert not remote.worker.can_read
