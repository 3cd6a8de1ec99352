"""Files that tasks read as Arrow: the rows equal those of Spark's own reader, by every writer of files; whatever Spark
may read in another way goes through its rows."""

import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_kit import Driver, assert_exactly_once, driving, epochs, events, in_time, rows_of
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from upriver import App
from upriver.errors import IngestFailed
from upriver.lake.lake import Lake
from upriver.plan.plan import TableSpec
from upriver.spark.digests import files_digest, rows_digest
from upriver.spark.file_scans import NotAScan, buckets_of, path_of, scan_of, steps_of
from upriver.spark.ingest import Layout, WayIn
from upriver.spark.loads import OnChange
from upriver.spark.parquet import FileRange, NotAsArrow
from upriver.spark.runs import FileRows, Lot, SparkRows, shuffle_runs
from upriver.spark.schema import spark_arrow_schema

pytestmark = pytest.mark.spark

DAYS = [date(1500, 3, 4), date(1970, 1, 1), date(9999, 12, 31), None]
TIMES = [datetime(1500, 3, 4, 5, 6, 7, 89), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29), None]
NAN = float("nan")
READ = pa.table(
    {
        "flag": pa.array([True, False, None, True]),
        **{f"i{bits}": pa.array([0, -(2 ** (bits - 1)), None, 1], f"int{bits}") for bits in (8, 16, 32, 64)},
        **{f"u{bits}": pa.array([0, 2**bits - 1, None, 1], f"uint{bits}") for bits in (8, 16, 32)},
        "f32": pa.array([-0.0, NAN, None, 1.1], pa.float32()),
        "f64": [-0.0, NAN, None, 1.1],
        "text": ["", "äö€𝄞\0", None, "x" * 300],
        "large": pa.array(["", "a", None, "b"], pa.large_string()),
        "chosen": pa.array(["", "a", None, "a"]).dictionary_encode(),
        "bytes": [b"", b"\xff\xfe", None, b"a"],
        "day": pa.array(DAYS),
        "short": pa.array([Decimal("1.23"), Decimal("-999.99"), None, Decimal(0)], pa.decimal128(5, 2)),
        "long": pa.array([Decimal("1.23"), Decimal(f"-{'9' * 28}.9999999999"), None, None], pa.decimal128(38, 10)),
        "span": pa.array([1, -1, None, 2], pa.duration("us")),  # BIGINT for Spark
        **{f"wall_{unit}": pa.array(TIMES, pa.timestamp("us")).cast(unit_type, safe=False) for unit, unit_type in (
            ("ms", pa.timestamp("ms")), ("us", pa.timestamp("us")))},
        "instant": pa.array(TIMES, pa.timestamp("us", "Asia/Tokyo")),
    }
)  # fmt: skip
LEFT = pa.table(
    {
        "u64": pa.array([1], pa.uint64()),
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "list": [[1]],
        "struct": [{"a": 1}],
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "with.dot": [1],
    }
)
"""Columns that Spark reads, and that are left to it."""
WRITERS = {
    "plain": {},
    "old": {"version": "1.0", "use_deprecated_int96_timestamps": True, "compression": "gzip"},
    "pages": {"data_page_version": "2.0", "use_dictionary": False, "compression": "zstd", "store_schema": False},
}
WRITTEN_BY_SPARK = """
SELECT * FROM VALUES (true, 1Y, 2S, 3, 4L, 1.5f, 2.5d, 'a', X'ff', date'1500-03-04',
    timestamp'1750-03-04 05:06:07.000089', timestamp_ntz'1500-03-04 05:06:07', 1.23BD,
    cast(1.1 AS decimal(38, 2)), cast('y' AS varchar(5))),
  (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
AS t(flag, i8, i16, i32, i64, f32, f64, text, bytes, day, instant, wall, short, long, varied)
"""
SET = "spark.sql.parquet."


def as_arrow(rows: Any, tasks: int = 3) -> pa.Table:
    """The rows of a DataFrame as tasks would read them from its files. Raises NotAScan, NotAsArrow."""
    schema = spark_arrow_schema(rows.schema, "UTC")
    plan = rows._jdf.queryExecution().executedPlan()
    planned = scan_of(plan, rows, is_fixed=True, steps_of=lambda: steps_of(rows))
    scan = planned.of_table(TableSpec("t", schema, (rows.columns[0],)), tasks)
    batches = [each for task in range(len(scan.tasks)) for each in scan.rows(task)]
    columns = pa.Table.from_batches(batches).columns if batches else schema.empty_table().columns
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def is_same(rows: Any) -> bool:
    ours, theirs = as_arrow(rows), rows.toArrow()
    return sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs.cast(ours.schema).to_pylist()))


def is_left(rows: Any) -> bool:
    try:
        as_arrow(rows)
    except (NotAScan, NotAsArrow):
        return True
    return False


@pytest.mark.parametrize("writer", WRITERS)
def test_every_type_of_files_by_arrow(spark: Any, tmp_path: Path, writer: str) -> None:
    pq.write_table(READ, tmp_path / "read", row_group_size=3, **WRITERS[writer])
    rows = spark.read.parquet(str(tmp_path / "read"))
    far = ["wall_ms", "wall_us", "instant"] if writer == "old" else []  # in INT96, with years that pyarrow may mistake
    assert [name for name in READ.column_names if is_left(rows.select(name))] == far
    assert [name for name in READ.column_names if name not in far and not is_same(rows.select(name))] == []
    pq.write_table(LEFT, tmp_path / "left", **WRITERS[writer])
    rows = spark.read.parquet(str(tmp_path / "left"))
    assert [name for name in LEFT.column_names if not is_left(rows.select(f"`{name}`"))] == []


@pytest.mark.parametrize("times", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_files_by_spark(spark: Any, tmp_path: Path, times: str) -> None:
    session = spark.newSession()
    session.conf.set(f"{SET}outputTimestampType", times)
    session.sql(WRITTEN_BY_SPARK).write.parquet(str(tmp_path / "now"))
    assert is_same(session.read.parquet(str(tmp_path / "now")))
    session.conf.set(f"{SET}writeLegacyFormat", "true")
    session.sql(WRITTEN_BY_SPARK).write.parquet(str(tmp_path / "hive"))
    assert is_same(session.read.parquet(str(tmp_path / "hive")))
    for kind in ("datetime", "int96"):
        session.conf.set(f"{SET}{kind}RebaseModeInWrite", "LEGACY")
    session.sql(WRITTEN_BY_SPARK).write.parquet(str(tmp_path / "julian"))
    rows = session.read.parquet(str(tmp_path / "julian"))
    assert [name for name in rows.columns if is_left(rows.select(name))] == ["day", "instant", "wall"]
    assert is_same(rows.drop("day", "instant", "wall"))


@pytest.mark.parametrize(
    ("days", "is_far"),
    [(-60_000_000, True), (-24_855_000, True), (-100_000, False), (100_000, False), (2_932_896, True)],
)
def test_timestamps_of_int96_at_the_ends_of_time(spark: Any, tmp_path: Path, days: int, is_far: bool) -> None:
    """pyarrow would give the second as one of 1971."""
    session = spark.newSession()
    session.conf.set(f"{SET}outputTimestampType", "INT96")
    micros = f"CAST({days} AS LONG) * 86400000000 + 7"
    session.sql(f"SELECT timestamp_micros({micros}) AS at").write.parquet(str(tmp_path / "f"))
    rows = session.read.parquet(str(tmp_path / "f"))
    if is_far:
        assert is_left(rows)
    else:
        ours, theirs = (table.column(0).cast(pa.int64()).to_pylist() for table in (as_arrow(rows), rows.toArrow()))
        assert ours == theirs == [days * 86_400_000_000 + 7]


def test_files_by_duckdb(spark: Any, tmp_path: Path) -> None:
    query = """SELECT true AS flag, 1::TINYINT AS i8, 7::UINTEGER AS u32, 9::HUGEINT AS huge, 'a' AS text,
        'a'::BLOB AS bytes, DATE '1500-03-04' AS day, TIMESTAMP '1500-03-04 05:06:07' AS wall,
        5.5::DECIMAL(20, 2) AS exact"""
    with duckdb.connect() as duck:
        duck.sql(f"COPY ({query}) TO '{tmp_path}/f' (FORMAT parquet)")
    assert is_same(spark.read.parquet(str(tmp_path / "f")))


@pytest.mark.parametrize(
    ("column", "type"),
    [("i8", "INT"), ("i32", "BIGINT"), ("i64", "INT"), ("f32", "DOUBLE"), ("i32", "DOUBLE"), ("i64", "STRING"),
     ("text", "BINARY"), ("bytes", "STRING"), ("day", "TIMESTAMP_NTZ"), ("short", "DECIMAL(7, 2)"),
     ("wall_us", "TIMESTAMP"), ("instant", "TIMESTAMP_NTZ"), ("span", "TIMESTAMP"), ("u8", "TINYINT")],
)  # fmt: skip
def test_other_types_than_the_files_equal_spark_or_are_left_to_it(
    spark: Any, tmp_path: Path, column: str, type: str
) -> None:
    pq.write_table(READ.select([column]), tmp_path / "f")
    rows = spark.read.schema(f"{column} {type}").parquet(str(tmp_path / "f"))
    assert is_left(rows) or is_same(rows)


def test_columns_are_chosen_renamed_and_widened(spark: Any, tmp_path: Path) -> None:
    pq.write_table(READ, tmp_path / "f", row_group_size=2)
    schema = "wanted INT, TEXT STRING, I32 INT, f32 FLOAT"
    rows = spark.read.schema(schema).parquet(str(tmp_path / "f"))
    assert is_same(rows.selectExpr("I32 AS a", "f32", "text AS b", "wanted", "I32 AS c"))
    assert is_same(rows.selectExpr("CAST(i32 AS BIGINT) AS a", "f32").selectExpr("f32 + 0D AS g", "a").drop("g"))
    assert is_left(rows.distinct())
    assert is_left(rows.limit(2))
    assert is_left(rows.union(rows))
    assert is_left(spark.range(3))


COMPUTED = (
    "i32 + 1L AS a", "CAST(i32 AS STRING) AS a", "try_cast(i64 AS SMALLINT) AS a", "f64 * 2 AS a, -f32 AS b, text",
    "upper(text) || chosen AS a", "length(bytes) AS a, day", "date_sub(day, 1) AS a", "1 AS a, i8",
    "coalesce(short, 0) AS a", "named_struct('x', i32, 'y', text) AS a", "array(i8, u8) AS a", "hour(instant) AS a",
    "CAST(instant AS STRING) AS a", "CAST(instant AS DATE) AS a", "wall_us + INTERVAL '1' DAY AS a",
    "CASE WHEN flag THEN i32 END AS a", "xxhash64(text, i64) AS a", "flag AS a, i64 AS `b.c`",
)  # fmt: skip
CONDITIONS = (
    "i32 > 0", "text LIKE 'x%' OR text IS NULL", "isnan(f64)", "day < date'1990-01-01' AND i16 < 0", "NOT flag",
    "instant > timestamp'1970-01-01 00:00:00'", "short IN (1.23, 0)", "i32 <> 0 AND 10 / i32 > 0",
    "NOT flag AND i64 > 3",
)  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_columns_and_conditions_are_computed_over_arrow(spark: Any, tmp_path: Path, zone: str) -> None:
    pq.write_table(READ, tmp_path / "f", row_group_size=3)
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    rows = session.read.parquet(str(tmp_path / "f"))
    computed = [session.sql(f"SELECT {one} FROM {{rows}}", rows=rows) for one in COMPUTED]
    assert [one for one, each in zip(COMPUTED, computed, strict=True) if not is_same(each)] == []
    assert [one for one in CONDITIONS if not is_same(rows.where(one))] == []
    chain = rows.where("i64 < 5").withColumn("twice", F.col("i16") * 2).where("twice > -9").drop("f64", "bytes")
    assert is_same(chain.withColumn("day", F.date_trunc("month", "day")))
    assert is_same(rows.selectExpr("i32 AS I64", "i64 AS i32").where("i64 > 0"))


def test_what_is_not_of_single_rows_is_left_to_spark(spark: Any, tmp_path: Path) -> None:
    pq.write_table(READ, tmp_path / "f")
    rows = spark.read.parquet(str(tmp_path / "f"))
    named = F.udf(lambda number: number, "INT")
    for left in (
        rows.withColumn("a", named("i32")), rows.withColumn("a", F.rand()), rows.where("i32 > (SELECT 1)"),
        rows.withColumn("a", F.current_timestamp()), rows.withColumn("a", F.monotonically_increasing_id()),
        rows.selectExpr("_metadata.file_name AS a"), rows.withColumn("a", F.input_file_name()),
        rows.selectExpr("explode(array(i8, i8)) AS a"), rows.selectExpr("1 AS a"),
        rows.selectExpr("java_method('java.lang.Math', 'abs', i32) AS a"),
    ):  # fmt: skip
        assert is_left(left)


def test_a_row_on_which_an_expression_fails_is_left_to_spark(spark: Any, tmp_path: Path) -> None:
    """Spark then raises its own error, or none where its order of evaluation has none."""
    pq.write_table(pa.table({"k": [1, 0, 2]}), tmp_path / "f")
    rows = spark.read.parquet(str(tmp_path / "f"))
    with pytest.raises(NotAsArrow, match="ivi"):
        as_arrow(rows.selectExpr("6 div k AS a"))
    assert is_same(rows.where("k <> 0").selectExpr("6 div k AS a"))


def test_directories_that_name_columns(spark: Any, tmp_path: Path) -> None:
    for day, kind in (("2024-02-29", "a b"), ("1500-01-01", "c,path: d"), ("__HIVE_DEFAULT_PARTITION__", "ä%41")):
        directory = tmp_path / "files" / f"day={day}" / f"kind={kind.replace(':', '%3A').replace('%4', '%254')}" / "n=3"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"k": [1, 2]}), directory / "with space, and %41.parquet")
    rows = spark.read.parquet(str(tmp_path / "files"))
    assert rows.dtypes == [("k", "bigint"), ("day", "date"), ("kind", "string"), ("n", "int")]
    assert is_same(rows)
    assert is_same(rows.where("n = 3 AND day > date'2000-01-01'").select("kind", "k"))
    assert is_same(rows.where("n + k > 4 OR kind IS NULL").selectExpr("kind", "k", "year(day) AS y"))


def test_a_bucket_is_opened_with_sparks_own_keys_or_not_at_all(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of this process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of this process")
    ranges = [
        FileRange(path_of("s3a://with-keys/a%20b/c%2541.parquet"), 0, 9),
        FileRange(path_of("file:///a%20b"), 0, 9),
    ]
    assert [each.path for each in ranges] == ["s3a://with-keys/a b/c%41.parquet", "/a b"]
    with pytest.raises(NotAScan, match="no keys of the bucket with-keys"):
        buckets_of(ranges, spark)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name in ("access.key", "secret.key"):
        hadoop.set(f"fs.s3a.bucket.with-keys.{name}", f"my {name}")
    (bucket,) = buckets_of(ranges, spark)
    assert bucket == "s3a://with-keys"
    assert bucket.options == {"access_key_id": "my access.key", "secret_access_key": "my secret.key"}
    with pytest.raises(NotAScan, match="neither on a disk nor in S3"):
        path_of("hdfs://host/file")


def test_large_files_are_cut(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    pq.write_table(pa.table({"k": range(3000)}), tmp_path / "f", row_group_size=100, compression="none")
    rows = session.read.parquet(str(tmp_path / "f"))
    assert rows.rdd.getNumPartitions() > 10
    assert sorted(as_arrow(rows).column(0).to_pylist()) == list(range(3000))


@pytest.mark.parametrize(
    ("name", "value"),
    [(f"{SET}datetimeRebaseModeInRead", "LEGACY"), (f"{SET}int96TimestampConversion", "true")],
)
def test_settings_under_which_files_mean_something_else(spark: Any, tmp_path: Path, name: str, value: str) -> None:
    pq.write_table(READ.select(["day"]), tmp_path / "f")
    session = spark.newSession()
    assert is_same(session.read.parquet(str(tmp_path / "f")))
    session.conf.set(name, value)
    assert is_left(session.read.parquet(str(tmp_path / "f")))


def test_columns_that_are_found_by_their_number_are_left_to_spark(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(f"{SET}fieldId.write.enabled", "true")
    session.conf.set(f"{SET}fieldId.read.enabled", "true")
    numbered = StructType([StructField("a", LongType(), metadata={"parquet.field.id": 1})])
    session.createDataFrame([(1,)], numbered).write.parquet(str(tmp_path / "f"))
    assert is_left(session.read.parquet(str(tmp_path / "f")))
    assert is_same(session.read.schema("a LONG").parquet(str(tmp_path / "f")))
    renamed = StructType([StructField("b", LongType(), metadata={"parquet.field.id": 1})])
    assert is_left(session.read.schema(renamed).parquet(str(tmp_path / "f")))


def test_a_column_with_a_default_is_left_to_spark(spark: Any, tmp_path: Path) -> None:
    """As a table of the catalog has it that got a column later: older files have the value that is the default."""
    pq.write_table(pa.table({"k": [1]}), tmp_path / "f")
    with_default = StructField("v", LongType(), metadata={"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "7"})
    rows = spark.read.schema(StructType([StructField("k", LongType()), with_default])).parquet(str(tmp_path / "f"))
    assert rows.first()["v"] == 7
    assert is_left(rows)
    assert is_same(rows.select("k"))


def test_a_stream_goes_on_with_rows_when_a_file_is_left_to_spark(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def put(name: str, days: list[date], note: dict[str, str]) -> None:
        rows = pa.table({"k": [1] * len(days), "day": days}).replace_schema_metadata(note)
        pq.write_table(rows, files / f".{name}")
        os.rename(files / f".{name}", files / name)

    put("0", [date(2020, 1, 1)], {})
    stream = spark.readStream.schema("k BIGINT, day DATE").option("maxFilesPerTrigger", 1).parquet(str(files))
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("days", stream, key="k")
        app.view("counted", "SELECT k, count(*) AS n, min(day) AS first FROM days GROUP BY k", key="k", partial=False)
        app.start(wait=True)
        assert app.status()["tables"]["days"]["way"] == "files as Arrow"
        put("1", [date(2021, 1, 1)] * 2, {"org.apache.spark.version": "2.4.8"})
        app.wait()
        assert app.read("counted").toArrow().to_pylist() == [{"k": 1, "n": 3, "first": date(2020, 1, 1)}]
        way = app.status()["tables"]["days"]["way"]
        assert way.startswith(f"rows of Spark: {files}/1: column 'day'")


def test_a_stream_that_filters_and_computes_takes_files_as_arrow(spark: Any, tmp_path: Path) -> None:
    def put(first: int) -> None:
        pq.write_table(pa.table({"k": range(first, first + 50), "at": ["2024-02-29 10:00:00"] * 50}),
                       tmp_path / f"{first}.parquet")  # fmt: skip

    put(0)
    stream = spark.readStream.schema("k BIGINT, at STRING").option("pathGlobFilter", "*.parquet").parquet(str(tmp_path))
    computed = stream.where("k % 3 = 0").select(F.col("k"), F.to_timestamp("at").alias("at"), F.expr("k * k AS square"))
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("events", computed, key="k")
        app.view("squares", "SELECT k, square, date(at) AS day FROM events", key="k")
        app.start(wait=True)
        put(50)
        app.wait()
        rows = [{"k": k, "square": k * k, "day": date(2024, 2, 29)} for k in range(0, 100, 3)]
        assert sorted(app.read("squares").toArrow().to_pylist(), key=lambda row: row["k"]) == rows
        assert app.status()["tables"]["events"]["way"] == "files as Arrow"


def test_a_process_that_dies_of_a_file_leaves_it_to_spark(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "f")
    rows = spark.read.parquet(str(tmp_path / "f"))
    way, taken = WayIn("t", rows), list[Any]()

    def publish(given: Any) -> None:
        taken.append(given)
        if isinstance(given, FileRows):
            given.spark.range(1).mapInArrow(lambda _: os._exit(9), "k INT").collect()

    plan: Callable[[], Any] = rows._jdf.queryExecution().executedPlan
    way.take(rows, plan, publish)
    way.take(rows, plan, publish)
    assert [type(given) for given in taken] == [FileRows, SparkRows, SparkRows]
    assert way.told() == "rows of Spark: a process that read its files has died"
    assert "takes longer" in caplog.text


@pytest.mark.parametrize("writer", WRITERS)
def test_the_digest_over_arrow_is_spark_s(spark: Any, tmp_path: Path, writer: str) -> None:
    pq.write_table(READ, tmp_path / "f", row_group_size=1, **WRITERS[writer])
    session = spark.newSession()
    session.conf.set(f"{SET}outputTimestampType", "TIMESTAMP_MICROS")
    whole = session.read.parquet(str(tmp_path / "f"))
    for rows, key in ((whole, "i32"), (whole, "text"), (whole.where("i32 IS NULL"), "f64"), (whole.limit(0), "day")):
        (tmp_path / "g").mkdir(exist_ok=True)
        rows.write.mode("overwrite").parquet(str(tmp_path / "g"))
        again = session.read.parquet(str(tmp_path / "g"))
        table = TableSpec("t", spark_arrow_schema(again.schema, "UTC"), (key,))
        found: list[Any] = []
        digested = partial(_digested, table, found)
        WayIn("t", again).take(again, again._jdf.queryExecution().executedPlan, digested)
        assert found == [("FileRows", rows_digest(again, F.xxhash64(key)))]


def _digested(table: TableSpec, found: list[Any], given: Any) -> None:
    found.append((type(given).__name__, files_digest(given, table, 3)))


def load(driver: Driver, rows: Any) -> None:
    driver.load(rows).drain(in_time)


def test_files_are_loaded_as_arrow_whichever_way_the_load_before_went(spark: Any, tmp_path: Path) -> None:
    """Slices, digests and so the record of a load are the same."""
    spark.createDataFrame(events(0, 400), "k string, n long").repartition(3).write.parquet(str(tmp_path / "files"))
    as_files = spark.read.parquet(str(tmp_path / "files"))
    as_rows = as_files.selectExpr("k", "n ^ 0 AS n").coalesce(3)
    sliced = []
    for name, first, second in (("a", as_files, as_rows), ("b", as_rows, as_files)):
        with driving(tmp_path / name) as drive:
            driver = drive()
            load(driver, first)
            load(driver, second)
            assert_exactly_once(driver.lake, events(0, 400))
            sliced.append([sorted(map(repr, rows_of(driver.lake, each))) for each in epochs(driver.lake)])
            ways = [each.status()["events"]["way"] for each in driver.supervisors]
            assert [way.partition(":")[0] for way in ways] == (
                ["files as Arrow", "rows of Spark"] if first is as_files else ["rows of Spark", "files as Arrow"]
            )
    assert sliced[0] == sliced[1]
    assert len(sliced[0]) == 4


def test_a_file_that_changes_amid_a_load_fails_it(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    spark.createDataFrame(events(0, 400), "k string, n long").coalesce(1).write.parquet(str(files))
    rows = spark.read.parquet(str(files))
    (path,) = files.glob("*.parquet")

    def change(_: Any) -> None:
        table = pq.read_table(path)
        pq.write_table(table.slice(1), path)

    with driving(tmp_path / "lake") as drive:
        driver = drive(change)
        load(driver, rows)  # one pass: its runs are written before the file changes
        with pytest.raises(IngestFailed, match=f"the file {path} has changed since the DataFrame was made"):
            load(drive(), rows)
        assert_exactly_once(Lake(str(tmp_path / "lake")), events(0, 400))


def test_rows_that_came_since_the_dataframe_was_made_are_loaded(spark: Any, tmp_path: Path) -> None:
    """Of a table of the catalog, whose files Spark lists anew for each plan."""
    spark.sql(f"CREATE TABLE grows (k STRING, n BIGINT) USING parquet LOCATION '{(tmp_path / 'grows').as_uri()}'")
    try:
        spark.createDataFrame(events(0, 100), "k string, n long").write.insertInto("grows")
        rows = spark.table("grows")
        with driving(tmp_path / "lake") as drive:
            load(drive(), rows)
            spark.createDataFrame(events(100, 200), "k string, n long").write.insertInto("grows")
            driver = drive()
            driver.load(rows, on_change=OnChange.TAKE_IN).drain(in_time)
            assert_exactly_once(driver.lake, events(0, 200))
        assert rows.count() == 200
    finally:
        spark.sql("DROP TABLE grows")


def test_a_missing_column_that_spark_compares_in_its_own_way_is_left_to_it(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": range(50)}), tmp_path / "f")
    rows = spark.read.schema("k LONG, m MAP<STRING, INT>").parquet(str(tmp_path / "f"))
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("t", rows, key="k")
        app.start(wait=True)
        told = app.status()["tables"]["t"]
    assert (told["state"], told["rows"], told["way"].partition(":")[0]) == ("finished", 50, "rows of Spark")


def test_rows_of_files_can_be_shuffled(spark: Any, tmp_path: Path) -> None:
    pq.write_table(READ.select(["i32", "day"]), tmp_path / "f", row_group_size=2)
    rows, way = spark.read.parquet(str(tmp_path / "f")), WayIn("t", spark.range(0))
    (tmp_path / "lake").mkdir()
    table = TableSpec("t", spark_arrow_schema(rows.schema, "UTC"), ("i32",))
    writer = Layout(root=str(tmp_path / "lake"), table=table, vnodes=8, groups=2).writer(Lot(0, ("i32",)))
    written: list[tuple[type, int]] = []

    def publish(given: Any) -> None:
        runs = shuffle_runs(given, writer)
        written.append((type(given), sum(run.rows for lot in runs.values() for run in lot)))

    way.take(rows, rows._jdf.queryExecution().executedPlan, publish)
    julian = READ.select(["i32", "day"]).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    pq.write_table(julian, tmp_path / "f")
    way.take(spark.read.parquet(str(tmp_path / "f")), rows._jdf.queryExecution().executedPlan, publish)
    assert written == [(FileRows, 4), (SparkRows, 4)]
    assert "calendar" in (way.told() or "")
