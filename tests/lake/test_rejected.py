"""Rows that were set aside: each is read once, whichever worker has met it, and however often.

Rows that were set aside while the lake takes no more: reports wait for them, in order, and nothing is lost.
"""

import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines_kit import TABLE as SEEN
from machines_kit import VNODES

from upriver.engine.bad_rows import SetAside
from upriver.errors import CorruptFile, LakeError
from upriver.ids import Epoch, FlowId
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.rejected import OWED_MAX, WRITE_AGAIN_S_MIN, Rejected, RejectedWriter, rejected_schema
from upriver.plan.plan import TableSpec
from upriver.protocol.messages import FromWorker, OfShare, StartedAnew
from upriver.protocol.worker_events import SetRowsAside
from upriver.state.runs import checksum_of
from upriver.state.schemas import SchemaChange

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("x", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
    ]
)
TABLE = TableSpec("orders", SCHEMA, ("k",))
FAR = 9_000_000_000_000_000_000  # microseconds; Python's own calendar ends long before
ROW = st.tuples(
    st.integers(0, 3),
    st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5]),
    st.none() | st.sampled_from([Decimal("1.00"), Decimal("-0.01")]),
    st.none() | st.sampled_from([0, -FAR, FAR]),
    st.none() | st.sampled_from([[], [("a", [1, None])], [("a", None)]]),
)
Row = tuple[Any, ...]


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    moments = pa.array(columns[3], pa.int64()).cast(SCHEMA.field("at").type)
    arrays = [pa.array(c, f.type) if f.name != "at" else moments for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def add(lake: Lake, rows: list[Row], epoch: int = 1, view: str = "totals") -> None:
    Rejected(lake, TABLE).add(Epoch(epoch), view, batch(rows), [f"bad {row[0]}" for row in rows])


def read(lake: Lake) -> Counter[Row]:
    """(epoch, view, error, row) of all rows, and how often each is there."""
    found: Counter[Row] = Counter()
    for rows in Rejected(lake, TABLE).read():
        assert rows.schema.equals(rejected_schema(TABLE))
        row = rows.column("row")
        fields = [row.field(place) for place in range(len(SCHEMA))]
        fields[3] = fields[3].cast(pa.int64())
        values = zip(*(field.to_pylist() for field in fields), strict=True)
        told = [rows.column(name).to_pylist() for name in ("epoch", "view", "error")]
        found.update((*what, repr(whole)) for *what, whole in zip(*told, values, strict=True))
    return found


def counted(rows: list[Row], epoch: int = 1, view: str = "totals") -> Counter[Row]:
    return Counter((epoch, view, f"bad {row[0]}", repr(row)) for row in rows)


@given(
    rows=st.lists(ROW, max_size=12), attempts=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=4)
)
def test_each_row_is_read_once_whichever_workers_have_met_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], attempts: list[list[int]]
) -> None:
    """attempts: at each time that the epoch was applied, the worker that each key's rows came to."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    for worker_of in attempts:
        for worker in range(3):
            add(lake, [row for row in rows if worker_of[row[0]] == worker])
    assert read(lake) == (counted(rows) if attempts else Counter())


@given(parts=st.lists(st.lists(ROW, max_size=6), max_size=4))
def test_of_a_key_whose_rows_were_parted_no_row_is_lost(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Row]]
) -> None:
    """Equal rows are not told apart; as many are read as have come at one time."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    for part in parts:
        add(lake, part)
    expected: Counter[Row] = Counter()
    for part in parts:
        expected |= counted(part)
    assert read(lake) == expected


def test_what_is_added_again_takes_no_room(tmp_path: Path) -> None:
    lake, rows = Lake(str(tmp_path)), [(1, math.nan, None, FAR, None), (1, math.nan, None, FAR, None)]
    for _ in range(3):
        add(lake, rows)
    add(lake, [])
    (name,) = lake.files.names("rejected/orders")
    assert name.startswith("000000000001-")
    assert read(lake) == counted(rows)


def test_epochs_and_views_are_told_apart(tmp_path: Path) -> None:
    lake, rows = Lake(str(tmp_path)), [(1, None, None, None, None)]
    for epoch, view in ((1, "totals"), (2, "totals"), (1, "places")):
        add(lake, rows, epoch, view)
    assert read(lake) == counted(rows) + counted(rows, 2) + counted(rows, view="places")
    assert list(Rejected(lake, TableSpec("others", SCHEMA, ("k",))).read()) == []


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    schema = pa.schema([("epoch", pa.int64()), ("identity", pa.string()), ("row", pa.int64())])
    table = TableSpec("odd", schema, ("row",))
    rejected = Rejected(Lake(str(tmp_path)), table)
    rows = pa.RecordBatch.from_pydict({"epoch": [7], "identity": ["a"], "row": [8]}, schema=schema)
    rejected.add(Epoch(1), "v", rows, ["bad"])
    (found,) = rejected.read()
    assert found.to_pylist() == [{"epoch": 1, "view": "v", "error": "bad", "row": rows.to_pylist()[0]}]


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:99] + bytes([c[99] ^ 1]) + c[100:], lambda _: b""])
def test_damage_is_named(tmp_path: Path, damage: Any) -> None:
    lake = Lake(str(tmp_path))
    add(lake, [(1, None, None, None, None)])
    path = next((tmp_path / "rejected/orders").iterdir())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptFile, match=f"{path}: its checksum is not that of its content"):
        read(lake)


def test_foreign_files_are_named(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.files.create("rejected/orders/notes.txt", b"")
    with pytest.raises(CorruptFile, match=r"rejected/orders/notes\.txt: not a file of this lake"):
        read(lake)
    lake.files.remove("rejected/orders/notes.txt")
    lake.files.create(f"rejected/orders/000000000001-{checksum_of(b'text')}.arrow", b"text")
    with pytest.raises(CorruptFile, match=r"000000000001-\w+\.arrow: not an Arrow file"):
        read(lake)


def test_another_tables_file_is_named(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    add(lake, [(1, None, None, None, None)])
    for key in (("k", pa.string()), ("other", pa.int64())):
        other = TableSpec("orders", pa.schema([key]), (key[0],))
        with pytest.raises(CorruptFile, match="its rows are not those of table 'orders'"):
            list(Rejected(lake, other).read())


def test_rows_that_were_set_aside_with_other_columns_are_read_once(tmp_path: Path) -> None:
    """The epoch is applied again after a start with a wider column, one more, and one less."""
    lake, key = Lake(str(tmp_path)), pa.field("k", pa.int64())
    before = TableSpec("orders", pa.schema([("gone", pa.string()), key, ("x", pa.float32())]), ("k",))
    after = TableSpec("orders", pa.schema([("note", pa.string()), ("x", pa.float64()), key]), ("k",))
    rows = [{"gone": "a", "k": 1, "x": 0.1}, {"gone": "b", "k": 1, "x": 0.1}, {"gone": None, "k": 2, "x": None}]
    old = pa.RecordBatch.from_pylist(rows, before.schema)
    Rejected(lake, before).add(Epoch(1), "totals", old, ["bad"] * 3)
    new = SchemaChange.between(before.schema, after.schema).of(old)
    for _ in range(2):
        (found, *others) = Rejected(lake, after).read()
        assert found.column("row").to_pylist() == new.to_pylist()
        assert sum(map(len, others)) == 0
        assert found.schema.equals(rejected_schema(after))
        Rejected(lake, after).add(Epoch(1), "totals", new, ["bad"] * 3)
    Rejected(lake, after).add(Epoch(2), "totals", new.slice(2), ["bad"])
    assert sum(map(len, Rejected(lake, after).read())) == 4


@given(
    epochs=st.lists(st.lists(ROW, max_size=4), min_size=3, max_size=3),
    set_aside=st.sets(st.integers(1, 3)),
    of_parts=st.booleans(),
    more=st.lists(ROW, max_size=2),
)
def test_rows_that_were_set_aside_for_an_epoch_are_not_read_again_for_its_segment(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[list[Row]],
    set_aside: set[int],
    of_parts: bool,
    more: list[Row],
) -> None:
    """set_aside: the epochs that workers have applied apart; later ones applied segments. of_parts: first one of the
    first two epochs, then one of all. more: rows of the epoch after the segment."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    for epoch in set_aside:
        add(lake, epochs[epoch - 1], epoch)
    if of_parts:
        add_segment(lake, [row for rows in epochs[:2] for row in rows], 2)
    for _ in range(2):
        add_segment(lake, [row for rows in epochs for row in rows], 3)
    add(lake, more, 4)
    found, expected = read(lake), sum((counted(rows) for rows in epochs), Counter[Row]())
    assert without_epoch(found) == without_epoch(expected + counted(more))
    for epoch in set_aside:
        assert not counted(epochs[epoch - 1], epoch) - found
    assert not counted(more, 4) - found


def test_of_rows_that_a_segment_has_more_often_the_others_are_read(tmp_path: Path) -> None:
    lake, row = Lake(str(tmp_path)), (1, math.nan, None, None, None)
    add(lake, [row, row], 2)
    add_segment(lake, [row] * 5, 3)
    assert read(lake) == counted([row] * 2, 2) + counted([row] * 3, 3)
    add(lake, [row], 4)
    add_segment(lake, [row] * 4, 3, view="places")
    assert read(lake) == sum(
        (counted([row] * 2, 2), counted([row] * 3, 3), counted([row], 4), counted([row] * 4, 3, "places")), Counter()
    )


def add_segment(lake: Lake, rows: list[Row], last: int, view: str = "totals") -> None:
    """Of the epochs from the first to ``last``."""
    errors = [f"bad {row[0]}" for row in rows]
    Rejected(lake, TABLE).add(Epoch(last), view, batch(rows), errors, after=Epoch(0))


def without_epoch(rows: Counter[Row]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for (_, *rest), count in rows.items():
        found[tuple(rest)] += count
    return found


class Place:
    """A writer on a lake that can be told to take no more, and a clock."""

    def __init__(self, root: Path) -> None:
        self.lake = OwnedLake(str(root), LakeRecord(VNODES, (SEEN,), {SEEN.name: (SEEN.key,)}), {})
        self._obstacle = root / "rejected"
        self.said: list[FromWorker] = []
        self.now = 0.0
        self.writer = RejectedWriter(self.lake, self.said.append, lambda: self.now)
        self.writer.assign([SEEN])

    def take_no_more(self) -> None:
        """A file is where the directory of rejected rows is to be."""
        self._obstacle.write_text("")

    def take_again(self) -> None:
        self._obstacle.unlink()

    def rejected(self) -> list[int]:
        return [epoch for rows in Rejected(self.lake, SEEN).read() for epoch in rows.column("epoch").to_pylist()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "lake")
    yield place
    place.lake.release()


def aside(epoch: int) -> SetRowsAside:
    columns = [pa.nulls(1, field.type) for field in SEEN.schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=SEEN.schema)
    return SetRowsAside(epoch=Epoch(epoch), aside=SetAside(table=SEEN.name, view="v", rows=rows, errors=("bad",)))


def report(number: int) -> FromWorker:
    return OfShare(flow=FlowId(1), message=StartedAnew(generation=number))


def test_a_report_follows_the_rows_that_it_depends_on(place: Place) -> None:
    place.writer.set_aside(aside(1))
    place.writer.report(report(1))
    assert (place.rejected(), place.said) == ([1], [report(1)])
    assert place.writer.held_up is None


def test_reports_wait_until_the_lake_takes_the_rows_and_keep_their_order(place: Place) -> None:
    place.take_no_more()
    for number in (1, 2):
        place.writer.set_aside(aside(number))
        place.writer.report(report(number))
    assert place.said == []
    assert "rejected" in str(place.writer.held_up)
    assert place.writer.due_in_s == WRITE_AGAIN_S_MIN
    place.now += WRITE_AGAIN_S_MIN
    place.writer.try_again()
    assert place.writer.due_in_s == pytest.approx(2 * WRITE_AGAIN_S_MIN)
    place.take_again()
    place.writer.try_again()
    assert place.writer.held_up is None
    assert place.said == [report(1), report(2)]
    assert place.rejected() == [1, 2]
    assert place.writer.due_in_s == float("inf")


def test_only_so_much_waits(place: Place) -> None:
    place.take_no_more()
    place.writer.set_aside(aside(1))
    for number in range(1, OWED_MAX):
        place.writer.report(report(number))
    with pytest.raises(LakeError, match="rejected"):
        place.writer.report(report(0))
