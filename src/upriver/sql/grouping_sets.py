"""ROLLUP, CUBE and GROUPING SETS: each row once for each set, then one aggregate.

In the copy for a set, the grouping columns that the set lacks are NULL. Two more columns keep the groups of different
sets apart: the bits of ``grouping_id()``, and the number of the set, because a set may stand there twice. Arguments of
aggregates keep their values, also where they are grouping columns.

GROUP BY lists elements: a plain expression is one set, ROLLUP and the like are several. The sets of a list are all
combinations of one set of each element.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, combinations, product

import pyarrow as pa
from sqlglot import exp

from upriver.plan.column_names import quoted
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import Source
from upriver.sql.canonical import canonical
from upriver.sql.relations import Output, kept, projected, union
from upriver.sql.scalars import Context, column_scalar, construct, literal, null
from upriver.sql.scope import unique

Sets = tuple[tuple[exp.Expr, ...], ...]

SETS_MAX = 128
"""Grouping sets of one query. Each row is aggregated so many times."""
_KEYWORDS = {"rollup": "ROLLUP", "cube": "CUBE", "grouping_sets": "GROUPING SETS", "totals": "TOTALS"}
_FEWER = f"Write the sets that you need: GROUPING SETS (...), at most {SETS_MAX}."


def read_sets(source: Source, group: exp.Group) -> tuple[tuple[exp.Expr, ...], Sets | None]:
    """The expressions of GROUP BY, as written, and its grouping sets; ``None`` if there are no several sets."""
    if group.args.get("totals"):
        at = source.keyword("GROUP", group.expressions[0] if group.expressions else None)
        raise source.unsupported(at, "GROUP BY with TOTALS", "Write WITH ROLLUP.")
    behind = [(part, value[0]) for part in ("rollup", "cube", "grouping_sets") if (value := group.args.get(part))]
    plain = [part for node in group.expressions for part in _parts(node) if not _is_several(node)]
    if behind:
        part, node = behind[0]
        if len(behind) > 1 or len(plain) < len(group.expressions):
            raise source.unsupported(node, f"GROUP BY with {_KEYWORDS[part]} beside another", "Write them as a list.")
        groups = [(each,) for each in plain]
        sets = _sets(source, node) if part == "grouping_sets" else _several(part, groups)
        return (*plain, *chain.from_iterable(sets)), _checked(source, node, sets)
    if not any(map(_is_several, group.expressions)):
        return tuple(plain), None
    counts = [_sets(source, node) for node in group.expressions]
    total = 1
    for one in counts:
        total *= len(one)
    if total > SETS_MAX:
        raise source.unsupported(group.expressions[0], f"GROUP BY of {total} sets", _FEWER)
    found = tuple(tuple(chain.from_iterable(sets)) for sets in product(*counts))
    listed = [part for node in group.expressions for part in _flat(node)]
    return tuple(listed), _checked(source, group.expressions[0], found)


def _checked(source: Source, node: exp.Expr, sets: Sets) -> Sets:
    if len(sets) > SETS_MAX:
        raise source.unsupported(node, f"GROUP BY of {len(sets)} sets", _FEWER)
    return sets


def _is_several(node: exp.Expr) -> bool:
    return isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets)


def _parts(node: exp.Expr) -> list[exp.Expr]:
    """The expressions of ``(a, b)``, or of a node by itself."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this] if isinstance(node, exp.Paren) else [node]


def _flat(node: exp.Expr) -> Iterator[exp.Expr]:
    for part in node.expressions if _is_several(node) else _parts(node):
        yield from _flat(part) if _is_several(part) or isinstance(part, exp.Tuple) else _parts(part)


def _sets(source: Source, node: exp.Expr) -> Sets:
    """The sets of one element of GROUP BY."""
    if isinstance(node, exp.GroupingSets):
        return tuple(chain.from_iterable(_sets(source, part) for part in node.expressions))
    if not _is_several(node):
        return (tuple(_parts(node)),)
    if not node.expressions:
        raise source.unsupported(node, f"{construct(node)} of nothing", "Name its columns.")
    kind = "rollup" if isinstance(node, exp.Rollup) else "cube"
    if kind == "cube" and 1 << len(node.expressions) > SETS_MAX:
        raise source.unsupported(node, f"CUBE of {len(node.expressions)} columns", _FEWER)
    return _several(kind, [tuple(_parts(part)) for part in node.expressions])


def _several(kind: str, groups: Sequence[tuple[exp.Expr, ...]]) -> Sets:
    counts = range(len(groups), -1, -1)
    chosen = [groups[:count] for count in counts]
    if kind == "cube":
        chosen = [list(some) for count in counts for some in combinations(groups, count)]
    return tuple(tuple(chain.from_iterable(some)) for some in chosen)


class GroupingSets:
    """The sets of one query, bound. names: of the grouping columns, by their canonical forms, in order."""

    def __init__(
        self, rows: Context, sets: Sequence[Collection[exp.Expr]], names: Mapping[exp.Expr, str], taken: set[str]
    ) -> None:
        """taken: names that no column may have, lower case; the new names are added."""
        self._names = dict(names)
        self._sets = [frozenset(names[canonical(rows, node)] for node in one) for one in sets]
        self._bits = unique("grouping_id()", taken)
        self._number = unique("grouping set", taken)

    @property
    def is_whole(self) -> bool:
        """Whether they are one set of nothing: all rows are one group, over no rows, too."""
        return self._sets == [frozenset()] and not self._names

    @property
    def columns(self) -> tuple[str, str]:
        """The columns that keep the sets apart."""
        return self._bits, self._number

    def expanded(self, rows: Relation, place: int | None) -> Relation:
        """Each row once for each set. rows: have the grouping columns."""
        return union([self._copy(rows, number, place) for number in range(len(self._sets))], place)

    def leaf(self, context: Context, node: exp.Expr) -> Scalar | None:
        """The value of ``grouping(x)`` and ``grouping_id(...)``; ``None`` for any other node."""
        name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if name not in ("grouping", "grouping_id"):
            return None
        named = [self._names.get(canonical(context, operand)) for operand in node.expressions]
        if name == "grouping_id" and not node.expressions and self.is_whole:
            return literal(0, pa.int64())
        if name == "grouping_id" and named in ([], list(self._names.values())):
            return column_scalar(self._bits, pa.int64())
        if name == "grouping" and len(named) == 1 and named[0] is not None:
            bit = len(self._names) - 1 - list(self._names.values()).index(named[0])
            sql = f"CAST((({quoted(self._bits)} >> CAST({bit} AS BIGINT)) & CAST(1 AS BIGINT)) AS TINYINT)"
            return Scalar(sql, pa.int8(), nulls=frozenset())
        instead = "Name one column of GROUP BY in grouping(), and all of them, in order, or none in grouping_id()."
        raise context.source.wrong(node, f"{name}() of something else than the columns of GROUP BY", instead)

    def _copy(self, rows: Relation, number: int, place: int | None) -> Relation:
        grouped = set(self._names.values())
        lacking = grouped - self._sets[number]
        bits = 0
        for name in self._names.values():
            bits = bits << 1 | (name in lacking)
        outputs = [Output(one.name, null(one.value.type)) if one.name in lacking else one for one in kept(rows)]
        outputs.append(Output(self._bits, literal(bits, pa.int64())))
        outputs.append(Output(self._number, literal(number, pa.int32())))
        return projected(rows, outputs, place)
