"""Views as DataFrames: real servers that hand out rows, and Spark that reads them."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader
from server_kit import TOKEN, calls_server, client_of
from standby_kit import await_that

from upriver.errors import AccessDenied, ClusterError, UnknownView, UserError, WaitTimeout, WorkerLost
from upriver.hashing import hash64
from upriver.ids import Epoch, SnapshotId
from upriver.net.remote import Remote
from upriver.net.server import GET_ROWS_MAX, Get, Server
from upriver.plan.schemas import schema_to_json
from upriver.runtime.coordinator_loop import SnapshotParts
from upriver.runtime.snapshots import SCANS_KNOWN_MAX, SharedScans, SnapshotPart
from upriver.spark.scan import ScanRequest, UpriverDataSource
from upriver.vnodes import HashRange, VnodeGroup, vnodes_of

KEEPS_READERS = hasattr(datasource, "EqualTo")
"""Since Spark 4.1, which asks a source for filters, a load has one reader. Before, each scan has its own."""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def numbers(first: int, last: int) -> pa.Table:
    keys = pa.array([f"k{n}" for n in range(first, last)], pa.string())
    return pa.table({"k": keys, "n": pa.array(range(first, last), pa.int64())})


def sorted_by(key: str, rows: pa.Table) -> pa.Table:
    """In the order in which a worker has them."""
    return rows.take(pa.array(np.argsort(hash64([rows.column(key)]), kind="stable")))


VNODES = 16


class Service:
    """The servers of an app with one view, ``planes``, whose workers hold what ``shares`` says."""

    def __init__(self, *shares: pa.Table, key: str = "k") -> None:
        self.shares = list(shares)
        self.key = key
        self.held: dict[int, list[pa.Table]] = {}
        """The snapshots taken, by id."""
        self.read: list[int] = []
        """The snapshots of which a part was read, once for each part."""
        self.ranges: list[list[HashRange]] = []
        """The ranges of hash64 that were read."""
        self.holds_snapshots = True
        self.workers: list[Server] = []
        self._scans = SharedScans(self._take)
        actions = {"source": self._source, "scan": self._scan}
        self._coordinator = calls_server(actions)

    @property
    def address(self) -> str:
        return self._coordinator.address

    def _addresses(self) -> list[str]:
        while len(self.workers) < len(self.shares):
            gets, actions = {"snapshot": self._part(len(self.workers))}, {"snapshot_read": self._was_read}
            self.workers.append(calls_server(actions, gets))
        return [server.address for server in self.workers[: len(self.shares)]]

    def _part(self, worker: int) -> Get:
        def part(asked: Mapping[str, Any], _: int) -> pa.Table:
            if asked["snapshot"] not in self.held:
                raise WaitTimeout(f"snapshot {asked['snapshot']} is no longer held; read the view again")
            ranges = [(least, highest) for least, highest in asked["ranges"]]
            self.ranges.append(ranges)
            return SnapshotPart(self.held[asked["snapshot"]][worker]).rows_in(asked["key"], ranges)

        return part

    def _was_read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        self.read.append(told["snapshot"])
        return {}

    def _source(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["name"] != "planes":
            raise UnknownView.among(asked["name"], {"planes": ()})
        schema = schema_to_json(self.shares[0].schema)
        return {"key": [self.key], "schema": schema, "vnodes": VNODES, "workers": len(self.shares), "lake": None}

    def _scan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        parts = self._scans.parts(asked["view"], asked["scan"], 10.0)
        return {"snapshot": parts.snapshot, "epoch": parts.epoch, "addresses": list(parts.addresses), "lake": None}

    def _take(self, view: str, seconds: float) -> SnapshotParts:
        snapshot = SnapshotId(len(self.held) + 1)
        if self.holds_snapshots:
            self.held[snapshot] = [sorted_by(self.key, share) for share in self.shares]
        return SnapshotParts(snapshot, Epoch(1), tuple(self._addresses()))

    def stop(self) -> None:
        for server in [self._coordinator, *self.workers]:
            server.stop()


Serve = Callable[..., Service]


@pytest.fixture
def serve() -> Iterator[Serve]:
    services: list[Service] = []

    def serve(*shares: pa.Table, key: str = "k") -> Service:
        services.append(Service(*shares, key=key))
        return services[-1]

    yield serve
    for service in services:
        service.stop()


def read(spark: Any, service: Service, partitions: int | None = None, keys: Any = None) -> Any:
    return ScanRequest.of(client_of(service.address), "planes", partitions, keys).load(spark)


def found(rows: Any) -> list[int]:
    return sorted(row["n"] for row in rows.collect())


# Scans ----------------------------------------------------------------------------------------------------------


class Counter:
    """Takes snapshots: the n-th has id n, unless it fails."""

    def __init__(self, *failing: int) -> None:
        self.taken = 0
        self._failing = failing

    def __call__(self, view: str, seconds: float) -> SnapshotParts:
        self.taken += 1
        if self.taken in self._failing:
            raise WorkerLost(f"attempt {self.taken} at {view}")
        return SnapshotParts(SnapshotId(self.taken), Epoch(0), ())


def test_all_readers_of_a_scan_get_one_snapshot() -> None:
    take = Counter()
    scans = SharedScans(take)
    start = threading.Barrier(8)

    def ask(scan: str) -> int:
        start.wait()
        return scans.parts("planes", scan, 1.0).snapshot

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, ["a", "b"] * 4))
    assert len(set(answers[::2])) == len(set(answers[1::2])) == 1
    assert take.taken == len(set(answers)) == 2
    assert scans.parts("routes", "a", 1.0).snapshot == 3


def test_a_snapshot_that_failed_is_tried_again() -> None:
    scans = SharedScans(Counter(1))
    with pytest.raises(WorkerLost, match="attempt 1 at planes"):
        scans.parts("planes", "a", 1.0)
    assert [scans.parts("planes", "a", 1.0).snapshot for _ in range(2)] == [2, 2]


def test_the_scans_that_are_remembered_are_bounded() -> None:
    take = Counter()
    scans = SharedScans(take)
    for number in range(SCANS_KNOWN_MAX + 1):
        scans.parts("planes", str(number), 1.0)
    assert scans.parts("planes", "1", 1.0).snapshot == 2
    assert scans.parts("planes", "0", 1.0).snapshot == SCANS_KNOWN_MAX + 2


# Reading --------------------------------------------------------------------------------------------------------


def by_partition(rows: Any) -> dict[int, list[int]]:
    """For each partition, the vnodes of its rows."""
    found: dict[int, list[int]] = {}
    for row in rows.selectExpr("spark_partition_id() AS part", "k").collect():
        found.setdefault(row["part"], []).append(int(vnodes_of(hash64([pa.array([row["k"]])]), VNODES)[0]))
    return found


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [None, 1, 5, VNODES])
def test_a_partition_has_the_rows_of_a_range_of_vnodes(spark: Any, serve: Serve, partitions: int | None) -> None:
    """Whichever worker has them: during a rescale, two may have keys of one vnode."""
    service = serve(numbers(0, 50), numbers(50, 50), numbers(50, 90))
    rows = read(spark, service, partitions)
    assert rows.dtypes == [("k", "string"), ("n", "bigint")]
    groups = VnodeGroup.all(VNODES, partitions or 3)
    assert rows.rdd.getNumPartitions() == len(groups)
    for part, vnodes in by_partition(rows).items():
        assert set(vnodes) <= set(range(groups[part].first, groups[part].behind))
    assert found(rows) == list(range(90))
    assert [row["k"] for row in rows.where("n = 7").collect()] == ["k7"]


@pytest.mark.spark
def test_keys_prune(spark: Any, serve: Serve) -> None:
    service = serve(numbers(0, 50), numbers(50, 90))
    rows = read(spark, service, VNODES, ["k3", "k77", "none", None])
    hashes = hash64([pa.array(["k3", "k77", "none", None])]).tolist()
    assert rows.rdd.getNumPartitions() == len(set(vnodes_of(np.array(hashes, np.uint64), VNODES).tolist()))
    assert found(rows) == [3, 77]
    assert {least for ranges in service.ranges for least, _ in ranges} == set(hashes)
    assert all(least == highest for ranges in service.ranges for least, highest in ranges)
    assert found(rows.where("n > 3")) == [77]
    assert found(read(spark, service)) == list(range(90))
    service.ranges.clear()
    assert found(read(spark, service, keys=[])) == []
    assert service.ranges == []


@pytest.mark.spark
def test_an_empty_view_has_its_columns(spark: Any, serve: Serve) -> None:
    rows = read(spark, serve(numbers(0, 0), numbers(0, 0)))
    assert rows.columns == ["k", "n"]
    assert rows.count() == 0


@pytest.mark.spark
def test_each_action_reads_the_view_as_it_is_then(spark: Any, serve: Serve) -> None:
    """And takes one snapshot, however many tasks and scans it has."""
    service = serve(numbers(0, 5), numbers(5, 9))
    rows = read(spark, service)
    assert service.held == {}
    assert found(rows) == list(range(9))
    assert len(service.held) == 1
    service.shares = [numbers(10, 12), numbers(12, 15)]
    assert found(rows) == list(range(10, 15))
    assert rows.count() == 5
    assert len(service.held) == 3
    assert rows.union(rows).alias("a").join(rows.alias("b"), "k").count() == 10
    taken = 3 + (1 if KEEPS_READERS else 3)
    assert len(service.held) == taken
    assert rows.rdd.count() == 5
    assert len(service.held) == taken + 1


@pytest.mark.spark
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_may_have_come_and_gone_since_the_plan(spark: Any, serve: Serve, workers: int) -> None:
    service = serve(*(numbers(10 * part, 10 * part + 10) for part in range(3)))
    rows = read(spark, service)
    assert found(rows) == list(range(30))
    service.shares = [numbers(10 * part, 10 * part + 10) for part in range(workers)]
    assert found(rows) == list(range(10 * workers))
    assert rows.rdd.getNumPartitions() == 3


@pytest.mark.spark
def test_a_part_comes_in_many_batches_and_may_be_left_early(spark: Any, serve: Serve) -> None:
    service = serve(numbers(0, 3 * GET_ROWS_MAX + 1), numbers(0, 1))
    rows = read(spark, service)
    assert rows.selectExpr("count(*)", "sum(n)").first()[:] == (200_000 - 3390, sum(range(3 * GET_ROWS_MAX + 1)))
    assert service.read == [1] * 4  # each partition asks each worker
    assert len(rows.limit(3).collect()) == 3
    await_that(lambda: 2 in service.read, lambda: "a scan that needs no more rows is through as well")  # a moment later
    assert rows.where("n > 5").first()["n"] > 5


ZONED = datetime(2013, 1, 1, 5, 15, 0, 1, UTC)
EVERY_TYPE = pa.table(
    {
        "boolean": pa.array([True, None]),
        "byte": pa.array([-1, None], pa.int8()),
        "short": pa.array([-2, None], pa.int16()),
        "int": pa.array([-3, None], pa.int32()),
        "long": pa.array([-4, None], pa.int64()),
        "float": pa.array([1.5, None], pa.float32()),
        "double": pa.array([float("inf"), None]),
        "decimal": pa.array([Decimal("12.345"), None], pa.decimal128(20, 3)),
        "a `string`, é": pa.array(["é", None]),
        "binary": pa.array([b"\x00\xff", None]),
        "date": pa.array([15706, None], pa.date32()),
        "at": pa.array([ZONED, None], pa.timestamp("us", tz="America/New_York")),
        "at.local": pa.array([ZONED.replace(tzinfo=None), None], pa.timestamp("us")),
        "list": pa.array([[1, None], None], pa.list_(pa.int64())),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"at": ZONED}, None], pa.struct([("at", pa.timestamp("us", tz="UTC"))])),
    }
)


@pytest.mark.spark
def test_values_of_every_type_arrive(spark: Any, serve: Serve) -> None:
    rows = read(spark, serve(EVERY_TYPE.slice(0, 1), EVERY_TYPE.slice(1), key="long"))
    types = "boolean tinyint smallint int bigint float double decimal(20,3) string binary date timestamp timestamp_ntz"
    nested = ["array<bigint>", "map<string,bigint>", "struct<at:timestamp>"]
    assert [type for _, type in rows.dtypes] == [*types.split(), *nested]
    table = rows.toArrow()
    assert table.column_names == EVERY_TYPE.column_names
    assert sorted(map(repr, table.to_pylist())) == sorted(
        map(repr, EVERY_TYPE.set_column(11, "at", EVERY_TYPE["at"].cast(pa.timestamp("us", tz="UTC"))).to_pylist())
    )


@pytest.fixture(params=["true", "false"])
def pushdown(spark: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    if not KEEPS_READERS:
        yield
        return
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.set(PUSHDOWN, before)


@pytest.mark.spark
@pytest.mark.usefixtures("pushdown")
def test_filters_of_one_query_leave_others_alone(spark: Any, serve: Serve) -> None:
    rows = read(spark, serve(numbers(0, 5), numbers(5, 9)))
    assert found(rows.where("k = 'k3'")) == [3]
    assert found(rows) == list(range(9))
    assert found(rows.select("n")) == list(range(9))
    assert found(rows.where("k IN ('k1', 'k2')").union(rows.where("k = 'k7'"))) == [1, 2, 7]
    assert found(rows.where("k IS NULL OR k <=> 'k8'")) == [8]


def pushed_source() -> type[DataSource]:
    """A source of the numbers 0 to 2, or of the one that it is filtered to. Local, so that it travels by value."""

    class Reader(DataSourceReader):
        wanted = (0, 1, 2)

        def pushFilters(self, filters: list[Any]) -> list[Any]:
            self.wanted = tuple(f.value for f in filters if isinstance(f, datasource.EqualTo))
            return [f for f in filters if not isinstance(f, datasource.EqualTo)]

        def read(self, _: Any) -> Iterator[tuple[int]]:
            return iter([(number,) for number in self.wanted])

    class Pushed(DataSource):
        def schema(self) -> str:
            return "n long"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    return Pushed


@pytest.mark.spark
def test_rows_are_read_while_another_session_is_active(spark: Any, serve: Serve) -> None:
    rows = read(spark, serve(numbers(0, 5)))
    spark.newSession().createDataFrame([(1,)], "n long").collect()  # which leaves that session the thread's active one
    try:
        assert rows.rdd.getNumPartitions() == 1
        assert found(rows) == list(range(5))
    finally:
        spark.createDataFrame([(1,)], "n long").collect()


@pytest.mark.spark
@pytest.mark.skipif(not KEEPS_READERS, reason="Spark 4.0 pushes no filters into Python sources")
def test_spark_gives_pushed_filters_to_other_queries(spark: Any) -> None:
    """Why we take no filters. Should this fail, Spark has been mended, and we can."""
    spark.conf.set(PUSHDOWN, "true")
    try:
        spark.dataSource.register(pushed_source())
        rows = spark.read.format("Pushed").load()
        assert found(rows.where("n = 1").union(rows.where("n = 2"))) == [2, 2]
    finally:
        spark.conf.unset(PUSHDOWN)


# By hand, and errors --------------------------------------------------------------------------------------------


def load(spark: Any, schema: str | None = None, **options: str) -> Any:
    spark.dataSource.register(UpriverDataSource)
    reader = spark.read.format("upriver").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


@pytest.mark.spark
def test_options_may_be_given_by_hand(spark: Any, serve: Serve) -> None:
    service = serve(numbers(0, 5), numbers(5, 9))
    rows = load(spark, Address=f"grpc://{service.address}", token=TOKEN, VIEW="planes")
    assert rows.dtypes == [("k", "string"), ("n", "bigint")]
    assert found(rows) == list(range(9))
    given = {"address": service.address, "token": TOKEN, "view": "planes"}
    assert found(load(spark, "k string, n long", **given)) == found(rows)
    some = load(spark, **given, partitions="16", keys='["k2", "k7", ["k8"], null]')
    assert some.rdd.getNumPartitions() <= 4
    assert found(some) == [2, 7, 8]


@pytest.mark.spark
def test_the_app_refuses_before_spark_does(serve: Serve) -> None:
    service = serve(numbers(0, 5))
    with pytest.raises(UnknownView, match="no view 'plains'; there are: planes"):
        ScanRequest.of(client_of(service.address), "plains")
    with pytest.raises(AccessDenied, match="not the app's token"):
        ScanRequest.of(Remote.parse(service.address, "another"), "planes")
    with pytest.raises(UserError, match=r"the address is not of the form host:port .*: it has no port"):
        ScanRequest.of(client_of("nowhere"), "planes")
    service.stop()
    with pytest.raises(ClusterError, match=f"{service.address} cannot be reached"):
        ScanRequest.of(client_of(service.address), "planes")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "plains"}, r"UnknownView: no view 'plains'; there are: planes"),
        ({"token": "another"}, r"AccessDenied: .*not the app's token"),
        ({"token": ""}, r"needs the options address, token and view; missing: \['token'\]"),
        ({"partitions": "17"}, r"DeclarationError: 17 partitions: there are 1 to 16"),
        ({"partitions": "some"}, r"DeclarationError: partitions='some': give a number, 1 to 16"),
        ({"keys": "k1"}, r"KeyTypeError: 'planes': keys='k1' is not a JSON list of keys"),
        ({"keys": '[["k1", 2]]'}, r"KeyTypeError: 'planes': \[\"k1\", 2\] is no key of \(k string\)"),
        ({"keys": "[5]"}, r"KeyTypeError: 'planes': \[5\] is no key of \(k string\)"),
        ({"arrow_keys": "k1"}, r"KeyTypeError: 'planes': arrow_keys is not base64 of an Arrow stream"),
        ({"arrow_keys": "k1", "keys": "[]"}, r"DeclarationError: 'planes': give keys or arrow_keys, not both"),
        ({"keys": "[]", "changes": "true"}, r"DeclarationError: keys: changes are read of all keys"),
        ({"schema": "k string"}, r"view 'planes' has the columns k string, n bigint, not k string: leave schema\(\)"),
    ],
)
def test_errors_of_spark_carry_what_we_say(spark: Any, serve: Serve, options: dict[str, str], said: str) -> None:
    asked = {"address": serve(numbers(0, 5)).address, "token": TOKEN, "view": "planes", **options}
    with pytest.raises(PySparkException, match=said) as raised:
        load(spark, **asked).collect()
    assert TOKEN not in str(raised.value)


@pytest.mark.spark
def test_a_snapshot_that_is_lost_fails_the_action(spark: Any, serve: Serve) -> None:
    service = serve(numbers(0, 5), numbers(5, 9))
    rows = read(spark, service)
    service.holds_snapshots = False
    with pytest.raises(PySparkException, match="WaitTimeout: snapshot 1 is no longer held; read the view again"):
        rows.collect()
    service.holds_snapshots = True
    assert found(rows) == list(range(9))


@pytest.mark.spark
def test_a_worker_that_is_lost_fails_the_action(spark: Any, serve: Serve) -> None:
    service = serve(numbers(0, 5), numbers(5, 9))
    rows = read(spark, service)
    assert found(rows) == list(range(9))
    service.workers[1].stop()
    with pytest.raises(PySparkException, match=f"WorkerLost: {service.workers[1].address} cannot be reached"):
        rows.collect()


@pytest.mark.spark
def test_the_token_is_shown_nowhere(spark: Any, serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    rows = read(spark, serve(numbers(0, 5)))
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        rows.where("k = 'k1'").explain(mode)
    print(rows, rows._jdf.queryExecution().toString(), rows._jdf.queryExecution().logical().prettyJson())
    shown = capfd.readouterr().out
    assert "upriver" in shown
    assert TOKEN not in shown


IN_A_LATER_SESSION = """
from pyspark.sql import SparkSession

from upriver.spark.scan import register_source

first = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for session in (first, first.newSession(), first):
    try:
        session.read.format(register_source(session)).load()
    except Exception as error:
        print("needs the options address" in str(error))
"""


@pytest.mark.spark
def test_a_session_finds_the_format_though_one_before_it_has_read_by_it() -> None:
    command = [sys.executable, "-c", IN_A_LATER_SESSION]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["True"] * 3), ended.stderr
