"""Subqueries inside expressions, detached: names of the query around are bound without looking into them. Tests and
values of the clock are detached likewise.

A detached subquery is a call without a meaning of its own. Its operands are those of IN; those of a test are what it
compares the clock with, and the comparison as it is written. It remembers the subquery, and must be replaced by a
column before the expression is translated (:mod:`upriver.sql.subqueries`).
"""

from collections.abc import Iterator

from sqlglot import exp

from upriver.sql.clock import as_written, is_clock_test, is_clock_value, tested

_QUERY = "query"
ATTACHED = "attached"
"""Marks the column that has replaced a subquery, in its node's meta."""
_SPARE = "spare"
"""Marks the operand of a test of the clock that is the comparison as it is written."""


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
        if is_clock_test(node):
            inner.append(detach(as_written(node)))
            inner[-1].meta[_SPARE] = True
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
    nodes = root.walk(bfs=False, prune=lambda node: _SPARE in node.meta)
    return [node for node in nodes if isinstance(node, exp.Anonymous) and _QUERY in node.meta][::-1]


def written_of(call: exp.Expr) -> exp.Expr:
    """The comparison of a detached test of the clock as it is written, with its parts detached."""
    written: exp.Expr = call.expressions[-1].copy()
    del written.meta[_SPARE]
    return written


def query_of(call: exp.Expr) -> exp.Expr:
    """The detached subquery: EXISTS, IN, a query that is a value, or a test or a value of the clock."""
    query: exp.Expr = call.meta[_QUERY]
    return query


def without_tests(root: exp.Expr) -> exp.Expr:
    """A tree with each test of the clock as it is written, so that it needs no more than values of the clock. The tree
    is changed in place."""
    holder = exp.Paren(this=root)
    for call in detached(holder):
        if is_clock_test(query_of(call)):
            call.replace(written_of(call))
    found: exp.Expr = holder.this
    return found


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
    return is_query or isinstance(node, exp.Exists | exp.Subquery) or is_clock_test(node) or is_clock_value(node)
