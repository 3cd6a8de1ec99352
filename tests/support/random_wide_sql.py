"""Queries at random with subqueries as values, joins without an equality or by shared names, grouping sets, and
comparisons with the clock; Spark and DuckDB read them the same way.

DuckDB has no ``now()`` of an epoch: :func:`at_instant` writes it out.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random

from random_expressions import COMPARISONS, LITERALS, Column, Expressions
from random_sql import Grammar, Query, as_list, shared_kinds
from random_tables import Kind

DISTANCES = (0, 5, 60)  # minutes
CLOCKED_SHARE = 0.15  # of the conditions that could compare with the clock
UNEQUAL_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ",", "CROSS JOIN")
NAMED_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")


def at_instant(duck: str, micros: int) -> str:
    """DuckDB's text with an instant, in microseconds since 1970, in place of the clock."""
    at = f"TIMESTAMP '{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f}'"
    return duck.replace("now()", at).replace("current_date()", f"CAST({at} AS DATE)")


class ClockedExpressions(Expressions):
    """Some of the conditions compare with the clock."""

    def condition(self, columns: Sequence[Column], depth: int = 2) -> str:
        moments = [column for column in columns if column.kind in (Kind.DAY, Kind.TIME)]
        if not moments or self._rng.random() > CLOCKED_SHARE:
            return super().condition(columns, depth)
        column = self._rng.choice(moments)
        sign = self._rng.choice("+-")
        clock = f"now() {sign} INTERVAL '{self._rng.choice(DISTANCES)}' MINUTE"
        if column.kind is Kind.DAY:
            clock = f"current_date() {sign} {self._rng.randint(0, 2)}"
        left, right = self._rng.choice([(column.name, clock), (clock, column.name)])
        comparison = self._rng.choice([one for one in COMPARISONS if "DISTINCT" not in one])
        return f"({left} {comparison} {right})"


class WideGrammar(Grammar):
    """Makes queries of more kinds than :class:`Grammar`."""

    def __init__(self, sources: Sequence[Query], rng: Random) -> None:
        super().__init__(sources, rng)
        self._expressions = ClockedExpressions(rng)

    def _productions(self, source: Query, depth: int, is_last: bool) -> list[Callable[[], Query]]:
        return [
            *super()._productions(source, depth, is_last),
            lambda: self._valued(source, self._other(depth)),
            lambda: self._valued(source, self._other(depth)),
            lambda: self._apart(source, self._other(depth)),
            lambda: self._named(source, self._other(depth)),
            lambda: self._sets(source),
            lambda: self._total(source),
        ]

    def _total(self, source: Query) -> Query:
        """One row, over no rows, too."""
        counted = [self._aggregate(source.exact(), is_last=False) for _ in range(self._rng.randint(1, 3))]
        where = self._maybe("WHERE", self._expressions.condition(source.exact()))
        having = self._maybe("HAVING", self._having(source.exact()))
        return self._made(f"SELECT {as_list(counted)} FROM ({{0}}) s {where} {having}", counted, source)

    def _valued(self, source: Query, other: Query) -> Query:
        """Subqueries as values: of the SELECT list, in WHERE, in HAVING."""
        mine = [column.of("l") for column in source.exact()]
        theirs = [column.of("r") for column in other.exact()]
        spark, duck, column = self._value(mine, theirs)
        form = self._rng.choice(["select", "where", "having", "having"])
        if form == "select":
            chosen = self._selected(mine, self._rng.randint(1, 2))
            where = self._maybe("WHERE", self._expressions.condition(mine))
            head, tail = f"SELECT {as_list(chosen)}, ", f" AS {column.name} FROM ({{0}}) l {where}"
            columns = [*(one for _, one in chosen), column]
            return _both(head, spark, duck, tail, columns, source, other)
        if form == "where":
            test = self._tested(column.kind)
            chosen = self._selected(mine, self._rng.randint(1, 3))
            more = self._maybe(self._rng.choice([" AND", " OR"]), self._expressions.condition(mine))
            head, tail = f"SELECT {as_list(chosen)} FROM ({{0}}) l WHERE ", f"{test}{more}"
            return _both(head, spark, duck, tail, [one for _, one in chosen], source, other)
        spark, duck, column = self._value([], theirs)
        counted = self._aggregate(mine, is_last=False)
        grouped = (self._rng.choice(mine).name, Column(self._name(), Kind.INT))
        kind = next(one.kind for one in mine if one.name == grouped[0])
        chosen = [(grouped[0], Column(grouped[1].name, kind)), counted]
        head = f"SELECT {as_list(chosen)} FROM ({{0}}) l GROUP BY {grouped[0]} HAVING "
        return _both(head, spark, duck, self._tested(column.kind), [one for _, one in chosen], source, other)

    def _tested(self, kind: Kind) -> str:
        """What makes a condition of a value before it."""
        if kind is Kind.FLAG and self._rng.random() < 0.7:
            return self._rng.choice(["", " IS NOT NULL", " IS DISTINCT FROM true"])
        literal = self._rng.choice(LITERALS[kind])
        return f" {self._rng.choice(COMPARISONS)} {literal}"

    def _value(self, mine: Sequence[Column], theirs: Sequence[Column]) -> tuple[str, str, Column]:
        """A subquery over ``r``, source 1, with a value for each row of ``l``. mine: columns it may depend on."""
        equal = self._correlation(mine, theirs)
        filters = [one for one in (equal, self._maybe("", self._expressions.condition(theirs)).strip()) if one]
        where = f"WHERE {' AND '.join(filters)}" if filters else ""
        kinds = [column.kind for column in mine if any(column.kind is other.kind for other in theirs)]
        if kinds and self._rng.random() < 0.35:
            kind = self._rng.choice(kinds)
            left = self._rng.choice([column.name for column in mine if column.kind is kind])
            right = self._rng.choice([column.name for column in theirs if column.kind is kind])
            word = self._rng.choice(["IN", "NOT IN"])
            text = f"{left} {word} (SELECT {right} FROM ({{1}}) r {where})"
            # Spark reads NOT of it, or of a column made of it, as NOT IN or IN, which is another question.
            return f"(({text}) IS TRUE)", f"(({text}) IS TRUE)", Column(self._name(), Kind.FLAG)
        if self._rng.random() < 0.25:
            word = self._rng.choice(["", "NOT "])
            text = f"({word}EXISTS (SELECT 1 FROM ({{1}}) r {where}))"
            return text, text, Column(self._name(), Kind.FLAG)
        call, column = self._aggregate(theirs, is_last=False)
        text = f"(SELECT {call} FROM ({{1}}) r {where})"
        return text, text, column

    def _correlation(self, mine: Sequence[Column], theirs: Sequence[Column]) -> str:
        pairs = [(left, right) for left in mine for right in theirs if left.kind is right.kind]
        if not pairs or self._rng.random() < 0.4:
            return ""
        left, right = self._rng.choice(pairs)
        comparison = self._rng.choice(["=", "=", "=", "IS NOT DISTINCT FROM", "<", ">=", "<>"])
        first, second = self._rng.choice([(left, right), (right, left)])
        return f"{first.name} {comparison} {second.name}"

    def _apart(self, left: Query, right: Query) -> Query:
        """A join whose condition has no equality that both sides' rows are sorted by."""
        kind = self._rng.choice(UNEQUAL_JOINS)
        lefts, rights = [c.of("l") for c in left.exact()], [c.of("r") for c in right.exact()]
        pairs = [(one, other) for one in lefts for other in rights if one.kind is other.kind]
        conditions = [self._expressions.condition([*lefts, *rights])]
        if pairs:
            one, other = self._rng.choice(pairs)
            conditions.append(f"{one.name} {self._rng.choice(['<', '<=', '>', '>=', '<>'])} {other.name}")
        if len(pairs) > 1 and self._rng.random() < 0.3:
            one, other = self._rng.choice(pairs)
            conditions.append(f"({one.name} = {other.name} OR {conditions[0]})")
        on = " AND ".join(self._rng.sample(conditions, self._rng.randint(1, len(conditions))))
        kept = lefts if kind in ("SEMI JOIN", "ANTI JOIN") else [*lefts, *rights]
        chosen = self._selected(kept, self._rng.randint(1, 4))
        join = f"({{0}}) l {kind} ({{1}}) r ON {on}"
        if kind == "CROSS JOIN" or kind == ",":
            join = f"({{0}}) l {kind} ({{1}}) r {self._maybe('WHERE', on)}"
        return self._made(f"SELECT {as_list(chosen)} FROM {join}", chosen, left, right)

    def _named(self, left: Query, right: Query) -> Query:
        """A join by the names that both sides have."""
        kinds = shared_kinds(left, right)
        if not kinds:
            return self._rows(left)
        keys = [Column(self._name("k"), self._rng.choice(kinds)) for _ in range(self._rng.randint(1, 2))]
        sides: list[str] = []
        others: list[list[Column]] = []
        for side in (left, right):
            values = [(self._rng.choice(side.exact(key.kind)).name, key) for key in keys]
            more = self._selected(side.exact(), self._rng.randint(1, 2))
            sides.append(f"(SELECT {as_list([*values, *more])} FROM ({{{len(sides)}}}) s)")
            others.append([column for _, column in more])
        kind = self._rng.choice(NAMED_JOINS)
        names = ", ".join(key.name for key in keys)
        join = f"{sides[0]} l {kind} {sides[1]} r USING ({names})"
        if self._rng.random() < 0.4 and "SEMI" not in kind and "ANTI" not in kind:
            join = f"{sides[0]} l NATURAL {kind} {sides[1]} r"
        kept = [*keys, *others[0], *([] if kind in ("SEMI JOIN", "ANTI JOIN") else others[1])]
        chosen = self._selected(kept, self._rng.randint(1, 4))
        where = self._maybe("WHERE", self._expressions.condition(kept))
        return self._made(f"SELECT {as_list(chosen)} FROM {join} {where}", chosen, left, right)

    def _sets(self, source: Query) -> Query:
        """Grouping sets, each of some of two or three columns."""
        columns = source.exact()
        by = self._rng.sample(columns, min(len(columns), self._rng.randint(1, 3)))
        groups = [self._rng.sample(by, self._rng.randint(0, len(by))) for _ in range(self._rng.randint(1, 3))]
        groups.append(by)
        texts = ", ".join(f"({', '.join(column.name for column in group)})" for group in groups)
        counted = [self._aggregate(columns, is_last=False) for _ in range(self._rng.randint(1, 2))]
        flags = [(f"grouping({self._rng.choice(by).name})", Column(self._name(), Kind.INT))]
        chosen = [(column.name, Column(self._name(), column.kind)) for column in by]
        if self._rng.random() < 0.5:
            chosen += [(f"CAST({text} AS INT)", column) for text, column in flags]
        chosen += counted
        where = self._maybe("WHERE", self._expressions.condition(columns))
        having = "HAVING count(*) > 0"  # DuckDB has a total of no rows, too
        sql = f"SELECT {as_list(chosen)} FROM ({{0}}) s {where} GROUP BY GROUPING SETS ({texts}) {having}"
        return self._made(sql, chosen, source)


def _both(head: str, spark: str, duck: str, tail: str, columns: Sequence[Column], source: Query, other: Query) -> Query:
    return Query(
        f"{head}{spark}{tail}".format(source.spark, other.spark),
        f"{head}{duck}{tail}".format(source.duck, other.duck),
        tuple(columns),
    )
