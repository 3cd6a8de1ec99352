"""Subqueries inside expressions, detached: names of the query around are bound without looking into them. Tests of
the clock are detached likewise.

A detached subquery is a call without a meaning of its own. Its operands are those of IN, and what a test compares the
clock with. It remembers the subquery, and must be replaced by a column before the expression is translated
(:mod:`upriver.sql.subqueries`).
"""

from collections.abc import Iterator

from sqlglot import exp

from upriver.sql.clock import is_clock_test, tested

_QUERY = "query"
ATTACHED = "attached"
"""Marks the column that has replaced a subquery, in its node's meta."""


def detach(root: exp.Expr) -> exp.Expr:
    """The tree with each outermost subquery detached. The tree is changed in place."""
    holder = exp.Paren(this=root)
    for node in list(_outermost(holder)):
        operands: list[exp.Expr] = []
        if is_clock_test(node):
            operands = [tested(node)]
        elif isinstance(node, exp.In):
            operands = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
        inner = [detach(operand.copy()) for operand in operands]
        call = exp.Anonymous(this=f"subquery {node.sql('spark')}", expressions=inner)
        call.meta[_QUERY] = node
        first = next((part for part in node.walk() if "start" in part.meta), None)
        call.meta.update({} if first is None else first.meta)
        node.replace(call)
        call.meta[_QUERY] = node
    found: exp.Expr = holder.this
    return found


def detached(root: exp.Expr) -> list[exp.Anonymous]:
    """The detached subqueries in a tree, those in operands of others first."""
    return [node for node in root.find_all(exp.Anonymous, bfs=False) if _QUERY in node.meta][::-1]


def query_of(call: exp.Expr) -> exp.Expr:
    """The detached subquery: EXISTS, IN, a query that is a value, or a test of the clock."""
    query: exp.Expr = call.meta[_QUERY]
    return query


def has_subquery(root: exp.Expr) -> bool:
    """Whether there is a subquery in the tree, detached or not."""
    return next(_outermost(exp.Paren(this=root.copy())), None) is not None or bool(detached(root))


def _outermost(root: exp.Expr) -> Iterator[exp.Expr]:
    for node in root.walk(prune=_is_subquery):
        if _is_subquery(node):
            yield node


def _is_subquery(node: exp.Expr) -> bool:
    if isinstance(node, exp.In):
        return node.args.get("query") is not None
    is_query = isinstance(node, exp.Query) and node.parent is not None
    return is_query or isinstance(node, exp.Exists | exp.Subquery) or is_clock_test(node)
