"""Queries at random of what Spark reads in its way.

:class:`WideGrammar` has subqueries as values, joins without an equality or by shared names, grouping sets, and
comparisons with the clock. :class:`SparkGrammar` has also wide decimals, arrays with lambdas, and expressions that fail
on some rows, with a guard before them or without one.
"""

from collections.abc import Callable, Sequence
from random import Random

from random_expressions import COMPARISONS, LITERALS, Column, Expressions
from random_sql import Grammar, Query, as_list, shared_kinds
from random_tables import Kind

DISTANCES = (0, 5, 60)  # minutes
CLOCKED_SHARE = 0.15  # of the conditions that could compare with the clock
UNEQUAL_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ",", "CROSS JOIN")
NAMED_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
NUMBERS = (Kind.INT, Kind.LONG, Kind.MONEY)
GUARDED_SHARE = 0.8
DECIMALS = ("DECIMAL(38,10)", "DECIMAL(38,18)", "DECIMAL(20,10)", "DECIMAL(30,2)", "DECIMAL(38,0)")


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
        value, column = self._value(mine, theirs)
        form = self._rng.choice(["select", "where", "having", "having"])
        if form == "select":
            chosen = self._selected(mine, self._rng.randint(1, 2))
            where = self._maybe("WHERE", self._expressions.condition(mine))
            chosen.append((value, column))
            return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) l {where}", chosen, source, other)
        if form == "where":
            test = self._tested(column.kind)
            chosen = self._selected(mine, self._rng.randint(1, 3))
            more = self._maybe(self._rng.choice([" AND", " OR"]), self._expressions.condition(mine))
            sql = f"SELECT {as_list(chosen)} FROM ({{0}}) l WHERE {value}{test}{more}"
            return self._made(sql, chosen, source, other)
        value, column = self._value([], theirs)
        counted = self._aggregate(mine, is_last=False)
        grouped = (self._rng.choice(mine).name, Column(self._name(), Kind.INT))
        kind = next(one.kind for one in mine if one.name == grouped[0])
        chosen = [(grouped[0], Column(grouped[1].name, kind)), counted]
        having = f"HAVING {value}{self._tested(column.kind)}"
        sql = f"SELECT {as_list(chosen)} FROM ({{0}}) l GROUP BY {grouped[0]} {having}"
        return self._made(sql, chosen, source, other)

    def _tested(self, kind: Kind) -> str:
        """What makes a condition of a value before it."""
        if kind is Kind.FLAG and self._rng.random() < 0.7:
            return self._rng.choice(["", " IS NOT NULL", " IS DISTINCT FROM true"])
        literal = self._rng.choice(LITERALS[kind])
        return f" {self._rng.choice(COMPARISONS)} {literal}"

    def _value(self, mine: Sequence[Column], theirs: Sequence[Column]) -> tuple[str, Column]:
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
            return f"(({text}) IS TRUE)", Column(self._name(), Kind.FLAG)
        if self._rng.random() < 0.25:
            word = self._rng.choice(["", "NOT "])
            text = f"({word}EXISTS (SELECT 1 FROM ({{1}}) r {where}))"
            return text, Column(self._name(), Kind.FLAG)
        call, column = self._aggregate(theirs, is_last=False)
        text = f"(SELECT {call} FROM ({{1}}) r {where})"
        return text, column

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
        sql = f"SELECT {as_list(chosen)} FROM ({{0}}) s {where} GROUP BY GROUPING SETS ({texts})"
        return self._made(sql, chosen, source)


class SparkGrammar(WideGrammar):
    """Makes queries of which some fail on some rows."""

    def _productions(self, source: Query, depth: int, is_last: bool) -> list[Callable[[], Query]]:
        numbers = source.exact(*NUMBERS)
        productions = super()._productions(source, depth, is_last)
        productions += [lambda: self._elements(source), lambda: self._collected(source)]
        productions += [lambda: self._failing_join(source, self._other(depth))]
        if numbers:
            productions += [lambda: self._decimals(source, numbers), lambda: self._summed(source, numbers)]
        if numbers or source.exact(Kind.TEXT):
            productions += [lambda: self._failing(source)] * 2
        return productions

    # Decimals

    def _decimals(self, source: Query, numbers: Sequence[Column]) -> Query:
        chosen = [(self._decimal(numbers), Column(self._name(), Kind.MONEY)) for _ in range(self._rng.randint(1, 2))]
        chosen += self._selected(source.exact(), 1)
        where = self._maybe("WHERE", f"{self._decimal(numbers)} {self._rng.choice(COMPARISONS)} 1.5")
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s {where}", chosen, source)

    def _decimal(self, numbers: Sequence[Column]) -> str:
        """An expression with the types that Spark's rules for decimals shorten."""
        names = [f"CAST({column.name} AS DECIMAL(12,2))" for column in numbers]
        one, other = self._rng.choice(names), self._rng.choice(names)
        wide = f"CAST({one} AS {self._rng.choice(DECIMALS)})"
        forms = (
            f"{one} * (1 - {other}) * (1.25 + {one})",
            f"{one} / nullif({other}, 0)",
            f"{wide} * {other}",
            f"{wide} / 7",
            f"{wide} + {other} / 3",
            f"{wide} - {wide} * 0.1",
            f"{wide} % 3",
            f"round({wide} / 3, {self._rng.randint(0, 4)})",
            f"try_divide({wide}, {other})",
            f"coalesce({wide}, {other} * 1.000)",
            f"greatest({wide}, {other})",
        )
        return f"({self._rng.choice(forms)})"

    def _summed(self, source: Query, numbers: Sequence[Column]) -> Query:
        """Sums and averages of decimals, by group or over a window."""
        function = self._rng.choice(["sum", "avg", "min", "max", "sum", "avg"])
        call = f"{function}({self._decimal(numbers)})"
        by = self._selected(source.exact(), 1)
        if self._rng.random() < 0.3:
            call += f" OVER (PARTITION BY {self._rng.choice(source.exact()).name})"
            grouped = ""
        else:
            grouped = f"GROUP BY {by[0][0]}"
            call = self._rng.choice([call, f"{call} / count(*)", f"{call} * 0.5"])
        chosen = [*by, (call, Column(self._name(), Kind.MONEY))]
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s {grouped}", chosen, source)

    # Arrays

    def _array(self, columns: Sequence[Column], kind: Kind) -> str:
        names = [column.name for column in columns if column.kind is kind]
        return f"array({', '.join(self._rng.choice(names) for _ in range(self._rng.randint(1, 3)))})"

    def _elements(self, source: Query) -> Query:
        """What is computed of an array of a row's values."""
        columns = source.exact()
        kind = self._rng.choice(columns).kind
        chosen = [self._of_array(columns, kind) for _ in range(self._rng.randint(1, 2))]
        where = self._maybe("WHERE", f"array_contains({self._array(columns, kind)}, {self._one(columns, kind)})")
        chosen += self._selected(columns, 1)
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s {where}", chosen, source)

    def _one(self, columns: Sequence[Column], kind: Kind) -> str:
        return self._rng.choice([column.name for column in columns if column.kind is kind])

    def _of_array(self, columns: Sequence[Column], kind: Kind) -> tuple[str, Column]:
        array, one = self._array(columns, kind), self._one(columns, kind)
        test = self._expressions.condition([Column("x", kind)], 0)
        if "now()" in test or "current_date()" in test:
            test = "(x IS NOT NULL)"
        forms = [
            (f"size(filter({array}, x -> {test}))", Kind.INT),
            (f"exists({array}, x -> {test})", Kind.FLAG),
            (f"forall({array}, x -> {test})", Kind.FLAG),
            (f"size(array_distinct(transform({array}, (x, n) -> if(n = 0, x, {one}))))", Kind.INT),
            (f"aggregate({array}, 0, (n, x) -> n + if({test}, 1, 0))", Kind.INT),
            (f"try_element_at({array}, {self._rng.randint(1, 3)})", kind),
            (f"get(filter({array}, x -> {test}), 0)", kind),
            (f"array_position({array}, {one})", Kind.LONG),
            (f"array_max({array})", kind),
            (f"sort_array({array})[0]", kind),
            (f"size(array_except({array}, {self._array(columns, kind)}))", Kind.INT),
        ]
        text, found = self._rng.choice(forms)
        return text, Column(self._name(), found)

    def _collected(self, source: Query) -> Query:
        """What is computed of an array of a group's values."""
        columns = source.exact()
        by = self._selected(columns, 1)
        kind = self._rng.choice(columns).kind
        one = self._one(columns, kind)
        test = self._maybe("FILTER", f"(WHERE {self._expressions.condition(columns)})")
        forms = [
            (f"size(collect_list({one}) {test})", Kind.INT),
            (f"array_max(collect_set({one}) {test})", kind),
            (f"get(sort_array(collect_list({one}) {test}), 1)", kind),
            (f"size(filter(collect_list({one}) {test}, x -> x = x))", Kind.INT),
        ]
        text, found = self._rng.choice(forms)
        chosen = [*by, (text, Column(self._name(), found))]
        having = self._maybe("HAVING", self._having(columns))
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s GROUP BY {by[0][0]} {having}", chosen, source)

    # Expressions that fail

    def _failing(self, source: Query) -> Query:
        """In the SELECT list, in WHERE, or in an aggregate's operand."""
        columns = source.exact()
        value, kind, guard = self._risky(columns)
        is_guarded = self._rng.random() < GUARDED_SHARE
        form = self._rng.choice(["select", "case", "where", "sum", "outer"])
        column = (value, Column(self._name(), kind))
        kept = self._selected(columns, self._rng.randint(1, 2))
        where = f"WHERE {guard}" if is_guarded else ""
        if form == "case":
            text = f"CASE WHEN {guard} THEN {value} END" if is_guarded else f"if({guard}, NULL, {value})"
            return self._made(f"SELECT {as_list([*kept, (text, column[1])])} FROM ({{0}}) s", [*kept, column], source)
        if form == "where":
            test = f"{value} IS NOT NULL"
            where = f"WHERE {guard} AND {test}" if is_guarded else f"WHERE {test}"
            return self._made(f"SELECT {as_list(kept)} FROM ({{0}}) s {where}", kept, source)
        if form == "sum":
            counted = (f"max({value})", column[1])
            filtered = f"max({value}) FILTER (WHERE {guard})" if is_guarded else counted[0]
            sql = f"SELECT {as_list([kept[0], (filtered, column[1])])} FROM ({{0}}) s GROUP BY {kept[0][0]}"
            return self._made(sql, [kept[0], counted], source)
        sql = f"SELECT {as_list([*kept, column])} FROM ({{0}}) s {where}"
        if form == "outer":
            names = [(one.name, one) for one in columns]
            inner = f"SELECT {as_list([*names, column])} FROM ({{0}}) s"
            outer = [*kept, (column[1].name, Column(self._name(), kind))]
            return self._made(f"SELECT {as_list(outer)} FROM ({inner}) s {where}", outer, source)
        return self._made(sql, [*kept, column], source)

    def _risky(self, columns: Sequence[Column]) -> tuple[str, Kind, str]:
        """An expression that fails on some rows, what it is, and a condition of the rows on which it does not."""
        numbers = [column.name for column in columns if column.kind in (Kind.INT, Kind.LONG)]
        texts = [column.name for column in columns if column.kind is Kind.TEXT]
        moneys = [column.name for column in columns if column.kind is Kind.MONEY]
        forms = []
        if numbers:
            one, other = self._rng.choice(numbers), self._rng.choice(numbers)
            forms += [(f"({one} DIV {other})", Kind.LONG, f"{other} <> 0")]
            forms += [(f"({one} % {other})", Kind.LONG, f"{other} > 0")]
            forms += [(f"CAST(1 / {one} AS DOUBLE)", Kind.REAL, f"NOT {one} = 0")]
            forms += [(f"CAST({one} * 4000000000000000000L AS STRING)", Kind.TEXT, f"abs({one}) <= 2")]
            forms += [(f"CAST({one} AS TINYINT) + 1", Kind.INT, f"{one} BETWEEN -9 AND 9")]
        if texts:
            text = self._rng.choice(texts)
            forms += [(f"CAST({text} || '1' AS INT)", Kind.INT, f"length({text}) = 0")]
            forms += [(f"CAST({text} AS DATE)", Kind.DAY, f"{text} LIKE '2%'")]
        if moneys:
            money = self._rng.choice(moneys)
            forms += [(f"({money} / ({money} - 1.25))", Kind.MONEY, f"{money} <> 1.25")]
        return self._rng.choice(forms or [("1", Kind.INT, "true")])

    def _failing_join(self, left: Query, right: Query) -> Query:
        """In ON, besides an equality or alone."""
        lefts, rights = [c.of("l") for c in left.exact()], [c.of("r") for c in right.exact()]
        value, _, guard = self._risky(self._rng.choice([lefts, rights, [*lefts, *rights]]))
        conditions = [f"if({guard}, {value}, NULL) IS NOT NULL" if self._rng.random() < GUARDED_SHARE else value]
        if conditions[0] == value:
            conditions = [f"{value} IS NOT NULL"]
        if shared_kinds(left, right) and (equal := self._equal(left, right)):
            conditions.append(equal)
        kind = self._rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "ANTI JOIN"])
        chosen = self._selected(lefts if kind == "ANTI JOIN" else [*lefts, *rights], 3)
        sql = f"SELECT {as_list(chosen)} FROM ({{0}}) l {kind} ({{1}}) r ON {' AND '.join(conditions)}"
        return self._made(sql, chosen, left, right)
