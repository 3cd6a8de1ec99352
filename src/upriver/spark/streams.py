"""What may be a streaming table's DataFrame, and its trigger: what Spark refuses later is refused when declared."""

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from upriver.errors import DeclarationError

_ACCEPTED = ("processingTime", "availableNow", "once")
_FORMS = "{'processingTime': '1 second'}, {'availableNow': True} or {'once': True}"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
"""Spark's setting that has it check what a streaming query may do."""


def check_stream(name: str, rows: DataFrame) -> None:
    """Raise DeclarationError for a streaming DataFrame that Spark cannot give batch by batch, rows added alone."""
    jvm: Any = rows.sparkSession._jvm
    if rows.sparkSession.conf.get(_CHECK, "true") != "true":
        return
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    try:
        checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), append)
    except PySparkException as error:
        raise DeclarationError(
            f"table {name!r}: Spark cannot append the rows of this streaming DataFrame: {_first_line(error)} "
            f"Declare the table on the rows that come in, and aggregate, sort or limit them in a view's SQL"
        ) from None


def check_trigger(name: str, rows: DataFrame, trigger: object) -> Mapping[str, Any]:
    """The trigger as it was given; none, for ``None``. Raises DeclarationError, with the forms that are accepted."""
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
