"""Queries at random of what Spark alone reads in its way: wide decimals, arrays with lambdas, and expressions that fail
on some rows, with a guard before them or without one."""

from collections.abc import Callable, Sequence

from random_expressions import COMPARISONS, Column
from random_sql import Query, as_list, shared_kinds
from random_tables import Kind
from random_wide_sql import WideGrammar

NUMBERS = (Kind.INT, Kind.LONG, Kind.MONEY)
GUARDED_SHARE = 0.8
DECIMALS = ("DECIMAL(38,10)", "DECIMAL(38,18)", "DECIMAL(20,10)", "DECIMAL(30,2)", "DECIMAL(38,0)")


class SparkGrammar(WideGrammar):
    """Makes queries for Spark; DuckDB's text of them means nothing."""

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
