"""The clauses of a SELECT as written. A clause that no view may contain is refused before names are resolved."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.plan.source import IGNORED, Source, ignored_parts
from upriver.sql.grouping_sets import Sets, read_sets
from upriver.sql.scope import ScopeColumn

_SORTED = "Say in the same query which rows come first: ORDER BY ... LIMIT k."
_CLAUSES = {
    # What sqlglot calls the part of a SELECT: the word it begins with, and what to do instead.
    "sort": ("SORT", _SORTED),
    "distribute": ("DISTRIBUTE", _SORTED),
    "cluster": ("CLUSTER", _SORTED),
}
END = frozenset({"order", "limit", "offset"})
"""The parts that end a query."""
_READ = END | {"expressions", "from_", "joins", "laterals", "where", "group", "having", "qualify", "distinct", "with_"}
COUNT_MAX = 1_000_000_000
"""The most rows that LIMIT or OFFSET may count."""
_VARIABLE = re.compile(r"\$\{[^\s}]+\}")


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One output column. name: its alias, or the name of the column as written; ``None``: Spark chooses it.

    renamed: whether the name is an alias. window: the whole window, if the column is one; ``node`` is its start then.
    """

    node: exp.Expr
    name: str | None
    renamed: bool = False
    window: ScopeColumn | None = None

    def is_named(self, name: str) -> bool:
        return self.name is not None and self.name.lower() == name.lower()


@dataclass(frozen=True, slots=True)
class Clauses:
    """A SELECT, clause by clause. table: ``None`` without FROM. sets: the grouping sets, whose expressions are among
    those of ``group``; ``None`` if there is but one. part: which rows, if not all."""

    items: tuple[SelectItem, ...]
    table: exp.Expr | None
    joins: tuple[exp.Join, ...]
    laterals: tuple[exp.Lateral, ...]
    where: exp.Expr | None
    group: tuple[exp.Expr, ...]
    sets: Sets | None
    having: exp.Expr | None
    qualify: exp.Expr | None
    distinct: bool
    part: "Part | None"


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a query's rows: so many (``None``: all) behind so many others, in this order. Rows that tie in it, or all
    if it is empty, are in the order of all their columns."""

    order: tuple[exp.Ordered, ...]
    limit: int | None
    offset: int


def read_clauses(source: Source, select: exp.Select) -> Clauses:
    """Raises UnsupportedSql for any clause that is not supported, with its place."""
    only(source, select, _READ)
    table = select.args.get("from_")
    where, group, having, qualify = (select.args.get(part) for part in ("where", "group", "having", "qualify"))
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise source.unsupported(distinct, "DISTINCT ON", "Use ROW_NUMBER() in a subquery.")
    grouped, sets = ((), None) if group is None else read_sets(source, group)
    return Clauses(
        items=tuple(_item(node) for node in select.expressions),
        table=None if table is None else table.this,
        joins=tuple(select.args.get("joins") or ()),
        laterals=tuple(select.args.get("laterals") or ()),
        where=None if where is None else where.this,
        group=grouped,
        sets=sets,
        having=None if having is None else having.this,
        qualify=None if qualify is None else qualify.this,
        distinct=distinct is not None,
        part=read_part(source, select),
    )


def only(source: Source, query: exp.Expr, parts: Collection[str]) -> None:
    """Refuse a query that has anything but these parts."""
    for part, value in query.args.items():
        if part not in parts and value not in (None, False, []):
            word, instead = _CLAUSES.get(part, (part.strip("_").upper(), "Leave it out."))
            first = _first(value)
            at = source.keyword(word, first)
            raise source.unsupported(first if at is None else at, word, instead)


def read_part(source: Source, query: exp.Expr) -> Part | None:
    """ORDER BY, LIMIT and OFFSET of a query; ``None`` if it keeps all rows."""
    order, limit, offset = (query.args.get(part) for part in ("order", "limit", "offset"))
    keeps_all = limit is None or (isinstance(limit, exp.Limit) and _is_all(limit.expression))
    count = None if keeps_all or limit is None else _count(source, "LIMIT", limit)
    skipped = 0 if offset is None else _count(source, "OFFSET", offset)
    if count is None and not skipped:
        return None
    return Part(() if order is None else tuple(order.expressions), count, skipped)


def _is_all(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column | exp.Var) and node.name.upper() == "ALL"


def _count(source: Source, word: str, node: exp.Expr) -> int:
    """The number behind LIMIT or OFFSET. Raises UnsupportedSql for any other expression."""
    count = node.expression if isinstance(node, exp.Limit | exp.Offset) else None
    least = int(word == "LIMIT")
    if not isinstance(count, exp.Literal) or count.is_string or not count.this.isdigit() or int(count.this) < least:
        raise source.unsupported(
            source.keyword(word, node), f"{word} by anything but a number", f"Give how many rows, {least} or more."
        )
    if int(count.this) > COUNT_MAX:
        raise source.unsupported(source.keyword(word, node), f"{word} by more than {COUNT_MAX}", "Give a lower number.")
    return int(count.this)


def without_ignored(source: Source, tree: exp.Expr) -> None:
    """Take out of the tree what changes no row. Raises UnsupportedSql for a LIMIT whose order another query gives."""
    for query in tree.find_all(exp.Select, exp.SetOperation, exp.Subquery):
        end = query.args.get("limit") or query.args.get("offset")
        if end is not None and query.args.get("order") is None:
            named = {table.name.lower() for table in query.find_all(exp.Table)}
            inner = [*_inside(query), *(cte for cte in tree.find_all(exp.CTE) if cte.alias.lower() in named)]
            if any(is_sorted(part) for part in inner):
                what = "LIMIT or OFFSET in the order of another query"
                raise source.unsupported(source.keyword("LIMIT", end) or end, what, _SORTED)
    for ignoring, part in list(ignored_parts(tree)):
        subquery = ignoring.args[part].find(exp.Select, exp.SetOperation) if part != "hint" else None
        if subquery is not None:
            instead = "Leave it out: a view has no order."
            raise source.unsupported(subquery, f"a subquery in {IGNORED[part]} without LIMIT", instead)
        ignoring.set(part, None)


def is_sorted(tree: exp.Expr) -> bool:
    """Whether a query in it sorts its rows."""
    return any(
        query.args.get(part) is not None
        for query in tree.find_all(exp.Select, exp.SetOperation, exp.Subquery)
        for part in IGNORED
        if part != "hint"
    )


def _inside(query: exp.Expr) -> Iterator[exp.Expr]:
    """The queries in its FROM and beneath it, and not those of its own end."""
    for part, value in query.args.items():
        nodes = value if isinstance(value, list) else [value]
        yield from (node for node in nodes if isinstance(node, exp.Expr) and part not in END)


def _first(value: object) -> exp.Expr | None:
    first = (value or [None])[0] if isinstance(value, list) else value
    return first if isinstance(first, exp.Expr) else None


def _item(node: exp.Expr) -> SelectItem:
    if isinstance(node, exp.Alias):
        return SelectItem(node.this, node.alias, renamed=True)
    named = isinstance(node, exp.Column) and not isinstance(node.this, exp.Star)
    return SelectItem(node, node.name if named else None)


# What sqlglot reads differently from Spark


def check_reading(source: Source, tree: exp.Expr) -> None:
    """Refuse syntax that sqlglot reads differently from Spark."""
    variable = _VARIABLE.search(source.sql)
    if variable is not None:
        what = f"{variable[0]}, in whose place Spark may put a setting,"
        raise source.unsupported(variable.start(), what, "Write what you mean, or concat('$', '{...') for the text.")
    for node in _mixed_bits(tree):
        raise source.unsupported(node, "&, ^, | and shifts in one expression", "Put parentheses around each.")


def check_words(source: Source) -> None:
    """Refuse Spark's pipes, which sqlglot turns into CTEs, and an operator that it cannot read."""
    for token in source.tokens():
        if token.token_type == TokenType.PIPE_GT:
            raise source.unsupported(token.start, "|>", "Write the query with SELECT.")
        if source.sql[token.start : token.end + 1] in (">", ">>") and source.sql.startswith(">>>", token.start):
            raise source.unsupported(token.start, ">>>", "Write shiftrightunsigned(a, n).")


_SHIFTS = (exp.BitwiseLeftShift, exp.BitwiseRightShift)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, *_SHIFTS)


def _mixed_bits(tree: exp.Expr) -> Iterator[exp.Expr]:
    """For Spark shifts bind closer than &, & closer than ^, and ^ closer than |; sqlglot takes them from left to
    right."""
    for node in tree.find_all(*_BITS):
        like = _SHIFTS if isinstance(node, _SHIFTS) else (type(node),)
        if any(isinstance(part, _BITS) and not isinstance(part, like) for part in (node.this, node.expression)):
            yield node
