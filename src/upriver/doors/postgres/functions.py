"""Functions that PostgreSQL writes in another way than DuckDB, or that mean something else there."""

import re
from collections.abc import Sequence

from sqlglot import exp

_PLACE = re.compile(r"%(?:(?P<number>\d+)\$)?(?P<kind>[sIL%])")
"""What ``format`` replaces in its text."""
_GROUP = re.compile(r"(?<!\\)\((?!\?)")
"""Where a regular expression has a group."""
_TRANSACTION_COLUMNS = frozenset(
    ("datfrozenxid", "relfrozenxid", "datminmxid", "relminmxid", "backend_xmin", "backend_xid", "transactionid")
)
"""Columns of the catalog that number transactions; the system's own are constants by now."""


def own_function(node: exp.Expr, above: exp.Expr | None, macro_prefix: str) -> exp.Expr:
    """The call as DuckDB takes it. above: what it stands in. macro_prefix: of the names of the door's macros."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "generate_series":  # with a schema: rows, too
        return (
            node
            if isinstance(above, exp.Table | exp.Lateral)
            else exp.Anonymous(this="unnest", expressions=[node.copy()])
        )
    if isinstance(node, exp.Format):
        return _formatted(node, macro_prefix)
    if isinstance(node, exp.Substring):
        return _matched(node)
    if isinstance(node, exp.Encode | exp.Decode):
        return _coded(node)
    if isinstance(node, exp.Host):
        inner: exp.Expr = node.this
        return inner
    if isinstance(node, exp.Anonymous) and node.name.lower() == "generate_subscripts" and node.expressions:
        count = exp.func("len", node.expressions[0])
        series = exp.Anonymous(this="generate_series", expressions=[exp.Literal.number(1), count])
        return exp.Anonymous(this="unnest", expressions=[series])
    if isinstance(node, exp.Anonymous) and node.name.lower() == "age" and _is_transaction(node.expressions):
        return exp.Anonymous(this=f"{macro_prefix}mxid_age", expressions=node.expressions)
    return node


def counted_from_one(index: exp.Expr) -> exp.Expr:
    """The place, or the places from one to another, in an array that PostgreSQL counts from 0."""
    if isinstance(index, exp.Slice):
        ends = {name: counted_from_one(end) for name, end in index.args.items() if isinstance(end, exp.Expr)}
        return exp.Slice(**ends)
    return exp.Add(this=exp.paren(index), expression=exp.Literal.number(1))


def with_column_names(tree: exp.Expr) -> exp.Expr:
    """The query in which the only column of a function after LATERAL is called as its table is, as in PostgreSQL."""
    for lateral in tree.find_all(exp.Lateral):
        alias = lateral.args.get("alias")
        if isinstance(lateral.this, exp.Func) and alias is not None and alias.this and not alias.columns:
            alias.set("columns", [alias.this.copy()])
    return tree


def _is_transaction(arguments: Sequence[exp.Expr]) -> bool:
    """Whether the argument of ``age`` is the number of a transaction, and no time."""
    if len(arguments) != 1:
        return False
    (value,) = arguments
    if isinstance(value, exp.Column):
        return value.name.lower() in _TRANSACTION_COLUMNS
    return isinstance(value, exp.Cast) and value.to.is_type(exp.DType.BIGINT)


def _formatted(node: exp.Format, macro_prefix: str) -> exp.Expr:
    """``format('%I.%s', a, b)``: parts of the text and the values between them."""
    if not isinstance(node.this, exp.Literal) or not node.this.is_string:
        return node
    values = list(node.expressions)
    text, parts, end, next_number = node.this.name, list[exp.Expr](), 0, 1
    for match in _PLACE.finditer(text):
        parts.append(exp.Literal.string(text[end : match.start()]))
        end = match.end()
        if match["kind"] == "%":
            parts.append(exp.Literal.string("%"))
            continue
        number = int(match["number"] or next_number)
        next_number = number + 1
        if not 0 < number <= len(values):
            return node
        value = exp.cast(values[number - 1].copy(), "VARCHAR", dialect="duckdb")
        if match["kind"] == "s":
            parts.append(exp.Coalesce(this=value, expressions=[exp.Literal.string("")]))
        else:
            name = "quote_ident" if match["kind"] == "I" else "quote_nullable"
            parts.append(exp.Anonymous(this=macro_prefix + name, expressions=[value]))
    parts.append(exp.Literal.string(text[end:]))
    found = parts[0]
    for part in parts[1:]:
        found = exp.DPipe(this=found, expression=part)
    return exp.Paren(this=found)


def _matched(node: exp.Substring) -> exp.Expr:
    """``substring(text FROM 'pattern')``: what the first group matches, or all of it; NULL if nothing does."""
    pattern = node.args.get("start")
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        return node
    group = exp.Literal.number(1 if _GROUP.search(pattern.name) else 0)
    extracted = exp.Anonymous(this="regexp_extract", expressions=[node.this.copy(), pattern.copy(), group])
    is_there = exp.Anonymous(this="regexp_matches", expressions=[node.this.copy(), pattern.copy()])
    return exp.Case(ifs=[exp.If(this=is_there, true=extracted)])


_CODED = {
    (exp.Encode, "hex"): ("lower", "hex"),
    (exp.Encode, "base64"): ("to_base64",),
    (exp.Decode, "hex"): ("unhex",),
    (exp.Decode, "base64"): ("from_base64",),
}
"""DuckDB's functions, the outer one first."""


def _coded(node: exp.Encode | exp.Decode) -> exp.Expr:
    """Bytes as a text, and back."""
    form = node.args.get("charset")
    value: exp.Expr = node.this
    if form is None or form.name.lower() == "escape":
        return exp.cast(value, "VARCHAR" if isinstance(node, exp.Encode) else "BLOB", dialect="duckdb")
    functions = _CODED.get((type(node), form.name.lower()))
    if functions is None:
        return node
    for function in reversed(functions):
        value = exp.Anonymous(this=function, expressions=[value])
    return value
