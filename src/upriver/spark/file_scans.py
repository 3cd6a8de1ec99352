"""Spark's plan of a batch as a scan of Parquet files that tasks can read as Arrow. Runs in the driver.

Spark's rows cost most of a batch from files: each value is taken out of a column, put into a row, and then into a
column again. Spark has decided what the batch is, which files are in it, and how they are cut; if its physical plan is
nothing but a scan of Parquet files with some of their columns, tasks can read these files themselves.

If the plan has conditions and computed columns, too, they are evaluated over Arrow as a view's are, where the SQL front
end translates what the DataFrame computes (:class:`upriver.plan.row_steps.RowSteps`). Which files and which columns
there are is still what Spark's physical plan says; a condition on directories has chosen among the files already.

Any other node, format, setting or type: the reason is said, and the rows come from Spark. All that is asked of Spark's
plan here is private to Spark: a version that answers otherwise gets its rows from Spark, too.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from upriver.errors import UserError
from upriver.lake.address import Root, object_address
from upriver.lake.store_options import store_options
from upriver.plan.plan import TableSpec
from upriver.plan.row_steps import RowSteps
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.computed_rows import ComputedRows
from upriver.spark.parquet import FileRange, FileScan, ScannedColumn
from upriver.spark.schema import in_zone, spark_arrow_schema
from upriver.spark.session import java_class
from upriver.spark.sources import one_line
from upriver.sql.views import row_steps

_PASSED_THROUGH = ("WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec")
"""Nodes of a plan that change no row."""
_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_DELTA = "org.apache.spark.sql.delta.DeltaParquetFileFormat"
_LOSSLESS = {
    ("tinyint", "smallint"), ("tinyint", "int"), ("tinyint", "bigint"), ("smallint", "int"), ("smallint", "bigint"),
    ("int", "bigint"), ("float", "double"),
}  # fmt: skip
"""Casts that give the same in Arrow and in Spark, for every value."""
_CALENDARS = {
    "datetimeRebaseMode": "spark.sql.parquet.datetimeRebaseModeInRead",
    "int96RebaseMode": "spark.sql.parquet.int96RebaseModeInRead",
}
"""Options of a reader, and the session's settings in their place: which calendar files have that do not tell it."""
_INT96_MOVED = "spark.sql.parquet.int96TimestampConversion"
"""Spark's setting that moves timestamps of some writers by the session's zone."""
_TELLING_METADATA = re.compile(r"EXISTS_DEFAULT|CURRENT_DEFAULT|__.*|parquet\..*|delta\..*")
"""Keys of a column's metadata that change what Spark reads."""
_FILE = re.compile(r"path: (\S+), range: (\d+)-(\d+), partition values: \[empty row\]")
"""A file of a partition, as Spark prints it, if its directory names no column. The path is encoded as in a URL."""


_S3 = ("s3", "s3a")
_PLAIN_TYPES = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "boolean", "date", "timestamp", "timestamp_ntz"}
)
"""Types whose values Spark keeps in the form that Arrow takes."""


class NotAScan(Exception):
    """A plan that is more than a scan of files that tasks can read as Arrow. Its message is the reason."""


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """A physical plan that is a scan. names: of the columns that it gives. columns: these; with ``steps``, which
    compute them, those that the steps use. ranges: as Spark cuts them."""

    names: tuple[str, ...]
    columns: tuple[ScannedColumn, ...]
    ranges: tuple[FileRange, ...]
    is_case_sensitive: bool
    buckets: tuple[Root, ...] = ()
    steps: RowSteps | None = None

    def of_table(self, table: TableSpec, tasks: int) -> FileScan:
        """What at most so many tasks read, with the columns of a table in its order; null where the scan has none."""
        ranges = shared(self.ranges, tasks)
        if self.steps is not None:
            steps = ComputedRows(self.steps, table.schema)
            return FileScan(ranges, self.columns, self.is_case_sensitive, self.buckets, steps)
        by_name = dict(zip(self.names, self.columns, strict=True))
        columns = tuple(by_name.get(field.name, ScannedColumn(field.type)) for field in table.schema)
        return FileScan(ranges, columns, self.is_case_sensitive, self.buckets)


def shared(ranges: Sequence[FileRange], tasks: int) -> tuple[tuple[FileRange, ...], ...]:
    """The ranges, in their order, cut into at most so many parts of about as many bytes; at least one."""
    total = sum(each.end - each.start for each in ranges)
    parts: list[list[FileRange]] = [[] for _ in range(max(1, min(tasks, len(ranges))))]
    done = 0
    for each in ranges:
        size = each.end - each.start
        parts[min(len(parts) - 1, (done + size // 2) * len(parts) // max(1, total))].append(each)
        done += size
    return tuple(tuple(part) for part in parts)


def scan_of(plan: Any, rows: DataFrame, *, is_fixed: bool, steps_of: Callable[[], RowSteps]) -> PlannedScan:
    """The scan that a physical plan is. rows: the DataFrame that it gives. is_fixed: files that change from now on are
    refused. steps_of: gives what ``rows`` computes; it may raise NotAScan. Raises NotAScan."""
    try:
        return _scan_of(plan, rows, is_fixed=is_fixed, steps_of=steps_of)
    except (Py4JError, PySparkException, TypeError, ValueError, KeyError) as error:
        raise NotAScan(f"Spark's plan cannot be read: {one_line(str(error))}") from error


def _scan_of(plan: Any, rows: DataFrame, *, is_fixed: bool, steps_of: Callable[[], RowSteps]) -> PlannedScan:
    changing, scan = _down(plan)
    spark, relation = rows.sparkSession, scan.relation()
    _check_format(scan)
    partitioned, read = _schema(relation.partitionSchema()), _schema(scan.requiredSchema())
    steps = None
    try:
        columns = _chosen(plan, changing, scan, read, partitioned)
    except _Computed:
        steps = steps_of()
        read = _schema(relation.dataSchema())
        columns = _used(steps, scan, read, partitioned)
        read = StructType([field for field in read if field.name in steps.columns.names])
    _check_settings(spark, relation.options(), [*read, *partitioned])
    ranges = tuple(_ranges(spark, scan, is_fixed=is_fixed))
    return PlannedScan(
        names=tuple(rows.columns),
        columns=columns,
        ranges=ranges,
        is_case_sensitive=spark.conf.get("spark.sql.caseSensitive") == "true",
        buckets=buckets_of(ranges, spark),
        steps=steps,
    )


def steps_of(declared: DataFrame) -> RowSteps:
    """What a table's DataFrame computes over its source. Raises NotAScan if that is not translated."""
    analyser = SparkAnalyser(declared.sparkSession, {})
    try:
        return row_steps(analyser.analysed_frame(declared, "", ""), analyser)
    except UserError as error:
        what = one_line(str(error)).partition(" is not supported")[0]
        raise NotAScan(f"what its DataFrame computes is not translated: {what}") from error


class _Computed(Exception):
    """A plan with conditions, or with columns that are not those of files."""


def _down(plan: Any) -> tuple[list[Any], Any]:
    """The projections and the filters of a plan, from the top, and the scan below them."""
    changing = []
    while (kind := _kind(plan)) != "FileSourceScanExec":
        if kind in ("ProjectExec", "FilterExec"):
            changing.append(plan)
        elif kind not in _PASSED_THROUGH:
            raise NotAScan(f"its plan has {_in_words(plan, kind)}")
        plan = plan.children().apply(0)
    return changing, plan


def _chosen(
    plan: Any, changing: Sequence[Any], scan: Any, read: StructType, partitioned: StructType
) -> tuple[ScannedColumn, ...]:
    """The columns of the scan that a plan gives. Raises _Computed if it does more than to choose them."""
    columns: dict[int, tuple[ScannedColumn, str]] = {}
    for attribute in _each(scan.output()):
        columns[_id(attribute)] = _scanned(str(attribute.name()), read, partitioned)
    for projection in reversed(changing):
        if _kind(projection) == "FilterExec":
            raise _Computed
        columns = {_id(named): _projected(named, columns) for named in _each(projection.projectList())}
    return tuple(columns[_id(attribute)][0] for attribute in _each(plan.output()))


def _used(steps: RowSteps, scan: Any, read: StructType, partitioned: StructType) -> tuple[ScannedColumn, ...]:
    """The columns that steps use. read: all that the files have."""
    others = {str(attribute.name()) for attribute in _each(scan.output())} - set(steps.columns.names)
    if others or not len(steps.columns):
        # Spark's plan does something that the DataFrame does not say: Delta drops deleted rows by such a column.
        raise NotAScan(f"its plan reads {', '.join(sorted(others)) or 'no column'}, beside what it computes")
    columns = tuple(_scanned(name, read, partitioned)[0] for name in steps.columns.names)
    for column, field in zip(columns, steps.columns, strict=True):
        if column.type != in_zone(field.type, "UTC"):
            raise NotAScan(f"column {field.name!r} is {column.type} in the files, and {field.type} in the DataFrame")
    return columns


def _in_words(plan: Any, kind: str) -> str:
    return f"a {plan.nodeName()}" if not kind.startswith("RDDScan") else "rows that Spark has computed already"


def _check_format(scan: Any) -> None:
    format = scan.relation().fileFormat()
    kind = str(format.getClass().getName())
    # Rows that Delta's deletion vectors delete are dropped by a filter, which is another node.
    is_plain = (
        format.columnMappingMode().name() == "none" and not format.isCDCRead() if kind == _DELTA else kind == _PARQUET
    )
    if not is_plain:
        raise NotAScan(f"its files are read by {kind.rpartition('.')[2]}, and not as plain Parquet")


def _check_settings(spark: SparkSession, options: Any, fields: Sequence[StructField]) -> None:
    if spark.conf.get(_INT96_MOVED, "false") != "false":
        raise NotAScan(f"{_INT96_MOVED} is set")
    if any(str(name).lower().startswith("fs.") for name in options.keys().mkString("\n").split("\n")):
        raise NotAScan("its reader has settings of its own for the store")
    has_times = any(field.dataType.typeName() in ("date", "timestamp", "timestamp_ntz") for field in fields)
    for option, name in _CALENDARS.items() if has_times else ():
        own = options.get(option)
        mode = str(own.get()) if own.isDefined() else spark.conf.get(name, "CORRECTED")
        if mode != "CORRECTED":
            raise NotAScan(f"{name} is {mode}")
    for field in fields:
        telling = [key for key in field.metadata if _TELLING_METADATA.fullmatch(key)]
        if telling:
            raise NotAScan(f"column {field.name!r} has {telling[0]}")


def _scanned(name: str, read: StructType, partitioned: StructType) -> tuple[ScannedColumn, str]:
    """A column that the scan gives, and Spark's name of its type."""
    for place, field in enumerate(partitioned):
        if field.name == name:
            return ScannedColumn(_in_arrow(field.dataType), place=place), field.dataType.simpleString()
    field = read[name]
    return ScannedColumn(_in_arrow(field.dataType), name), field.dataType.simpleString()


def _in_arrow(type: DataType) -> pa.DataType:
    return spark_arrow_schema(StructType([StructField("c", type)]), "UTC").field(0).type


def _projected(named: Any, columns: dict[int, tuple[ScannedColumn, str]]) -> tuple[ScannedColumn, str]:
    """The column that an expression of a projection is. Arrow casts it to the table's type later."""
    value = named.child() if _kind(named) == "Alias" else named
    if _kind(value) == "AttributeReference":
        return columns[_id(value)]
    if _kind(value) == "Cast" and _kind(value.child()) == "AttributeReference":
        column, before = columns[_id(value.child())]
        after = str(value.dataType().simpleString())
        if (before, after) in _LOSSLESS:
            return column, after
    raise _Computed


def _kind(node: Any) -> str:
    """The class of a node of a plan, or of an expression."""
    return str(node.getClass().getSimpleName())


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(place) for place in range(sequence.size()))


def _schema(schema: Any) -> StructType:
    return StructType.fromJson(json.loads(schema.json()))


def _ranges(spark: SparkSession, scan: Any, *, is_fixed: bool) -> Iterator[FileRange]:
    """The files as Spark cuts them, in the order of its partitions."""
    partitioned, runtime = scan.relation().partitionSchema(), java_class(spark, "scala.runtime.ScalaRunTime")
    is_delta = scan.relation().fileFormat().getClass().getName() == _DELTA
    for partition in _each(scan.inputRDDs().apply(0).filePartitions()):
        files = partition.files()
        if is_fixed or partitioned.size():
            yield from (_range(file, partitioned, is_fixed=is_fixed, is_delta=is_delta) for file in files)
            continue
        # One call for all files: each call takes as long as reading some hundred rows.
        found = _FILE.findall(str(runtime.stringOf(files)))
        if len(found) != len(files):
            raise NotAScan("its files cannot be told from Spark's plan")
        for path, start, end in found:
            yield FileRange(path_of(path), int(start), int(end))


def _range(file: Any, partitioned: Any, *, is_fixed: bool, is_delta: bool) -> FileRange:
    """is_delta: the file never changes, and the time that Spark has for it is that of a log."""
    start = int(file.start())
    of_directory = file.partitionValues()
    values = tuple(
        _value(of_directory.get(place, field.dataType()), str(field.dataType().typeName()))
        for place, field in enumerate(_each(partitioned))
    )
    size = int(file.fileSize()) if is_fixed else None
    modified_ms = int(file.modificationTime()) if is_fixed and not is_delta else None
    path = path_of(str(file.filePath().toString()))
    return FileRange(path, start, start + int(file.length()), values, size, modified_ms)


def _value(value: Any, type: str) -> Any:
    """A value of Spark's inside as Arrow takes it. type: Spark's name of its type."""
    if value is None or type in _PLAIN_TYPES:
        return value
    if type == "string":
        return str(value)
    raise NotAScan(f"its directories name a column of type {type}")


def path_of(url: str) -> str:
    """A file on a disk that Spark's tasks see, or in a bucket of S3."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return unquote(parts.path)
    if parts.scheme in _S3:
        return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"
    raise NotAScan(f"its files are in {parts.scheme}://{parts.netloc}, and neither on a disk nor in S3")


def buckets_of(ranges: Iterable[FileRange], spark: SparkSession) -> tuple[Root, ...]:
    """The buckets of the files, with the settings that Spark has for them."""
    named = {each.path.split("/", 3)[2]: each.path.split("/", 1)[0] for each in ranges if not each.path.startswith("/")}
    return tuple(Root(f"{scheme}//{name}", _options(name, spark)) for name, scheme in named.items())


def _options(bucket: str, spark: SparkSession) -> dict[str, str]:
    """What opens a bucket. Nothing but Spark's own settings: this process may be allowed more than Spark is."""
    address = object_address(f"s3a://{bucket}")
    assert address is not None
    options = store_options(address, {}, spark.sparkContext._jsc.hadoopConfiguration().get)
    if "secret_access_key" not in options:
        raise NotAScan(f"Spark's settings have no keys of the bucket {bucket}")
    return options
