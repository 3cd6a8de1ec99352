"""Asks Spark what a view's SQL means: the names and types of its columns, or what is wrong with it."""

import re
from collections.abc import Mapping

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.dataflow.plan import TableSpec
from upriver.errors import DeclarationError
from upriver.spark.schema import in_arrow

_ZONE = "spark.sql.session.timeZone"
_NEEDED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings under which our translation says what Spark says: Spark's defaults."""


class SparkTyper:
    """Types queries over ``tables``, which may grow meanwhile, in a session of its own: the user's stays as it is.

    Raises DeclarationError if the user's session is set so that SQL means something else to it than to us.
    """

    def __init__(self, spark: SparkSession, tables: Mapping[str, TableSpec]) -> None:
        for name, needed in _NEEDED.items():
            found = spark.conf.get(name)
            if str(found).lower() != needed.lower():
                raise DeclarationError(f"the Spark session has {name} = {found}; views need {needed}, Spark's default")
        self._zone = spark.conf.get(_ZONE) or "UTC"
        self._session = own_session(spark, self._zone)
        self._tables = tables
        self._known: dict[str, TableSpec] = {}

    @property
    def timezone(self) -> str:
        """The user's session's."""
        return self._zone

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema that Spark gives the query; timestamps in microseconds. ``sql`` must be a query, not a command.

        Raises DeclarationError in Spark's words.
        """
        self._register()
        try:
            return in_arrow(self._session.sql(sql).schema, self._zone)
        except PySparkException as error:
            raise DeclarationError(_words(error)) from error
        except TypeError as error:
            raise DeclarationError(f"a column's type cannot be had in Arrow: {error}") from error

    def _register(self) -> None:
        """Each table as an empty view of its schema."""
        for name, table in self._tables.items():
            if self._known.get(name) != table:
                schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
                self._session.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
                self._known[name] = table


def own_session(spark: SparkSession, timezone: str) -> SparkSession:
    """A session beside the user's, with no temporary views and settings of the user's."""
    session = spark.newSession()
    session.conf.set(_ZONE, timezone)
    return session


def _words(error: PySparkException) -> str:
    """Spark's message and the place, without the plan or the SQL behind it."""
    text = str(error).strip()
    return re.split(r";\n|\s*\n== SQL|\n\nJVM stacktrace", text, maxsplit=1)[0]
