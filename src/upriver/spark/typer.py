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
from upriver.spark.sql_settings import ZONE, checked_settings


class SparkTyper:
    """Types queries over ``tables``, which may grow meanwhile, in a session of its own: the user's stays as it is.

    Raises DeclarationError if the user's session is set so that SQL means something else to it than to us.
    """

    def __init__(self, spark: SparkSession, tables: Mapping[str, TableSpec]) -> None:
        self._users = spark
        self._zone = checked_settings(spark)[ZONE]
        self._session = own_session(spark, self._zone)
        self._tables = tables
        self._known: dict[str, TableSpec] = {}

    @property
    def timezone(self) -> str:
        """The user's session's, as pyarrow names it."""
        return self._zone

    def check_session(self) -> None:
        """Raise DeclarationError if SQL does not mean in the user's session what it meant at first."""
        now = checked_settings(self._users)[ZONE]
        if now != self._zone:
            raise DeclarationError(
                f"the Spark session has {ZONE} = {now}, and had {self._zone} when the app was made: set it back, or "
                f"make the app anew"
            )

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema that Spark gives the query; timestamps in microseconds. ``sql`` must be a query, not a command.

        Raises DeclarationError in Spark's words.
        """
        self.check_session()
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
    session.conf.set(ZONE, timezone)
    return session


def _words(error: PySparkException) -> str:
    """Spark's message and the place, without the plan or the SQL behind it."""
    text = str(error).strip()
    return re.split(r";\n|\s*\n== SQL|\n\nJVM stacktrace", text, maxsplit=1)[0]
