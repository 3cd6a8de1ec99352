"""Names of a query's columns that the query does not name: as PostgreSQL, or as Spark gives them.

DuckDB would call them by the SQL that it evaluates, as in ``count_star()``.
"""

import re
from collections.abc import Callable

from sqlglot import exp
from sqlglot.errors import ErrorLevel

NAMELESS = "?column?"
"""PostgreSQL's name of an expression that has none."""
_CALL = re.compile(r"([A-Za-z_]\w*)\(")
_OWN_NAMES: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Case, "case"),
    (exp.Array, "array"),
    (exp.GroupConcat, "string_agg"),
    (exp.TimestampTrunc, "date_trunc"),
    (exp.TimeToStr, "to_char"),
    (exp.CurrentDate, "current_date"),
    (exp.CurrentTime, "current_time"),
    (exp.CurrentTimestamp, "now"),
    (exp.CurrentUser, "current_user"),
    (exp.SessionUser, "session_user"),
    (exp.CurrentSchema, "current_schema"),
    (exp.CurrentCatalog, "current_catalog"),
    (exp.AtTimeZone, "timezone"),
    (exp.Interval, "interval"),
    (exp.Substring, "substring"),
    (exp.Trim, "btrim"),
    (exp.Boolean, "bool"),
)
"""What PostgreSQL calls them, where sqlglot writes them in another way."""
_TYPE_NAMES = {
    "INT": "int4",
    "BIGINT": "int8",
    "SMALLINT": "int2",
    "DOUBLE": "float8",
    "FLOAT": "float4",
    "BOOLEAN": "bool",
    "DECIMAL": "numeric",
    "CHAR": "bpchar",
    "VARBINARY": "bytea",
}
"""PostgreSQL's own names of types, by sqlglot's, where they differ."""


def with_names(tree: exp.Expr, name_of: Callable[[exp.Expr], str]) -> exp.Expr:
    """The query, in which each expression of a SELECT has a name. Columns and stars keep theirs."""
    for select in tree.find_all(exp.Select):
        named = [_named(each, name_of) for each in select.expressions]
        select.set("expressions", named)
    return tree


def _named(item: exp.Expr, name_of: Callable[[exp.Expr], str]) -> exp.Expr:
    if isinstance(item, exp.Alias | exp.Aliases | exp.Column | exp.Star | exp.PropertyEQ) or item.is_star:
        return item
    return exp.Alias(this=item.copy(), alias=exp.to_identifier(name_of(item), quoted=True))


def postgres_name(item: exp.Expr) -> str:
    """As PostgreSQL names a column: a call by its function, a cast by what is cast or else by the type, a subquery by
    its column, and all else ``?column?``."""
    return _postgres_name(item) or NAMELESS


def _postgres_name(item: exp.Expr) -> str | None:
    if isinstance(item, exp.Column):
        return str(item.name)
    if isinstance(item, exp.Alias):
        return str(item.alias)
    if isinstance(item, exp.Paren | exp.Collate | exp.Bracket | exp.Filter | exp.Window | exp.WithinGroup):
        return _postgres_name(item.this)
    if isinstance(item, exp.Boolean):
        return "bool"
    if isinstance(item, exp.Cast):
        return _postgres_name(item.this) or _type_name(item.to)
    if isinstance(item, exp.Dot):
        return _postgres_name(item.expression)
    if isinstance(item, exp.Identifier):
        return str(item.name)
    if isinstance(item, exp.Subquery):
        inner = item.this.selects if isinstance(item.this, exp.Query) else []
        return _postgres_name(inner[0]) if inner else None
    if isinstance(item, exp.Exists):
        return "exists"
    if isinstance(item, exp.Case):
        default = item.args.get("default")
        return (None if default is None else _postgres_name(default)) or "case"
    if isinstance(item, exp.Binary | exp.Unary | exp.Predicate | exp.Literal | exp.Null) or _is_parameter(item):
        return None
    own = next((name for kind, name in _OWN_NAMES if isinstance(item, kind)), None)
    if own is not None:
        return own
    call = _CALL.match(item.sql("postgres"))
    return None if call is None else call[1].lower()


def _is_parameter(item: exp.Expr) -> bool:
    return isinstance(item, exp.Parameter | exp.Placeholder)


def _type_name(type: exp.DataType) -> str:
    name = type.this.name if isinstance(type.this, exp.DType) else type.sql("postgres")
    return _TYPE_NAMES.get(name, name.lower())


def spark_name(item: exp.Expr) -> str:
    """As Spark names a column: by its SQL, with operations in parentheses and columns without their table.
    ``count(*)`` is ``count(1)``."""
    item = item.copy()
    for node in reversed(list(item.walk())):  # what is inside comes first
        if (new := _spark_part(node)) is not node:
            item = new if node is item else item
            node.replace(new)
    return _spark_sql(item)


def _spark_sql(node: exp.Expr) -> str:
    return str(node.sql("spark", normalize_functions="lower", unsupported_level=ErrorLevel.IGNORE))


def _spark_part(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Paren):
        inner: exp.Expr = node.this
        return inner
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier):
        return exp.Var(this=node.name)
    if isinstance(node, exp.Star) and isinstance(node.parent, exp.Count):
        return exp.Literal.number(1)
    if isinstance(node, exp.Literal) and node.is_string:
        return exp.Var(this=node.name)
    is_operation = isinstance(node, exp.Binary | exp.Not | exp.Is | exp.In) and not isinstance(node, exp.Dot)
    # As text at once: so the tree is no deeper than one operation, however long a sum is.
    return exp.Var(this=f"({_spark_sql(node)})") if is_operation else node


def with_postgres_names(tree: exp.Expr) -> exp.Expr:
    """As PostgreSQL names the columns of a query, and of VALUES."""
    return _with_values_named(with_names(tree, postgres_name), "column", 1)


def with_spark_names(tree: exp.Expr) -> exp.Expr:
    """As Spark names the columns of a query, and of VALUES."""
    return _with_values_named(with_names(tree, spark_name), "col", 1)


def _with_values_named(tree: exp.Expr, prefix: str, first: int) -> exp.Expr:
    for values in tree.find_all(exp.Values):
        alias = values.args.get("alias")
        if values.expressions and (alias is None or not alias.columns):
            width = len(values.expressions[0].expressions)
            columns = [exp.to_identifier(f"{prefix}{number}") for number in range(first, first + width)]
            table = exp.to_identifier("values", quoted=True) if alias is None else alias.this
            values.set("alias", exp.TableAlias(this=table, columns=columns))
    return tree
