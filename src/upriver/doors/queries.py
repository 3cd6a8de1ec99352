"""Queries over views, as text: what they may be, which views they read, and by which keys.

A query is one SELECT. Keys that its WHERE names (``=``, ``IN``, ``= ANY``, ``IS NULL``, for all columns of a view's
key, combined by AND) make a lookup; any other view of the query is scanned. DuckDB evaluates the whole query over the
rows of either, so a condition that names no key is never lost.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Self

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope
from sqlglot.parser import Parser
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.spark import SparkParser

from upriver.doors.column_titles import with_postgres_names, with_spark_names
from upriver.doors.exact_numbers import check_numbers, plain_numbers, with_exact_texts
from upriver.errors import UnknownView, UnsupportedSql
from upriver.plan.column_names import quoted
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.plan.types import duck_name, is_instant, is_interval, is_nested
from upriver.protocol.lookups import ViewRoute, tables_by_view

QUERY_CHARS_MAX = 1 << 20
"""Characters of a query."""
QUERY_NODES_MAX = 100_000
"""Nodes of a query's syntax tree."""
QUERY_TOKENS_MAX = 2 * QUERY_NODES_MAX
"""Words and signs of a query: no fewer than a tree of so many nodes can have."""
PARSE_STEPS_MAX = 10
"""Steps that the parser may take for each token; real queries take 3. It tries a type's name before a bracket as a
type first, and then as a function: twice as many steps for each level, without an end."""
QUERY_DEPTH_MAX = 150
"""Levels of a query's syntax tree; a chain of AND or OR is one. Python follows about 200 of them before its stack is
full."""
QUERY_CTES_MAX = 100
"""CTEs of a query. Each scope of the query has a copy of the list of those before it."""
FROM_SOURCES_MAX = 100
"""Tables, subqueries and functions of one FROM. Each has a copy of the list of those before it."""
QUERY_SOURCES_MAX = 1_000
"""SELECTs of a query, subqueries included, and what they join."""
SCHEMAS = ("", "public", "main")
"""Schemas in which the views are."""

_CONSTANTS = (
    *(exp.Literal, exp.Null, exp.Boolean, exp.Neg, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam),
    *(exp.Parameter, exp.Placeholder, exp.Array),
)
_WRITES = (exp.DML, exp.DDL, exp.Command, exp.Into, exp.Drop, exp.Alter, exp.Set, exp.Pragma, exp.Use)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Like, exp.ILike, exp.Any)

_BEGINNING = re.compile(
    r"(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|\()*+(?:select|with|values|from|table|insert|update|delete|merge|create|drop|alter|set|use"
    r"|truncate|explain|describe|show)\b",
    re.IGNORECASE | re.DOTALL,
)
"""How statements begin, those that are refused for what they are included. Repetitions give nothing back, because
comments can be read in many ways: a long one before another word would take for ever."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@contextmanager
def depth_refused() -> Iterator[None]:
    """Raise UnsupportedSql in place of RecursionError, for what becomes deeper than the query was."""
    try:
        yield
    except RecursionError as error:
        raise UnsupportedSql(
            f"the query is nested too deeply: {QUERY_DEPTH_MAX} levels are taken, or fewer of LIKE, casts and the like"
        ) from error


_IsOf = Callable[[exp.Expr], bool]
"""Whether an expression is a column of the view whose keys are wanted."""


@dataclass(frozen=True, slots=True)
class ViewAccess:
    """How a query reads one view. keys: SQL of DuckDB that gives the named keys, a column for each of the view's key;
    ``None``: the view is scanned. enough: how many rows of a scan suffice; ``None``: all."""

    view: str
    keys: str | None
    enough: int | None = None


@dataclass(frozen=True)
class ViewQuery:
    """A query whose views are known. tree: in which each view has its own name, and no schema. routes: of its views.
    zone: in which it reads and writes times."""

    tree: exp.Query
    routes: Mapping[str, ViewRoute]
    zone: str = "UTC"

    @classmethod
    @depth_refused()
    def parse(cls, text: str, dialect: str, routes: Mapping[str, ViewRoute]) -> Self:
        """dialect: ``spark`` or ``postgres``. routes: of all views. Raises UnsupportedSql for anything but one SELECT
        over views, UnknownView."""
        return cls.of(_NAMES[dialect](parsed(text, dialect)), routes)

    @classmethod
    @depth_refused()
    def of(cls, tree: exp.Expr, routes: Mapping[str, ViewRoute], others: Collection[str] = ()) -> Self:
        """As :meth:`parse`. others: names of tables that the door adds."""
        query = _checked(tree)
        by_name = {name.lower(): name for name in routes}
        read: dict[str, ViewRoute] = {}
        for table in _tables(query):
            if table.name in others:
                continue
            name = by_name.get(table.name.lower())
            if name is None or table.db.lower() not in SCHEMAS:
                asked = table.name if table.db.lower() in SCHEMAS else f"{table.db}.{table.name}"
                raise UnknownView.among(asked, tables_by_view(routes))
            read[name] = routes[name]
            table.set("this", exp.to_identifier(name, quoted=True))
            table.set("db", None)
            table.set("catalog", None)
        for column in query.find_all(exp.Column):
            column.set("db", None)
            column.set("catalog", None)
        with_exact_texts(query, _columns_of(read))
        return cls(query, read, zone_of(routes))

    @cached_property
    @depth_refused()
    def sql(self) -> str:
        """As DuckDB takes it. Parameters are ``$1``, ``$2``, ..."""
        return self.tree.sql("duckdb")

    @cached_property
    @depth_refused()
    def accesses(self) -> tuple[ViewAccess, ...]:
        """How each view is read. A view that occurs several times is read once, by the keys of all occurrences."""
        named: dict[str, list[str | None]] = {}
        for scope in traverse_scope(self.tree):
            for alias, (_, source) in scope.selected_sources.items():
                if isinstance(source, exp.Table) and source.name in self.routes:
                    keys = _keys_in(scope, alias, self.routes[source.name])
                    named.setdefault(source.name, []).append(keys)
        return tuple(self._access(view, named.get(view, [None])) for view in self.routes)

    def _access(self, view: str, occurrences: Sequence[str | None]) -> ViewAccess:
        keys = [each for each in occurrences if each is not None]
        if len(keys) < len(occurrences):
            return ViewAccess(view, None, self._enough)
        return ViewAccess(view, " UNION ".join(keys))

    @property
    def _enough(self) -> int | None:
        """How many rows of the only view suffice, if the query takes its first rows as they are: ``SELECT a, b FROM v
        LIMIT 10``."""
        tree = self.tree
        if not isinstance(tree, exp.Select) or tree.find(
            exp.AggFunc, exp.Window, exp.Subquery, exp.Unnest, exp.Lateral
        ):
            return None
        others = {name for name, part in tree.args.items() if part} - {
            "kind",
            "expressions",
            "from_",
            "limit",
            "offset",
        }
        if others or any(isinstance(node, exp.Func) for node in tree.walk()):
            return None  # an unknown function may be an aggregate
        counts = [tree.args[part].expression for part in ("limit", "offset") if tree.args.get(part) is not None]
        if tree.args.get("limit") is None or not all(
            isinstance(count, exp.Literal) and count.is_int for count in counts
        ):
            return None
        return sum(int(count.name) for count in counts)

    def column_types(self, others: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """DuckDB's types of the views' columns, by name in lower case. others: of tables that the door adds."""
        return dict(others) | _columns_of(self.routes)

    def parameter_types(self, others: Mapping[str, str] = MappingProxyType({})) -> dict[int, str]:
        """DuckDB's types of parameters, by number, as far as the query shows them: beside a column, in a cast, in
        LIMIT. others: types of columns of tables that the door adds."""
        columns = self.column_types(others)
        found: dict[int, str] = {}
        for parameter in self.tree.find_all(exp.Parameter, exp.Placeholder):
            number = parameter_number(parameter)
            if number is not None and (type := _shown_type(parameter, columns)) is not None:
                found.setdefault(number, type)
        return found


def _columns_of(routes: Mapping[str, ViewRoute]) -> dict[str, str]:
    return {
        field.name.lower(): type
        for route in routes.values()
        for field in route.schema
        if (type := column_type(field.type)) is not None
    }


def parsed(text: str, dialect: str) -> exp.Expr:
    """The only statement of a text. Raises UnsupportedSql."""
    if len(text) > QUERY_CHARS_MAX:
        raise UnsupportedSql(f"a query of {len(text):,} characters: at most {QUERY_CHARS_MAX:,} are taken")
    if (surrogate := _SURROGATE.search(text)) is not None:
        raise UnsupportedSql(f"the query is not UTF-8: half a character of UTF-16 is at {surrogate.start()}")
    if dialect == "spark" and _BEGINNING.match(text) is None:
        raise UnsupportedSql(f"the query does not begin with SELECT or WITH: {text.strip()[:20]!r}")
    statements = [tree for tree in _trees(text, dialect) if tree is not None]
    if len(statements) != 1:
        raise UnsupportedSql(f"a query is one SELECT; {len(statements)} statements are given")
    _check_size(statements[0])
    check_numbers(statements[0])
    _escape_patterns(statements[0])
    if dialect == "postgres":
        plain_numbers(statements[0])
        return _postgres_division(statements[0])
    return _as_ansi(statements[0])


def _trees(text: str, dialect: str) -> list[exp.Expr | None]:
    """Of each statement. Raises UnsupportedSql, after so many steps as the text has tokens, times a bound."""
    spoken = Dialect.get_or_raise(dialect)
    try:
        tokens = spoken.tokenize(text)
        if len(tokens) > QUERY_TOKENS_MAX:
            raise UnsupportedSql(f"a query of {len(tokens):,} words and signs: at most {QUERY_TOKENS_MAX:,} are taken")
        parser = _PARSERS[dialect](dialect=spoken)
        parser.steps_left = PARSE_STEPS_MAX * (len(tokens) + 1)
        return parser.parse(tokens, text)
    except UnsupportedSql:
        raise
    except RecursionError as error:
        raise UnsupportedSql("the query cannot be parsed: it is nested too deeply") from error
    except Exception as error:  # sqlglot raises many kinds: IndexError for a function without arguments
        raise UnsupportedSql(f"the query cannot be parsed: {str(error).splitlines()[0]}") from error


class _BoundedParser(Parser):
    """A parser that refuses a text over which it would go back and forth for ever."""

    steps_left = 0

    def _advance(self, times: int = 1) -> None:  # the parser calls it whatever it tries again
        self.steps_left -= 1
        if self.steps_left < 0:
            raise UnsupportedSql(
                "the query cannot be parsed: names of types, or LATERAL, are nested too deeply in brackets"
            )
        super()._advance(times)


class _BoundedSparkParser(_BoundedParser, SparkParser):
    pass


class _BoundedPostgresParser(_BoundedParser, PostgresParser):
    pass


_PARSERS: Mapping[str, type[_BoundedParser]] = {"spark": _BoundedSparkParser, "postgres": _BoundedPostgresParser}


def _escape_patterns(tree: exp.Expr) -> None:
    """Let a backslash escape what follows it in a pattern of LIKE, as in Spark and PostgreSQL; DuckDB needs to be
    told."""
    for like in list(tree.find_all(exp.Like, exp.ILike)):
        if not isinstance(like.parent, exp.Escape):
            like.replace(exp.Escape(this=like.copy(), expression=exp.Literal.string("\\")))


def _check_size(tree: exp.Expr) -> None:
    """Refuse at once what DuckDB would refuse after long work of ours, or what takes much memory to resolve."""
    left = [(tree, 0)]
    nodes = ctes = sources = 0
    while left:
        node, depth = left.pop()
        nodes += 1
        ctes += isinstance(node, exp.CTE)
        joined = len(node.args.get("joins") or ()) + len(node.args.get("laterals") or ())
        sources += joined + isinstance(node, exp.Select)
        for name, count, most in (
            ("nodes", nodes, QUERY_NODES_MAX),
            ("CTEs in WITH", ctes, QUERY_CTES_MAX),
            ("tables and subqueries in one FROM", joined + 1, FROM_SOURCES_MAX),
            ("SELECTs and tables that they join", sources, QUERY_SOURCES_MAX),
        ):
            if count > most:
                raise UnsupportedSql(f"a query of more than {most:,} {name}")
        if depth > QUERY_DEPTH_MAX:
            raise UnsupportedSql(f"the query is nested too deeply: more than {QUERY_DEPTH_MAX} levels")
        is_chain = isinstance(node, exp.Connector)
        left += [(each, depth + (not is_chain or type(each) is not type(node))) for each in node.iter_expressions()]


_NAMES: Mapping[str, Callable[[exp.Expr], exp.Expr]] = {"spark": with_spark_names, "postgres": with_postgres_names}
"""What names the columns that a query does not name, by dialect."""


def _postgres_division(tree: exp.Expr) -> exp.Expr:
    """The query in which ``/`` of two whole numbers is one: DuckDB's ``//``, which divides other numbers as ``/`` does,
    but no intervals."""
    for node in reversed(list(tree.find_all(exp.Div))):
        if not (_is_of_time(node.this) or _is_of_time(node.expression)):
            node.replace(exp.IntDiv(this=node.this, expression=node.expression))
    return tree


def _is_of_time(value: exp.Expr) -> bool:
    return isinstance(value, exp.Interval) or (isinstance(value, exp.Cast) and value.to.is_type(exp.DType.INTERVAL))


def _as_ansi(tree: exp.Expr) -> exp.Expr:
    """The query in which a division by zero, and a CAST that cannot be, are errors, as in Spark 4; sqlglot takes
    them for NULL, as in Spark 3."""
    for division in tree.find_all(exp.Div):
        division.set("safe", False)
    for type in tree.find_all(exp.DataType):
        if type.is_type(exp.DType.DECIMAL) and not type.expressions:
            type.replace(exp.DataType.build("DECIMAL(10, 0)"))
    for node in reversed(list(tree.find_all(exp.TryCast))):
        if not node.args.get("safe"):
            node.replace(exp.Cast(this=node.this, to=node.to))
    return tree


def parameter_number(node: exp.Expr) -> int | None:
    """n of ``$n``; ``None`` for anything else."""
    is_numbered = isinstance(node, exp.Parameter | exp.Placeholder) and node.name.isdecimal()
    return int(node.name) if is_numbered else None


def column_type(type: pa.DataType) -> str | None:
    """DuckDB's name of a view's column type; ``None`` for nested types and intervals."""
    if is_nested(type) or is_interval(type):
        return None
    return "TIMESTAMPTZ" if is_instant(type) else duck_name(type)


def zone_of(routes: Mapping[str, ViewRoute]) -> str:
    """The zone of the views' times, all of one session; UTC if they have none."""
    types = (field.type for route in routes.values() for field in route.schema)
    return next((str(type.tz) for type in types if is_instant(type)), "UTC")


def _checked(tree: exp.Expr) -> exp.Query:
    """The query, if it only reads."""
    if isinstance(tree, exp.Values):
        tree = exp.select("*").from_(tree)
    for node in tree.walk():
        if isinstance(node, _WRITES):
            raise UnsupportedSql(f"{node.key.upper()}: views are only read here; a query is one SELECT")
    if not isinstance(tree, exp.Query):
        raise UnsupportedSql(f"{tree.key.upper()}: views are only read here; a query is one SELECT")
    for select in tree.find_all(exp.Select):
        select.set("locks", None)  # a reader needs no lock: its rows are as of one epoch
    return tree


def _tables(query: exp.Query) -> list[exp.Table]:
    """What the query reads besides its own CTEs and functions. Raises UnsupportedSql."""
    try:
        scopes = traverse_scope(query)
    except SqlglotError as error:
        raise UnsupportedSql(f"the query cannot be resolved: {error}") from error
    real = {id(source) for scope in scopes for source in scope.sources.values() if isinstance(source, exp.Table)}
    of_query = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    return [
        table
        for table in query.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier) and (id(table) in real or table.name.lower() not in of_query)
    ]


# Keys


def _keys_in(scope: Scope, alias: str, route: ViewRoute) -> str | None:
    """SQL of the keys that the WHERE of this scope names for one of its views; ``None`` if it leaves a column open."""
    key = route.key_schema
    if key == EVERYTHING_KEY:
        return 'SELECT 0 AS "()"'
    where = scope.expression.args.get("where")
    types = {field.name: type for field in key if (type := column_type(field.type)) is not None}
    if where is None or len(types) < len(key):
        return None
    is_of = partial(_is_column_of, scope, alias, frozenset(map(str.lower, route.schema.names)))
    left_open = {name.lower(): name for name in key.names}
    parts: list[str] = []
    for condition in _all_of(where.this):
        values = _named_values(condition, is_of)
        if values is None or not all(name in left_open for name in values.columns):
            continue
        if _is_joined(scope) and values.has_null:
            continue  # IS NULL also holds where an outer join has found no row
        named = [types[left_open[name]] for name in values.columns]
        if values.fits(named):
            parts.append(values.sql([left_open.pop(name) for name in values.columns], named, len(parts)))
    return None if left_open else f"SELECT {', '.join(map(quoted, key.names))} FROM {', '.join(parts)}"


def _is_joined(scope: Scope) -> bool:
    return bool(scope.expression.args.get("joins") or scope.expression.args.get("laterals"))


def _is_column_of(scope: Scope, alias: str, columns: frozenset[str], value: exp.Expr) -> bool:
    if not isinstance(value, exp.Column) or value.name.lower() not in columns:
        return False
    return value.table.lower() == alias.lower() if value.table else not _is_joined(scope)


def _all_of(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND combines."""
    condition = condition.unnest()
    if not isinstance(condition, exp.And):
        return [condition]
    return [part for each in condition.flatten() for part in _all_of(each)]


@dataclass(frozen=True, slots=True)
class _NamedValues:
    """Values that a condition names. columns: in lower case, each once. rows: constants, one for each column. array: of
    one column, a constant array instead of rows."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[exp.Expr]] = ()
    array: exp.Expr | None = None

    @property
    def has_null(self) -> bool:
        return any(isinstance(value.unnest(), exp.Null) for row in self.rows for value in row)

    def fits(self, types: Sequence[str]) -> bool:
        """Whether each value is equal to one key at most: ``text = 1`` compares numbers, and ``'1'`` and ``'1.0'`` are
        the same number; ``integer = 1e0`` compares doubles, and two large integers may be the same double."""
        rows = self.rows if self.array is None else [[element] for element in _elements(self.array)]
        return all(_is_of_one_key(value, type) for row in rows for value, type in zip(row, types, strict=True))

    def sql(self, names: Sequence[str], types: Sequence[str], place: int) -> str:
        """An item of FROM with these columns. A value that does not fit its type becomes NULL: the condition itself,
        evaluated over the rows, keeps what is right."""
        columns = ", ".join(map(quoted, names))
        if self.array is not None:
            array = self.array.sql("duckdb")
            return f"(SELECT unnest(TRY_CAST({array} AS {types[0]}[]))) AS k{place}({columns})"
        rows = (
            ", ".join(f"TRY_CAST({value.sql('duckdb')} AS {type})" for value, type in zip(row, types, strict=True))
            for row in self.rows
        )
        return f"(VALUES {', '.join(f'({row})' for row in rows)}) AS k{place}({columns})"


def _elements(array: exp.Expr) -> Sequence[exp.Expr]:
    """The values of a constant array, as far as they are in the query."""
    array = array.unnest()
    while isinstance(array, exp.Cast):
        array = array.this.unnest()
    return array.expressions if isinstance(array, exp.Array) else []


def _is_of_one_key(value: exp.Expr, type: str) -> bool:
    """Whether a constant is equal to at most one value of a column's type."""
    value = value.unnest()
    if isinstance(value, exp.Null | exp.Parameter | exp.Placeholder):  # a parameter has the column's type
        return True
    if isinstance(value, exp.Cast):
        is_text = value.to.is_type(*exp.DataType.TEXT_TYPES)
        is_float = value.to.is_type(exp.DType.DOUBLE, exp.DType.FLOAT)
        return is_text if type == "VARCHAR" else not is_float or type in ("DOUBLE", "FLOAT")
    if type == "VARCHAR":
        return isinstance(value, exp.Literal) and value.is_string
    number = value.this.unnest() if isinstance(value, exp.Neg) else value
    has_exponent = isinstance(number, exp.Literal) and not number.is_string and "e" in number.name.lower()
    return not has_exponent or type in ("DOUBLE", "FLOAT")


def _named_values(condition: exp.Expr, is_of: _IsOf) -> _NamedValues | None:
    """The values that a condition leaves for some columns of a view; ``None`` for another condition."""
    if isinstance(condition, exp.Or):
        return _of_alternatives([part.unnest() for part in condition.flatten()], is_of)
    left, right = condition.args.get("this"), condition.args.get("expression")
    if not isinstance(left, exp.Expr):
        return None
    if isinstance(condition, exp.In):
        return _of_rows(left, condition.expressions, is_of) if condition.expressions else None
    if not isinstance(right, exp.Expr):
        return None
    if isinstance(condition, exp.Is):
        return _of_rows(left, [right], is_of) if isinstance(right, exp.Null) else None
    if not isinstance(condition, exp.EQ):
        return None
    if isinstance(right, exp.Any):
        array = right.this.unnest()
        return _NamedValues((left.name.lower(),), array=array) if is_of(left) and _is_constant(array) else None
    return _of_rows(left, [right], is_of) or _of_rows(right, [left], is_of)


def _of_rows(left: exp.Expr, rows: Sequence[exp.Expr], is_of: _IsOf) -> _NamedValues | None:
    columns = left.expressions if isinstance(left, exp.Tuple) else [left]
    names = tuple(column.name.lower() for column in columns)
    if not all(map(is_of, columns)) or len(set(names)) < len(names):
        return None
    values = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in rows]
    fit = all(len(row) == len(names) and all(map(_is_constant, row)) for row in values)
    return _NamedValues(names, values) if fit else None


def _of_alternatives(parts: Sequence[exp.Expr], is_of: _IsOf) -> _NamedValues | None:
    """Of ``k = 1 OR k = 2 OR k IS NULL``: conditions on the same columns."""
    each = [values for part in parts if (values := _named_values(part, is_of)) is not None and values.array is None]
    if len(each) < len(parts) or any(values.columns != each[0].columns for values in each):
        return None
    return _NamedValues(each[0].columns, [row for values in each for row in values.rows])


def _is_constant(value: exp.Expr) -> bool:
    return all(isinstance(node, _CONSTANTS) for node in value.walk())


def _shown_type(parameter: exp.Expr, columns: Mapping[str, str]) -> str | None:
    """The type of a parameter by what is around it."""
    node: exp.Expr = parameter
    above = node.parent
    while isinstance(above, exp.Paren | exp.Tuple | exp.Neg):
        node, above = above, above.parent
    if isinstance(above, exp.Cast) and above.this is node:
        return str(above.to.sql("duckdb"))
    if isinstance(above, exp.Limit | exp.Offset):
        return "BIGINT"
    if isinstance(above, exp.Any):
        type = _shown_type(above, columns)
        return f"{type or 'VARCHAR'}[]"
    if isinstance(above, _COMPARISONS):
        types = [columns.get(column.name.lower()) for column in above.args.values() if isinstance(column, exp.Column)]
        return next((type for type in types if type is not None), None)
    return None
