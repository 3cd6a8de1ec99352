"""Asks Spark what a query means: its analysed plan and the types of its columns, or its error."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NullType, StructType

from upriver.errors import DeclarationError, UnknownTable, UnsupportedSql, UserError
from upriver.plan.plan import TableSpec, UserFunction
from upriver.plan.source import Source
from upriver.spark.analysed_plans import PlanWalker
from upriver.spark.schema import in_arrow, parts
from upriver.spark.session import ZONE, check_session, checked_settings, java_class, unlogged
from upriver.spark.user_functions import check_function_name, register_functions
from upriver.sql.views import Analysed

FILES_AS_TABLES = "spark.sql.runSQLOnFiles"
"""Spark's setting by which ``FROM parquet.`path` `` reads a file. To analyse that, Spark would open it."""
_MEASURED_FROM = 4
"""The fewest bits of registers that Spark's approx_count_distinct has."""
_A_QUERY = "A view is one query: SELECT ... FROM ..."

FUNCTIONS_LENT_MAX = 1_000
"""Functions of the user's session that the session for queries knows."""

View = str | DataFrame
"""A view that others may read: its SQL, or its definition."""


class SparkAnalyser:
    """Analyses queries over ``tables`` and views, with ``functions``, in a session of its own: the user's stays as it
    is. Tables and functions may grow meanwhile.

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
        self._tables = tables
        self._known: dict[str, TableSpec | str | DataFrame] = {}
        """The temporary views of the session: tables, and views by their SQL or as DataFrames."""
        self._known_functions: dict[str, UserFunction] = {}
        self._lent: list[str] = []
        """The functions of the user's session that the session for queries knows."""

    @property
    def timezone(self) -> str:
        """The time zone of the user's session, as pyarrow names it; as it was at first, even if the session has
        changed."""
        return self._asked()[1] if self._first is None else self._first[1]

    @property
    def session(self) -> SparkSession:
        """The session for queries, as it was at first, even if the user's has changed."""
        return self._asked()[0] if self._first is None else self._first[0]

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

    @cached_property
    def _walker(self) -> PlanWalker:
        return PlanWalker(self._users)

    def analysed(self, name: str, sql: str, views: Mapping[str, View]) -> Analysed:
        """The query of a view of this name. Arguments and errors as of :meth:`frame_of`, and of
        :meth:`analysed_frame`."""
        return self._of_frame(self.frame_of(name, sql, views), name, sql)

    def condition(self, table: str, sql: str) -> Analysed:
        """The rows of a table for which a condition is true. Raises as :meth:`analysed`, with the place in ``sql``."""
        _check_written_out(Source("", sql))
        try:
            session, _ = self._asked()
            self._register(session, {})
            with unlogged():
                frame = session.table(f"`{table}`").where(sql)
        except PySparkException as error:
            raise self._refusal("", error, {}) from error
        return self._of_frame(frame, "", sql)

    def analysed_frame(self, frame: DataFrame, name: str, sql: str) -> Analysed:
        """A DataFrame that is the view of this name. sql: its text. Raises DeclarationError in Spark's words for what
        its rules refuse; UnsupportedSql for a type that a view cannot have."""
        self._asked()
        return self._of_frame(frame, name, sql)

    def _of_frame(self, frame: DataFrame, name: str, sql: str) -> Analysed:
        """The same, where the user's settings have been checked."""
        columns = _typed(Source(name, sql), frame.schema, self.timezone)
        try:
            with unlogged():
                return Analysed(columns, self._walker.text_of(frame, sql))
        except PySparkException as error:
            raise self._refusal(name, error, {}) from error
        except Py4JJavaError as error:
            raise _as_refusal(Source(name, sql), error) from error

    def frame_of(self, name: str, sql: str, views: Mapping[str, View]) -> DataFrame:
        """The query of a view of this name, as a DataFrame of the session for queries. views: those that it may read:
        their SQL, or their DataFrames.

        Raises DeclarationError in Spark's words, with its place in ``sql``; UnsupportedSql for what is no query, which
        Spark would run at once, and for a function of the user's own.
        """
        session, _ = self._asked()
        source = Source(name, sql)
        _check_written_out(source)
        try:
            self._register(session, views)
            with unlogged():
                statement = self._walker.statement(session, sql)
                if not statement:
                    return self._read(session, sql)
        except PySparkException as error:
            raise self._refusal(name, error, views) from error
        except Py4JJavaError as error:
            raise _as_refusal(source, error) from error
        raise source.unsupported(0, f"a statement that is no query ({statement})", _A_QUERY)

    def _read(self, session: SparkSession, sql: str) -> DataFrame:
        """The query, with the functions of the user's session that it calls. Raises PySparkException."""
        for name in self._lent:
            self._walker.lend(self._users, session, name)
        while True:
            try:
                return session.sql(sql)
            except PySparkException as error:
                name = (error.getMessageParameters() or {}).get("routineName", "").replace("`", "")
                is_new = error.getCondition() == "UNRESOLVED_ROUTINE" and name not in self._lent
                may_lend = is_new and len(self._lent) < FUNCTIONS_LENT_MAX
                if not may_lend or not self._walker.lend(self._users, session, name):
                    raise
                self._lent.append(name)

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured of approx_count_distinct with so many bits of registers: the greatest number that it
        counts by unused registers, raw estimates, and by how much each is too high; empty for bits without measures."""
        measured = java_class(self._users, "org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper")
        place = bits - _MEASURED_FROM
        if place >= len(measured.THRESHOLDS()):
            return ()
        found = measured.RAW_ESTIMATE_DATA()[place], measured.BIAS_DATA()[place]
        return (measured.THRESHOLDS()[place], *(number for part in found for number in part))

    def check_name(self, what: str, name: str) -> None:
        """Refuse a name that Spark reads as a word of its grammar in ``FROM name AS alias``: ``FROM stream s``.

        what: a table or a view, for the message. Raises DeclarationError.
        """
        session, _ = self._asked()
        for words in (f"FROM {name}", f"FROM {name} s"):
            try:
                with unlogged():
                    session.sql(f"WITH `{name}` AS (SELECT 1 AS one) SELECT one {words}")
            except PySparkException:
                raise DeclarationError(
                    f"{what} {name!r} cannot be read by that name: in {words} it is a word of SQL's grammar. Give it "
                    f"another name, as {name}_rows"
                ) from None

    def check_function(self, name: str) -> None:
        """Refuse a name that SQL reads as anything but a function of the user's. Raises DeclarationError."""
        session, _ = self._asked()
        check_function_name(session, name)

    def _refusal(self, view: str, error: PySparkException, views: Mapping[str, View]) -> UserError:
        """The error for a query that Spark refuses: a mistake, unless it is about a function of the user's."""
        begin = f"view {view!r}: " if view else ""
        parameters = error.getMessageParameters() or {}
        place = re.search(r"; (line \d+) pos (\d+)", str(error))
        where = f"{place[1]}, column {int(place[2]) + 1}: " if place else ""
        name = parameters.get("routineName", "").replace("`", "")
        if error.getCondition() == "UNRESOLVED_ROUTINE" and self._users.catalog.functionExists(name):
            what = f"the function {name}(), which is registered in the Spark session,"
            return UnsupportedSql(f"{begin}{where}{what} is not supported. Declare it by app.function().")
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            table = parameters.get("relationName", "").replace("`", "")
            known = ", ".join(sorted([*self._tables, *views])) or "none"
            return UnknownTable(f"{begin}{where}no table or view {table!r} is declared; there are: {known}")
        return DeclarationError(f"{begin}{_words(error)}")

    def _register(self, session: SparkSession, views: Mapping[str, View]) -> None:
        """Each table and view as a temporary view, and each function."""
        new = {name: one for name, one in self.functions.items() if self._known_functions.get(name) != one}
        register_functions(session, new.values())
        self._known_functions |= new
        for name in [name for name in self._known if name not in self._tables and name not in views]:
            session.catalog.dropTempView(name)
            del self._known[name]
        for name, table in self._tables.items():
            if self._known.get(name) != table:
                self._rows_of(session, table).createOrReplaceTempView(f"`{name}`")
                self._known[name] = table
        for name, view in views.items():
            if self._known.get(name) is not view:
                frame = session.sql(view) if isinstance(view, str) else view
                frame.createOrReplaceTempView(f"`{name}`")
                self._known[name] = view

    def _rows_of(self, session: SparkSession, table: TableSpec) -> DataFrame:
        if self._leaf is not None:
            return self._leaf(table.name, table.schema)
        return session.createDataFrame([], from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _as_refusal(source: Source, error: Exception) -> Exception:
    """The refusal of SQL whose parts are nested too deeply for Spark itself; the error otherwise."""
    if "StackOverflowError" not in str(error):
        return error
    return source.unsupported(None, "SQL nested as deeply as this", "Compute it in steps.")


def _check_written_out(source: Source) -> None:
    """Raises UnsupportedSql for a variable, for which Spark would put a setting of the session at once."""
    if "${" in source.sql:
        raise source.unsupported(source.sql.index("${"), "a ${variable} of the session", "Write its value.")


def _typed(source: Source, schema: StructType, zone: str) -> pa.Schema:
    """The columns in Arrow's terms. Raises UnsupportedSql for a type that Arrow or DuckDB lacks, such as that of
    ``array()``, with a part of nothing but NULL."""
    for field in schema:
        what = f"the column {field.name}, {field.dataType.simpleString().upper()}"
        inside = list(parts(field.dataType))
        is_bare = isinstance(field.dataType, NullType) and field.nullable
        if not is_bare and any(isinstance(one, NullType) for one in inside):
            instead = "Give it a type, as in CAST(array() AS ARRAY<INT>)."
            raise source.unsupported(None, f"{what}, with a part of nothing but NULL,", instead)
        if any(isinstance(one, StructType) and not one.fields for one in inside):
            raise source.unsupported(None, f"{what}, a struct without fields,", "Leave it out.")
        if any(isinstance(one, StructType) and len(set(one.names)) < len(one.names) for one in inside):
            instead = "Give each a name of its own, as in named_struct('a', x, 'b', y)."
            raise source.unsupported(None, f"{what}, a struct with two fields of one name,", instead)
        try:
            in_arrow(StructType([field]), zone)
        except TypeError as error:
            raise source.unsupported(None, what, "Leave it out, or CAST it to another type.") from error
    return in_arrow(schema, zone)


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
