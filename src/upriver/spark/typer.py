"""Asks Spark what a view's SQL means: the names and types of its columns, or its error."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NullType, StructType

from upriver.errors import DeclarationError, UnknownTable, UnsupportedSql, UserError
from upriver.plan.plan import TableSpec, UserFunction
from upriver.plan.source import names_table
from upriver.spark.schema import in_arrow, parts
from upriver.spark.session import ZONE, check_session, checked_settings, java_class, unlogged
from upriver.spark.user_functions import check_function_name, register_functions

FILES_AS_TABLES = "spark.sql.runSQLOnFiles"
"""Spark's setting by which ``FROM parquet.`path` `` reads a file. To type that, Spark would open it."""
_MEASURED_FROM = 4
"""The fewest bits of registers that Spark's approx_count_distinct has."""


class SparkTyper:
    """Types queries over ``tables`` with ``functions``, which may grow meanwhile, in a session of its own: the user's
    stays as it is.

    The user's settings are checked at the first query and at each later one. Raises DeclarationError if SQL means
    something else under them than to Upriver.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Mapping[str, TableSpec],
        functions: Mapping[str, UserFunction] = MappingProxyType({}),
        leaf: Callable[[str, pa.Schema], DataFrame] | None = None,
    ) -> None:
        """functions: of the user's, by name in lower case. leaf: makes the leaf of a table with these columns, in the
        session for queries; without it queries read empty tables."""
        self.functions = functions
        self._leaf = leaf
        self._users = spark
        self._first: tuple[SparkSession, str] | None = None
        """The session for queries, and the user's time zone, as they were at first."""
        self._last: tuple[str, DataFrame] | None = None
        """The last query: an app that has its schema needs its rows, too."""
        self._tables = tables
        self._known: dict[str, TableSpec] = {}
        self._known_functions: dict[str, UserFunction] = {}

    @property
    def timezone(self) -> str:
        """The time zone of the user's session, as pyarrow names it; as it was at first, even if the session has
        changed."""
        return self._asked()[1] if self._first is None else self._first[1]

    @property
    def session(self) -> SparkSession:
        """The session for queries, as it was made at first."""
        return (self._first or self._asked())[0]

    def _asked(self) -> tuple[SparkSession, str]:
        """The session for queries, and its time zone. Raises DeclarationError if SQL means something else by now."""
        check_session(self._users)
        zone = checked_settings(self._users)[ZONE]
        if self._first is None:
            self._first = own_session(self._users, zone), zone
        if zone != self._first[1]:
            raise DeclarationError(
                f"the Spark session has {ZONE} = {zone}, and had {self._first[1]} when the app began: set it back, or "
                f"make the app anew"
            )
        return self._first

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema that Spark gives the query; timestamps in microseconds. ``sql`` must be a query, not a command.

        Raises DeclarationError in Spark's words, UnsupportedSql for a function of the user's own.
        """
        _, zone = self._asked()
        try:
            schema = self.frame_of(sql).schema
            _check_typed(schema)
            return in_arrow(schema, zone)
        except PySparkException as error:
            raise self._refusal(error) from error
        except TypeError as error:
            raise DeclarationError(f"a column's type cannot be had in Arrow: {error}") from error

    def frame_of(self, sql: str) -> DataFrame:
        """The query over the leaves of tables, as a DataFrame of the session for queries. Raises Spark's error."""
        session, _ = self._asked()
        if self._register(session):
            self._last = None
        if self._last is None or self._last[0] != sql:
            with unlogged():
                self._last = sql, session.sql(sql)
        return self._last[1]

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured of approx_count_distinct with so many bits of registers: the greatest number that it
        counts by unused registers, raw estimates, and by how much each is too high; empty for bits without measures."""
        measured = java_class(self._users, "org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper")
        place = bits - _MEASURED_FROM
        if place >= len(measured.THRESHOLDS()):
            return ()
        parts = measured.RAW_ESTIMATE_DATA()[place], measured.BIAS_DATA()[place]
        return (measured.THRESHOLDS()[place], *(number for part in parts for number in part))

    def check_name(self, what: str, name: str) -> None:
        """Refuse a name that Spark reads as a word of its grammar in ``FROM name AS alias``: ``FROM stream s``.

        what: a table or a view, for the message. Raises DeclarationError.
        """
        session, _ = self._asked()
        for words in (f"FROM {name}", f"FROM {name} s"):
            try:
                with unlogged():
                    session.sql(f"WITH `{name}` AS (SELECT 1 AS one) SELECT one {words}")
                is_name = names_table(words, name)
            except PySparkException:
                is_name = False
            if not is_name:
                raise DeclarationError(
                    f"{what} {name!r} cannot be read by that name: in {words} it is a word of SQL's grammar. Give it "
                    f"another name, as {name}_rows"
                )

    def check_function(self, name: str) -> None:
        """Refuse a name that SQL reads as anything but a function of the user's. Raises DeclarationError."""
        session, _ = self._asked()
        check_function_name(session, name)

    def _refusal(self, error: PySparkException) -> UserError:
        """The error for a query that Spark refuses: a mistake, unless it is about a function of the user's."""
        name = (error.getMessageParameters() or {}).get("routineName", "").replace("`", "")
        if error.getCondition() == "UNRESOLVED_ROUTINE" and self._users.catalog.functionExists(name):
            where = re.search(r"; (line \d+) pos \d+", str(error))
            what = f"the function {name}(), which is registered in the Spark session,"
            return UnsupportedSql(
                f"{where[1] if where else 'the query'}: {what} is not supported. Declare it by app.function()."
            )
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            table = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            where = re.search(r"; (line \d+) pos (\d+)", str(error))
            place = f"{where[1]}, column {int(where[2]) + 1}: " if where else ""
            return UnknownTable(f"{place}no table or view {table!r} is declared")
        return DeclarationError(_words(error))

    def _register(self, session: SparkSession) -> bool:
        """Each table as a temporary view, and each function. Returns whether any has changed."""
        before = dict(self._known), dict(self._known_functions)
        new = {name: one for name, one in self.functions.items() if self._known_functions.get(name) != one}
        register_functions(session, new.values())
        self._known_functions |= new
        for name in [name for name in self._known if name not in self._tables]:
            session.catalog.dropTempView(name)
            del self._known[name]
        for name, table in self._tables.items():
            if self._known.get(name) != table:
                if self._leaf is None:
                    rows = session.createDataFrame([], from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
                else:
                    rows = self._leaf(name, table.schema)
                rows.createOrReplaceTempView(f"`{name}`")
                self._known[name] = table
        return before != (self._known, self._known_functions)


def _check_typed(schema: StructType) -> None:
    """Raises UnsupportedSql for a type that Arrow lacks: that of ``array()``, with a part of nothing but NULL."""
    for field in schema:
        is_bare = isinstance(field.dataType, NullType) and field.nullable
        if not is_bare and any(isinstance(one, NullType) for one in parts(field.dataType)):
            named = field.dataType.simpleString().upper()
            raise UnsupportedSql(
                f"the column {field.name}, {named}, with a part of nothing but NULL, is not supported. "
                f"Give it a type, as in CAST(array() AS ARRAY<INT>)."
            )


def own_session(spark: SparkSession, timezone: str) -> SparkSession:
    """A session beside the user's, without the user's temporary views and settings."""
    session = spark.newSession()
    session.conf.set(ZONE, timezone)
    session.conf.set(FILES_AS_TABLES, "false")
    return session


def _words(error: PySparkException) -> str:
    """Spark's message and the place in one line, without the plan or the SQL behind it."""
    text = str(error).strip()
    return " ".join(re.split(r";\n|\s*\n== SQL|\n\nJVM stacktrace", text, maxsplit=1)[0].split())
