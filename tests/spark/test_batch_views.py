"""Whole views as Spark computes them from the lake: as of any epoch, whatever the user's session is up to."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from latest_kit import current
from pyspark.errors import PythonException
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.net.server import Listen
from upriver.plan.plan import LatestOp, TableSpec, lake_channel
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.leaves import Leaves
from upriver.spark.tables import table_as_of
from upriver.spark.view_frames import ViewFrames
from upriver.sql.views import declare_view
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema

pytestmark = pytest.mark.spark

VNODES = 8
Row = tuple[Any, ...]

ORDERS = TableSpec(
    "orders", pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.int64())]), ("id",)
)
STAFF = TableSpec(
    "staff",
    pa.schema(
        [
            ("k", pa.int8()),
            ("part", pa.string()),
            ("v", pa.float64()),
            ("w", pa.string()),
            ("x", pa.float64()),
            ("op", pa.string()),
        ]
    ),
    key=("k",),
    order_by=("v", "w"),
    primary_key=("k", "part"),
    deletes="\"op\" = 'D'",
)


class History:
    """A lake that is written epoch by epoch, each of two runs, without Spark."""

    def __init__(self, root: Path, *tables: TableSpec) -> None:
        self.root = str(root)
        self._lake = OwnedLake(self.root, LakeRecord(VNODES, tables, {t.name: (t.key,) for t in tables}), {})
        self._epochs = 0

    def publish(self, table: TableSpec, rows: Sequence[Row]) -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(table.schema)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, table.schema, strict=True)]
        hashes = hash64([arrays[table.schema.get_field_index(name)] for name in table.key])
        order = np.argsort(hashes, kind="stable")
        kept = pa.table([pa.array(hashes), *arrays], schema=run_schema(table.schema)).take(pa.array(order))
        cut = int(np.searchsorted(hashes[order], np.uint64(2**63)))
        self._epochs += 1
        channel = lake_channel(table.name, table.key)
        runs = [self._run(f"tables/{channel}/{self._epochs}-{part}", half) for part, half in enumerate(_cut(kept, cut))]
        self._lake.publish(
            Manifest(
                epoch=Epoch(self._epochs),
                term=self._lake.term,
                table=table.name,
                query="q",
                batch=self._epochs,
                runs={channel: tuple(runs)},
            )
        )

    def _run(self, path: str, rows: pa.Table) -> RunInfo:
        encoded = encode_run(rows)
        self._lake.files.create(path, encoded)
        return describe_run(path, encoded, rows.column(0).to_numpy(), VNODES)

    def release(self) -> None:
        self._lake.release()


def _cut(rows: pa.Table, place: int) -> list[pa.Table]:
    return [rows.slice(0, place), rows.slice(place)]


def collected(frame: Any) -> Counter[Row]:
    return Counter(map(tuple, frame.collect()))


def orders(first: int, last: int) -> list[Row]:
    return [(n, f"c{n % 3}" if n % 7 else None, n % 11) for n in range(first, last)]


@pytest.fixture
def ordered(tmp_path: Path) -> History:
    """Epochs 1 and 3 are of orders, 2 of staff."""
    history = History(tmp_path / "lake", ORDERS, STAFF)
    history.publish(ORDERS, orders(0, 40))
    history.publish(STAFF, [(1, "a", 1.0, "w", 5.0, "U"), (2, "b", 1.0, "w", 6.0, "D")])
    history.publish(ORDERS, orders(40, 60))
    history.release()
    return history


def test_all_rows_of_an_append_table_count(spark: Any, ordered: History) -> None:
    for epoch, last in ((0, 0), (1, 40), (2, 40), (3, 60)):
        frame = table_as_of(spark, ordered.root, ORDERS, Epoch(epoch))
        assert frame.schema == from_arrow_schema(ORDERS.schema)
        assert collected(frame) == Counter(orders(0, last)), epoch


def test_columns_of_any_name_and_type(spark: Any, tmp_path: Path) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 0, 5)
    row: dict[str, tuple[pa.DataType, Any]] = {
        "epoch": (pa.int64(), 7),
        "a.b`c": (pa.string(), "text"),
        "c0": (pa.decimal128(20, 3), Decimal("1.250")),
        "Place": (pa.timestamp("us", "Asia/Tokyo"), moment.replace(tzinfo=UTC)),
        "deleted": (pa.timestamp("us"), moment),
        "rank": (pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}, None]),
        "day": (pa.date32(), date(1969, 12, 31)),
        "map": (pa.map_(pa.string(), pa.binary()), [("k", b"v")]),
    }
    schema = pa.schema([(name, type) for name, (type, _) in row.items()])
    table = TableSpec("odd", schema, ("epoch",), ("Place",), primary_key=("epoch", "a.b`c"))
    history = History(tmp_path / "lake", table)
    history.publish(table, [tuple(value for _, value in row.values())])
    history.release()
    for kind in (table, TableSpec("odd", schema, ("epoch",))):
        frame = table_as_of(spark, history.root, kind, Epoch(1))
        assert frame.schema == from_arrow_schema(schema)
        (found,) = frame.selectExpr("* EXCEPT (Place)", "unix_micros(Place) AS micros").collect()
        plain = [bytes(v) if isinstance(v, bytearray) else v for v in found]
        micros = round(moment.replace(tzinfo=UTC).timestamp() * 1e6)
        assert plain == [7, "text", Decimal("1.250"), moment, [(1,), None], date(1969, 12, 31), {"k": b"v"}, micros]


def test_the_last_version_of_each_row_counts(spark: Any, tmp_path: Path) -> None:
    """As the operator that views have before them decides; versions come in any order, and many tie."""
    rng = Random(5)
    values: list[list[Any]] = [
        [None, 1, 2, 3],
        [None, "p", "q"],
        [None, 0.0, -0.0, 1.5, -2.0, float("nan")],
        [None, "", "a", "\u00e9", "z"],
    ]
    history = History(tmp_path / "lake", STAFF)
    versions: list[Row] = []
    op = LatestOp(STAFF.primary_key, STAFF.order_by, STAFF.deletes)
    wanted = []
    for _ in range(5):
        came = [(*map(rng.choice, values), rng.random(), rng.choice(["U", "U", "D", None])) for _ in range(12)]
        history.publish(STAFF, came)
        versions += came
        wanted.append(current(op, STAFF.schema, versions))
    history.release()
    assert sum(wanted[-1].values()) < 12  # some rows are deleted
    for epoch in (1, 3, 5):
        frame = table_as_of(spark, history.root, STAFF, Epoch(epoch))
        assert Counter(tuple(_plainly(row)) for row in frame.collect()) == wanted[epoch - 1], epoch


def _plainly(row: Row) -> list[Any]:
    return ["NaN" if value != value else value for value in row]


VIEWS = {
    "totals": "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer;",
    "Rich": "WITH t AS (SELECT * FROM totals) SELECT upper(customer) AS name, total FROM t WHERE total > 30 -- enough",
    "paid": "SELECT name, total, x FROM rich JOIN staff ON staff.k = length(rich.name) - 1",
}


def frames_of(spark: Any, tables: dict[str, TableSpec], sql: str) -> ViewFrames:
    """Of an app with a view, ``view``, in the time zone that the session has now. sql: may name those of ``VIEWS``."""
    leaves: Leaves
    analyser = SparkAnalyser(spark, tables, leaf=lambda name, schema: leaves.own(name, schema))
    leaves = Leaves(spark, lambda: analyser.session, Listen(), None, "token", {}, 2)
    frames = ViewFrames(spark, leaves, analyser, tables)
    frames.keep("view", analyser.frame_of("view", sql, VIEWS if "staff" in tables else {}))
    return frames


def as_of(frames: ViewFrames, history: History, epoch: int = 3) -> Any:
    """Of the only view, as of an epoch."""
    return frames.as_of("view", history.root, Epoch(epoch), None, {}, None)


def test_views_over_views_as_of_an_epoch(spark: Any, ordered: History) -> None:
    tables = {"orders": ORDERS, "staff": STAFF}
    spark.createDataFrame(orders(0, 60), "id long, customer string, amount long").createOrReplaceTempView("everything")
    for epoch, last in ((1, 40), (3, 60)):
        rich = f"""SELECT upper(customer) AS name, sum(amount) AS total FROM everything WHERE id < {last}
                   GROUP BY customer HAVING total > 30"""
        for view, expected in (("Rich", rich), ("paid", f"SELECT *, 5D AS x FROM ({rich}) WHERE name IS NOT NULL")):
            sql = VIEWS[view]
            frame = as_of(frames_of(spark, tables, sql), ordered, epoch)
            plan = declare_view(view, sql, "name", tables, VIEWS, SparkAnalyser(spark, tables))
            assert [(f.name, f.dataType) for f in frame.schema] == [
                (f.name, f.dataType) for f in from_arrow_schema(plan.schema)
            ]
            if view == "Rich" or epoch == 3:
                assert collected(frame) == collected(spark.sql(expected)) != Counter()
            else:
                assert frame.isEmpty()
    spark.catalog.dropTempView("everything")


def test_the_users_session_neither_sees_nor_changes_anything(spark: Any, ordered: History) -> None:
    spark.createDataFrame([(1,)], "id long").createOrReplaceTempView("orders")
    sql = (
        "SELECT id, upper(customer) AS name, cast(timestamp_seconds(amount) AS string) AS at FROM orders WHERE id = 12"
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frames = frames_of(spark, {"orders": ORDERS}, sql)
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    try:
        before = spark.catalog.listTables()
        frame = as_of(frames, ordered)
        assert spark.catalog.listTables() == before
        frame.createOrReplaceTempView("found")
        found = spark.sql("SELECT found.*, orders.id AS own FROM found CROSS JOIN orders").collect()
        assert list(map(tuple, found)) == [(12, "C0", "1970-01-01 09:00:01", 1)]
        assert frame.sparkSession is spark
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for view in ("orders", "found"):
            spark.catalog.dropTempView(view)


def test_a_run_that_is_gone_is_named(spark: Any, ordered: History, tmp_path: Path) -> None:
    (tmp_path / "lake/tables/orders/id/3-1").unlink()
    frame = as_of(frames_of(spark, {"orders": ORDERS}, "SELECT id FROM orders"), ordered)
    with pytest.raises(PythonException, match=r"tables/orders/id/3-1: the file is gone"):
        frame.collect()
