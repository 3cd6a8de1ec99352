"""The changes of epochs as workers and upqueries read them: they add up to the rows that remain."""

import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.engine.batch import Batch
from upriver.engine.retention import Retention, retained_after
from upriver.hashing import hash64
from upriver.ids import BEGINNING, Epoch, VnodeId
from upriver.lake.expiry import Aging
from upriver.lake.history import KeyHistory
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec, lake_channel
from upriver.plan.retention import Retain
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan

VNODES, INTERVAL = 4, 10
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64())])
TABLES = {name: TableSpec(name, SCHEMA, key=("k",)) for name in ("events", "others")}
CHANNELS = {name: lake_channel(name, ("k",)) for name in TABLES}
RECORD = LakeRecord(VNODES, tuple(TABLES.values()), dict.fromkeys(TABLES, (("k",),)))
Row = tuple[int, int | None]
RUN = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 40)), min_size=1, max_size=6)
EPOCHS = st.lists(st.tuples(st.sampled_from(list(TABLES)), st.lists(RUN, max_size=2)), min_size=1, max_size=7)


class History:
    """A lake with these epochs; ``events`` retains its rows from the epoch ``since`` on."""

    def __init__(self, epochs: list[tuple[str, list[list[Row]]]], since: int) -> None:
        self.lake = OwnedLake(tempfile.mkdtemp(), RECORD, {})
        self.came: list[list[Row]] = [[]]
        """The rows of ``events`` by the end of each epoch."""
        self.has_cut = [False]
        self._files = 0
        retained: dict[str, Retention] = {}
        for number, (table, runs) in enumerate(epochs, 1):
            rows = [row for run in runs for row in run] if table == "events" else []
            self.came.append([*self.came[-1], *rows])
            if table == "events" and number >= since:
                if "events" not in retained:  # as Spark finds it at a start
                    newest = max((at for _, at in self.came[-2] if at is not None), default=None)
                    retained = {"events": Retention("at", newest)}
                span = TimeSpan.of(pa.array([at for _, at in rows], pa.int64()))
                retained = retained_after(retained, "events", Retain("at", INTERVAL, ""), span)
            else:
                retained = retained_after(retained, table, None, None)
            halves = by_halves([row for run in runs for row in run])
            infos = tuple(self._run(table, run, is_spanned=number >= since) for run in halves)
            self.lake.publish(
                Manifest(
                    epoch=Epoch(number),
                    term=self.lake.term,
                    table=table,
                    query="q",
                    batch=number,
                    runs={CHANNELS[table]: infos},
                    retained=retained,
                )
            )
            self.has_cut.append("events" in retained)
        self.lake.release()

    def _run(self, table: str, rows: list[Row], *, is_spanned: bool) -> RunInfo:
        columns = [pa.array([row[place] for row in rows], pa.int64()) for place in (0, 1)]
        hashes = hash64(columns[:1], len(rows))
        order = np.argsort(hashes, kind="stable")
        sorted_rows = pa.table([pa.array(hashes), *columns], schema=run_schema(SCHEMA)).take(pa.array(order))
        encoded = encode_run(sorted_rows)
        self._files += 1
        path = f"tables/{CHANNELS[table]}/{self._files}.arrow"
        self.lake.files.create(path, encoded)
        info = describe_run(path, encoded, hashes[order], VNODES)
        return replace(info, span=TimeSpan.of(columns[1])) if is_spanned else info

    def remaining(self, epoch: int) -> Counter[Row]:
        """As SQL says it."""
        rows = self.came[epoch]
        times = [at for _, at in rows if at is not None]
        if not times or not self.has_cut[epoch]:
            return Counter(rows)
        return Counter((key, at) for key, at in rows if at is None or at > max(times) - INTERVAL)


def by_halves(rows: list[Row]) -> list[list[Row]]:
    """The rows of the lower and of the upper vnodes, as tasks write them; none without rows."""
    hashes = hash64([pa.array([key for key, _ in rows], pa.int64())], len(rows))
    halves = [[row for row, low in zip(rows, hashes < 2**63, strict=True) if low == is_low] for is_low in (True, False)]
    return [half for half in halves if half]


def count(here: Counter[Row], changes: Batch) -> None:
    weights = [1] * len(changes) if changes.weight is None else changes.weight.tolist()
    rows = zip(*(column.to_pylist() for column in changes.rows.columns), strict=True)
    for row, weight in zip(rows, weights, strict=True):
        here[row] += weight
        assert here[row] >= 0


@settings(max_examples=examples(20))
@given(EPOCHS, st.integers(1, 5), st.data())
def test_what_two_workers_read_adds_up_to_the_rows_that_remain(
    epochs: list[tuple[str, list[list[Row]]]], since: int, data: st.DataObject
) -> None:
    """The shares of the workers change, and so does the process of one of them."""
    history, channel = History(epochs, since), CHANNELS["events"]
    workers = [Aging(history.lake, {channel: TABLES["events"]}) for _ in range(2)]
    here: Counter[Row] = Counter()
    for epoch in range(1, len(epochs) + 1):
        first = data.draw(st.frozensets(st.integers(0, VNODES - 1).map(VnodeId)))
        shares = [first, frozenset(map(VnodeId, range(VNODES))) - first]
        if data.draw(st.booleans()):
            workers[0] = Aging(history.lake, {channel: TABLES["events"]})
        manifest = history.lake.manifest(Epoch(epoch))
        for worker, share in zip(workers, shares, strict=True):
            for _ in range(data.draw(st.integers(1, 2))):  # a read that has failed is repeated
                found = list(worker.changes(manifest, channel, share))
            for changes, _ in found:
                assert (changes.hash64[:-1] <= changes.hash64[1:]).all()
                count(here, changes)
            assert sum(read for _, read in found) == manifest.rows_of(channel, share)
        assert +here == history.remaining(epoch)


@settings(max_examples=examples(20))
@given(EPOCHS, st.integers(1, 5), st.sets(st.integers(0, 9)), st.data())
def test_changes_of_keys_lead_from_one_epoch_to_another(
    epochs: list[tuple[str, list[list[Row]]]], since: int, keys: set[int], data: st.DataObject
) -> None:
    lake = History(epochs, since)
    hashes = np.unique(hash64([pa.array(sorted(keys), pa.int64())], len(keys)))
    history = KeyHistory(lake.lake)
    for _ in range(3):
        through = data.draw(st.integers(1, len(epochs)))
        after = data.draw(st.just(BEGINNING) | st.integers(0, through).map(Epoch))
        here = Counter({row: times for row, times in lake.remaining(after).items() if row[0] in keys})
        found = history.rows_of(CHANNELS["events"], TABLES["events"], hashes, Epoch(through), after)
        assert (found.hash64[:-1] <= found.hash64[1:]).all()
        count(here, found)
        assert +here == Counter({row: times for row, times in lake.remaining(through).items() if row[0] in keys})
