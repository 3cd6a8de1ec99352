"""The sources of streaming tables: what Spark would refuse later is refused when declared.

``source_names``: a streaming DataFrame's sources in a few words, since Spark's errors seldom name the server or table.

Also analyses the failure of a source: the known facts of each error in the chain that Spark, or Upriver, has raised.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from upriver.coordinator.sources import SourceFailure, SourceFault, judge
from upriver.errors import DeclarationError, LakeInUse, UpriverError, UserError
from upriver.spark.session import java_class
from upriver.state.runs import checksum_of

CHAIN_MAX = 10
"""Errors of a chain that are examined; Java's chains may be circular."""
_AFTER_THE_MESSAGE = ("\n\nJVM stacktrace:", "\n=== Streaming Query ===", "\n\nDriver stacktrace:", "\n\tat ")
"""The text that follows the message, in Spark's errors."""
_NEAREST = "most recent failure: "
"""The text before the cause, in the error of a failed job."""


def failure_of(error: BaseException, place: str = "") -> SourceFailure:
    """The meaning of an error that has ended a source. place: where Spark writes for the source, completes its
    message."""
    if isinstance(error, UpriverError):
        return SourceFailure(one_line(str(error)), isinstance(error, UserError | LakeInUse))
    return judge(list(_chain(error)), place)


def failure_of_query(query: StreamingQuery, place: str = "") -> SourceFailure | None:
    """The error that ended a query; ``None`` if no error has ended it. place: as for :func:`failure_of`.

    ``query.exception()`` would lose the class and the condition of each Java error that PySpark has no class for:
    Kafka's, Delta's, and most of Spark's.
    """
    raised = query._jsq.exception()
    return judge(list(_java_chain(raised.get())), place) if raised.isDefined() else None


def one_line(text: str) -> str:
    """A message without stacks, plans, or line breaks."""
    for mark in _AFTER_THE_MESSAGE:
        text = text.partition(mark)[0]
    return " ".join(text.rpartition(_NEAREST)[2].split())


def _chain(error: BaseException) -> Iterator[SourceFault]:
    """From the outermost error to its cause. Spark's Python errors hide the Java errors that they stand for."""
    node: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if node is None:
            return
        if (origin := _origin(node)) is not None:
            yield from _java_chain(origin)
            return
        wrapped: BaseException | None = getattr(node, "_cause", None)
        if wrapped is None:
            yield SourceFault(type(node).__name__, None, None, one_line(str(node)))
        node = wrapped or node.__cause__


def _origin(error: BaseException) -> Any:
    """The Java exception that a Python one stands for; ``None`` if there is none."""
    return error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)


def _java_chain(exception: Any) -> Iterator[SourceFault]:
    for _ in range(CHAIN_MAX):
        if exception is None:
            return
        is_spark = is_instance_of(SparkContext._gateway, exception, "org.apache.spark.SparkThrowable")
        yield SourceFault(
            kind=str(exception.getClass().getName()),
            condition=exception.getCondition() if is_spark else None,
            sql_state=exception.getSqlState() if is_spark else None,
            text=one_line(exception.getMessage() or ""),
        )
        exception = exception.getCause()


_SPARK_SQL = "org.apache.spark.sql"
_ACCEPTED = ("processingTime", "availableNow", "once")
_FORMS = "{'processingTime': '1 second'}, {'availableNow': True} or {'once': True}"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
"""Spark's setting that makes it check what a streaming query may do."""


def check_stream(name: str, rows: DataFrame) -> None:
    """Raise DeclarationError for a streaming DataFrame that Spark cannot give batch by batch, with added rows only; and
    for one with a watermark that would have no effect."""
    if (watermark := _unused_watermark(rows._jdf.queryExecution().analyzed(), is_used=False)) is not None:
        raise DeclarationError(
            f"table {name!r}: {watermark} has no effect on a table, which takes every row, however late. Leave it out; "
            f"retain= of app.table() drops old rows. A later version will use it"
        )
    if rows.sparkSession.conf.get(_CHECK, "true") != "true":
        return
    checker = java_class(rows.sparkSession, f"{_SPARK_SQL}.catalyst.analysis.UnsupportedOperationChecker")
    append = java_class(rows.sparkSession, f"{_SPARK_SQL}.streaming.OutputMode").Append()
    try:
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), append)
    except PySparkException as error:
        raise DeclarationError(
            f"table {name!r}: Spark cannot append the rows of this streaming DataFrame: {_first_line(error)} "
            f"Declare the table on the rows that come in, and aggregate, sort or limit them in a view's SQL"
        ) from None


_USE_WATERMARKS = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
"""Spark's operators that keep a state for a stream, by the watermark of what they read; also a join of two streams."""


def _unused_watermark(plan: Any, is_used: bool) -> str | None:
    """The first watermark in a streaming plan that no operator of Spark uses, as the user wrote it; ``None`` without
    one. is_used: by an operator above. Spark itself drops those of DataFrames that are not streaming."""
    kind = str(plan.getClass().getSimpleName())
    if kind == "EventTimeWatermark" and not is_used:
        return f"withWatermark({plan.eventTime().name()!r}, {str(plan.delay())!r})"
    parts = plan.children()
    children = [parts.apply(place) for place in range(parts.size())]
    is_used |= kind in _USE_WATERMARKS or (kind == "Join" and all(child.isStreaming() for child in children))
    return next((found for child in children if (found := _unused_watermark(child, is_used)) is not None), None)


def check_trigger(name: str, rows: DataFrame, trigger: object) -> Mapping[str, Any]:
    """The trigger as it was given; empty for ``None``. Raises DeclarationError, with the accepted forms."""
    if trigger is None or trigger == {}:
        return {}
    what = f"table {name!r}: trigger={trigger!r}"
    if not isinstance(trigger, Mapping):
        raise DeclarationError(f"{what}: give a dict: {_FORMS}")
    if not rows.isStreaming:
        raise DeclarationError(f"{what}: a DataFrame that is not streaming has no trigger")
    if len(trigger) != 1 or next(iter(trigger)) not in _ACCEPTED:
        raise DeclarationError(f"{what}: give one of {_FORMS}")
    try:
        rows.writeStream.trigger(**trigger)
    except (PySparkException, TypeError, ValueError) as error:
        raise DeclarationError(f"{what}: {_first_line(error)} Give one of {_FORMS}") from None
    return trigger


def _first_line(error: Exception) -> str:
    """What Spark says, without its plan and stack."""
    return f"{str(error).strip().split(chr(10))[0].removesuffix(';').rstrip('. ')}."


_SERVERS = ("kafka.bootstrap.servers",)
_FILE_LIMITS = ("maxfilespertrigger", "maxbytespertrigger")
"""Options of Spark's source of files that bound a batch, in lower case."""
_THINGS = ("subscribe", "subscribePattern", "assign", "path")
"""Options of readers that name a source. Other options may hold secrets: they are not shown, and kept as a digest."""
NAMED_MAX = 3
"""Sources of one DataFrame that are named."""


def source_names(rows: DataFrame) -> str:
    """The topics with their servers, and the paths, that a streaming DataFrame reads; empty if its plan has none."""
    named = dict.fromkeys(name for _, options in _sources(rows) if (name := _name(options)))
    return ", ".join(list(named)[:NAMED_MAX])


def takes_all_files(rows: DataFrame, trigger: Mapping[str, Any]) -> bool:
    """Whether each batch of a streaming DataFrame takes all files that are there when it is planned."""
    has_limit = any(limit in options for _, options in _sources(rows) for limit in _FILE_LIMITS)
    return not has_limit and "availableNow" not in trigger


def source_digest(rows: DataFrame) -> str:
    """A digest of what a streaming DataFrame reads: of each source its format, and its topics and servers, or its path.

    Of a source without these options, all options count. Two DataFrames of one digest read the same.
    """
    return checksum_of(
        json.dumps(sorted((kind, sorted(_telling(options))) for kind, options in _sources(rows))).encode()
    )


def _telling(options: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The options that say what is read."""
    named = [(name, options[name].rstrip("/")) for name in (*_SERVERS, *map(str.lower, _THINGS)) if name in options]
    return named or options.items()


def _sources(rows: DataFrame) -> Iterator[tuple[str, dict[str, str]]]:
    """For each streaming source of a DataFrame: its format, and its reader's options, whose names are in lower case."""
    converters = java_class(rows.sparkSession, "scala.jdk.javaapi.CollectionConverters")
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in (leaves.apply(place) for place in range(leaves.size())):
        match str(leaf.getClass().getSimpleName()):
            case "StreamingRelationV2":
                yield str(leaf.sourceName()), _lower(leaf.extraOptions().asCaseSensitiveMap())
            case "StreamingRelation":
                yield str(leaf.dataSource().className()), _lower(converters.asJava(leaf.dataSource().options()))
            case kind if leaf.isStreaming():
                yield kind, {}


def _lower(options: Any) -> dict[str, str]:
    names = options.keySet().toArray()  # PySpark takes the end of an iterator of Java's for a failure
    return {str(names[place]).lower(): str(options[names[place]]) for place in range(len(names))}


def _name(options: dict[str, str]) -> str:
    thing = next((options[name.lower()] for name in _THINGS if name.lower() in options), "")
    server = next((options[name] for name in _SERVERS if name in options), "")
    return f"{thing} at {server}" if server else thing
