"""Queries at random, as SQL text: a grammar over all that a view may contain and that Spark and DuckDB read the same
way.

A query is written twice, for Spark and for DuckDB; the two differ in windows of time, and in that DuckDB has the text
of a view where Spark has its name. Orders by which rows are numbered leave no ties.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from random_expressions import COMPARISONS, LITERALS, Column, Expressions
from random_tables import KEYS, SEQ, Kind, RandomTable

LEVELS_MAX = 3  # of queries within queries
SUMS = {Kind.INT: Kind.LONG, Kind.LONG: Kind.LONG, Kind.REAL: Kind.REAL, Kind.MONEY: Kind.MONEY}
AVERAGED = (Kind.INT, Kind.LONG, Kind.REAL)
AVERAGES = ("avg", "avg", "stddev", "stddev_pop", "var_samp", "var_pop")
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ",")
SETS = ("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL")
RANKS = ("ROW_NUMBER", "RANK", "DENSE_RANK")
SHARES = ("PERCENT_RANK", "CUME_DIST")
NEAR = ("2 PRECEDING", "1 PRECEDING", "CURRENT ROW", "1 FOLLOWING", "2 FOLLOWING")
DISTANCES = ("1 PRECEDING", "CURRENT ROW", "2 FOLLOWING")
WAYS = ("ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST")
WINDOWS = ((5, 5), (10, 10), (10, 5), (60, 20))  # minutes: width and slide


@dataclass(frozen=True)
class Query:
    """A query's text for Spark and for DuckDB, and its columns, no two of one name."""

    spark: str
    duck: str
    columns: tuple[Column, ...]

    def exact(self, *kinds: Kind) -> list[Column]:
        """Those of these kinds (of any, unless some are named) that are not loose."""
        return [column for column in self.columns if not column.loose and column.kind in (kinds or Kind)]


@dataclass(frozen=True)
class RandomView:
    """A view and its key."""

    name: str
    query: Query
    key: tuple[str, ...]


def random_views(
    tables: Sequence[RandomTable],
    rng: Random,
    views: int = 1,
    levels: int = LEVELS_MAX,
    may_be_loose: bool = True,
    grammar: "type[Grammar] | None" = None,
) -> list[RandomView]:
    """Views v0, v1, ... over these tables, each of which may read those before it. may_be_loose: some columns may."""
    sources = [_table(table) for table in tables]
    found: list[RandomView] = []
    made = (grammar or Grammar)(sources, rng)
    for number in range(views):
        query = made.query(rng.randint(1, levels), is_last=may_be_loose)
        keys = query.exact(*KEYS) or query.exact()
        key = rng.sample(keys, rng.randint(1, min(2, len(keys))))
        found.append(RandomView(f"v{number}", query, tuple(column.name for column in key)))
        sources.append(_read(f"v{number}", query))
    return found


def _table(table: RandomTable) -> Query:
    columns = tuple(Column(name, kind) for name, kind in table.kinds.items() if name != SEQ)  # which meets nothing
    return Query(f"SELECT * FROM {table.spec.name}", f"SELECT * FROM {table.spec.name}", columns)


def _read(name: str, view: Query) -> Query:
    return Query(f"SELECT * FROM {name}", view.duck, view.columns)


class Grammar:
    """Makes queries over ``sources``, which are tables and views."""

    def __init__(self, sources: Sequence[Query], rng: Random) -> None:
        self._sources = sources
        self._rng = rng
        self._expressions = Expressions(rng)
        self._numbers = count()

    def query(self, depth: int, is_last: bool = False) -> Query:
        """A query of so many levels at most. is_last: nothing is made of its answer, so it may be loose."""
        if not depth:
            return self._rng.choice(self._sources)
        source = self.query(depth - 1)
        return self._rng.choice(self._productions(source, depth, is_last))()

    def _productions(self, source: Query, depth: int, is_last: bool) -> list[Callable[[], Query]]:
        """What may be made of a query, the likely ones more than once."""
        productions: list[Callable[[], Query]] = [
            lambda: self._rows(source),
            lambda: self._groups(source, is_last),
            lambda: self._first(source),
            lambda: self._over(source),
            lambda: self._limited(source),
            lambda: self._distinct(source),
            lambda: self._exploded(source),
            lambda: self._joined(source, self._other(depth)),
            lambda: self._there(source, self._other(depth)),
            lambda: self._set(source, self._other(depth)),
            lambda: self._with(source, self._other(depth)),
        ]
        likely = [productions[1], productions[5]]
        if source.exact(Kind.TIME):
            likely += [lambda: self._windows(source)] * 2
        return [*productions, *likely]

    def _other(self, depth: int) -> Query:
        return self.query(self._rng.randint(0, depth - 1) // 2)

    # Clauses

    def _rows(self, source: Query) -> Query:
        """Projection and filter."""
        chosen = self._selected(source.exact(), self._rng.randint(1, 3))
        where = self._maybe("WHERE", self._expressions.condition(source.exact()))
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s {where}", chosen, source)

    def _distinct(self, source: Query) -> Query:
        chosen = self._selected(source.exact(), self._rng.randint(1, 2))
        return self._made(f"SELECT DISTINCT {as_list(chosen)} FROM ({{0}}) s", chosen, source)

    def _exploded(self, source: Query) -> Query:
        """Each row once for each of some values."""
        kind = self._rng.choice(source.exact()).kind
        values = ", ".join(self._rng.choice(source.exact(kind)).name for _ in range(self._rng.randint(1, 3)))
        element = Column(self._name(), kind)
        if self._rng.random() < 0.5:
            chosen = self._selected(source.exact(), self._rng.randint(1, 2))
            rows = f"SELECT {as_list(chosen)}, {{}} AS {element.name} FROM ({{}}) s"
            spark = rows.format(f"explode(array({values}))", source.spark)
            duck = rows.format(f"unnest([{values}])", source.duck)
            return Query(spark, duck, (*(column for _, column in chosen), element))
        chosen = self._selected([*source.exact(), element], self._rng.randint(1, 3))
        where = self._maybe("WHERE", self._expressions.condition([*source.exact(), element]))
        spark = f"({source.spark}) s LATERAL VIEW explode(array({values})) e AS {element.name}"
        duck = f"(SELECT *, unnest([{values}]) AS {element.name} FROM ({source.duck}) s) s"
        select = f"SELECT {as_list(chosen)} FROM {{}} {where}"
        return Query(select.format(spark), select.format(duck), tuple(column for _, column in chosen))

    def _groups(self, source: Query, is_last: bool) -> Query:
        columns = source.exact()
        grouped = self._selected(columns, self._rng.randint(1, 2))
        counted = [self._aggregate(columns, is_last) for _ in range(self._rng.randint(0, 3))]
        where = self._maybe("WHERE", self._expressions.condition(columns))
        by = ", ".join(text for text, _ in grouped)
        having = self._maybe("HAVING", self._having(columns))
        if self._rng.random() < 0.2:
            by = f"{self._rng.choice(['ROLLUP', 'CUBE'])}({by})"
            # DuckDB has a total of no rows, too.
            having = f"{having} AND count(*) > 0" if having else "HAVING count(*) > 0"
        chosen = [*grouped, *counted]
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s {where} GROUP BY {by} {having}", chosen, source)

    def _having(self, columns: Sequence[Column]) -> str:
        text, column = self._aggregate(columns, is_last=False)
        return self._rng.choice(
            [f"count(*) > {self._rng.randint(0, 2)}", f"{text} IS NOT NULL", self._compared(text, column)]
        )

    def _compared(self, text: str, column: Column) -> str:
        return f"{text} {self._rng.choice(COMPARISONS)} {self._rng.choice(LITERALS[column.kind])}"

    def _aggregate(self, columns: Sequence[Column], is_last: bool) -> tuple[str, Column]:
        column = self._rng.choice(columns)
        argument, kind = self._expressions.any_of(column.kind, columns), column.kind
        counts = ("count(*)", f"count({argument})", f"count(DISTINCT {argument})")
        calls = [(text, Kind.LONG, False) for text in counts]
        calls += [(f"{function}({argument})", kind, False) for function in ("min", "max")]
        if kind in SUMS:
            calls += [(f"sum({argument})", SUMS[kind], False), (f"sum(DISTINCT {argument})", SUMS[kind], False)]
        if kind is Kind.FLAG:
            calls += [(f"{function}({argument})", kind, False) for function in ("bool_and", "bool_or")]
        if is_last and kind in AVERAGED and self._rng.random() < 0.6:
            calls = [(f"{function}({argument})", Kind.REAL, True) for function in AVERAGES]
        text, result, loose = self._rng.choice(calls)
        if self._rng.random() < 0.25:
            text += f" FILTER (WHERE {self._expressions.condition(columns)})"
        return text, Column(self._name(), result, loose)

    def _windows(self, source: Query) -> Query:
        """Counted by windows of time. DuckDB has none: it lists the starts of all that a row is in."""
        time = self._rng.choice(source.exact(Kind.TIME)).name
        width, slide = self._rng.choice(WINDOWS)
        others = [column for column in source.exact() if column.name != time]
        counted = [self._aggregate(source.exact(), is_last=False) for _ in range(self._rng.randint(1, 2))]
        grouped = self._selected(others, 1) if others and self._rng.random() < 0.5 else []
        start = Column(self._name(), Kind.TIME)
        by = [text for text, _ in grouped]
        window = f"window({time}, '{width} minutes', '{slide} minutes')"
        last = f"time_bucket(INTERVAL '{slide} minutes', {time}, TIMESTAMP '1970-01-01')"
        starts = ", ".join(f"{last} - INTERVAL '{back} minutes'" for back in range(0, width, slide))
        spark = f"SELECT {as_list([*grouped, ('window.start', start), *counted])} FROM ({source.spark}) s GROUP BY "
        duck = f"SELECT {as_list([*grouped, ('w_', start), *counted])} FROM (SELECT *, unnest([{starts}]) AS w_ FROM "
        duck += f"({source.duck}) s WHERE {time} IS NOT NULL) s GROUP BY "
        columns = tuple(column for _, column in [*grouped, ("", start), *counted])
        return Query(spark + ", ".join([*by, window]), duck + ", ".join([*by, "w_"]), columns)

    def _joined(self, left: Query, right: Query) -> Query:
        kind = self._rng.choice(JOINS)
        equal = self._equal(left, right)
        if equal is None:
            return self._rows(left)
        lefts, rights = [c.of("l") for c in left.exact()], [c.of("r") for c in right.exact()]
        conditions = [equal]
        if self._rng.random() < 0.3:
            conditions += self._ranges(left, right)
        if self._rng.random() < 0.4:
            conditions.append(self._expressions.condition([*lefts, *rights]))
        on = " AND ".join(conditions)
        kept = lefts if kind in ("SEMI JOIN", "ANTI JOIN") else [*lefts, *rights]
        chosen = self._selected(kept, self._rng.randint(1, 4))
        join = f"({{0}}) l, ({{1}}) r WHERE {on}" if kind == "," else f"({{0}}) l {kind} ({{1}}) r ON {on}"
        return self._made(f"SELECT {as_list(chosen)} FROM {join}", chosen, left, right)

    def _equal(self, left: Query, right: Query) -> str | None:
        """An equality or two between the sides; ``None`` if there can be none."""
        shared = shared_kinds(left, right)
        if not shared:
            return None
        equalities = []
        for _ in range(self._rng.randint(1, 2)):
            kind = self._rng.choice(shared)
            mine = self._expressions.any_of(kind, [c.of("l") for c in left.exact()], must_read=True)
            theirs = self._expressions.any_of(kind, [c.of("r") for c in right.exact()], must_read=True)
            equalities.append(f"{mine} {self._rng.choice(['=', '=', 'IS NOT DISTINCT FROM'])} {theirs}")
        return " AND ".join(equalities)

    def _ranges(self, left: Query, right: Query) -> list[str]:
        """A value of the one side between values of the other."""
        shared = shared_kinds(left, right)
        if not shared:
            return []
        kind = self._rng.choice(shared)
        (one, mine), (other, theirs) = self._rng.sample([("l", left.exact(kind)), ("r", right.exact(kind))], 2)
        value = self._rng.choice(mine).of(one).name
        low, high = (self._rng.choice(theirs).of(other).name for _ in range(2))
        return [self._rng.choice([f"{value} BETWEEN {low} AND {high}", f"{value} >= {low}", f"{low} > {value}"])]

    def _there(self, source: Query, other: Query) -> Query:
        """Rows for which there is another, or none."""
        shared = shared_kinds(source, other)
        if not shared:
            return self._rows(source)
        kind = self._rng.choice(shared)
        mine, theirs = self._rng.choice(source.exact(kind)).of("l"), self._rng.choice(other.exact(kind)).of("r")
        chosen = self._selected([column.of("l") for column in source.exact()], self._rng.randint(1, 3))
        within = f"{mine.name} IN (SELECT {theirs.name} FROM ({{1}}) r)"
        exists = f"EXISTS (SELECT 1 FROM ({{1}}) r WHERE {theirs.name} = {mine.name})"
        matches = f"(SELECT count(*) FROM ({{1}}) r WHERE {theirs.name} = {mine.name})"
        nested = [f"NOT {within}", f"({within} OR {mine.name} IS NULL)", f"({exists}) IS TRUE", f"{matches} <> 1"]
        where = self._rng.choice([within, exists, f"NOT {exists}", *nested])
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) l WHERE {where}", chosen, source, other)

    def _set(self, left: Query, right: Query) -> Query:
        shared = shared_kinds(left, right)
        if not shared:
            return self._distinct(left)
        kinds = [self._rng.choice(shared) for _ in range(self._rng.randint(1, 3))]
        mine = [(self._rng.choice(left.exact(kind)).name, Column(self._name(), kind)) for kind in kinds]
        theirs = [(self._expressions.any_of(column.kind, right.exact()), column) for _, column in mine]
        sides = (
            f"SELECT {as_list(mine)} FROM ({{0}}) l {self._rng.choice(SETS)} SELECT {as_list(theirs)} FROM ({{1}}) r"
        )
        return self._made(sides, mine, left, right)

    def _first(self, source: Query) -> Query:
        """The first rows of each group."""
        columns = source.exact()
        by = self._rng.sample(columns, self._rng.randint(0, min(2, len(columns))))
        function = self._rng.choice(RANKS)
        order = self._order(columns, all=function == "ROW_NUMBER")
        partition = f"PARTITION BY {', '.join(column.name for column in by)} " if by else ""
        rank = Column(self._name(), Kind.INT)
        inner = [(column.name, column) for column in columns]
        numbered = (
            f"SELECT {as_list(inner)}, {function}() OVER ({partition}ORDER BY {order}) AS {rank.name} FROM ({{0}}) s"
        )
        chosen = self._selected([*columns, rank], self._rng.randint(1, 3))
        where = f"{rank.name} <= {self._rng.randint(1, 3)}"
        return self._made(f"SELECT {as_list(chosen)} FROM ({numbered}) n WHERE {where}", chosen, source)

    def _over(self, source: Query) -> Query:
        """Window functions over all rows. Those that tell equal rows apart have one window, or it would matter which of
        the equal rows have which results together."""
        columns = source.exact()
        window = f"{self._partition(columns)}ORDER BY {self._order(columns, all=True)}"
        functions = [self._window_function(columns, window) for _ in range(self._rng.randint(1, 3))]
        kept = self._selected(columns, self._rng.randint(1, 2))
        chosen = [[*kept, *(function[side] for function in functions)] for side in range(2)]
        spark, duck = (f"SELECT {as_list(listed)} FROM ({{}}) s" for listed in chosen)
        return Query(spark.format(source.spark), duck.format(source.duck), tuple(column for _, column in chosen[0]))

    def _partition(self, columns: Sequence[Column]) -> str:
        by = self._rng.sample(columns, self._rng.randint(0, min(2, len(columns))))
        return f"PARTITION BY {', '.join(column.name for column in by)} " if by else ""

    def _window_function(self, columns: Sequence[Column], window: str) -> tuple[tuple[str, Column], tuple[str, Column]]:
        """One for Spark and one for DuckDB. window: without ties, except of equal rows."""
        partition = self._partition(columns)
        form = self._rng.choice(["rank", "near", "share", "peers", "rows", "range"])
        column = self._rng.choice(columns)
        if form == "rank":
            text = f"{self._rng.choice(RANKS[1:])}() OVER ({partition}ORDER BY {self._order(columns, all=False)})"
            return self._same(text, Kind.INT)
        if form == "share":
            text = f"{self._rng.choice(SHARES)}() OVER ({partition}ORDER BY {self._order(columns, all=False)})"
            return self._same(text, Kind.REAL, loose=True)
        if form == "near":
            return self._neighbour(column, f"({window}")
        call, result = self._aggregate(columns, is_last=False)
        if "DISTINCT" in call:
            call, result = f"count({column.name})", Column(result.name, Kind.LONG)
        numbers = [one for one in columns if one.kind in (Kind.INT, Kind.LONG)]
        if form == "peers" or (form == "range" and not numbers):
            order = f"ORDER BY {self._order(columns, all=False)}" if self._rng.random() < 0.7 else ""
            return self._same(f"{call} OVER ({partition}{order})", result.kind)
        if form == "rows":
            return self._same(f"{call} OVER ({window} ROWS BETWEEN {self._bounds(NEAR)})", result.kind)
        order = self._order([self._rng.choice(numbers)], all=True)
        frame = f"RANGE BETWEEN {self._bounds(DISTANCES)}"
        return self._same(f"{call} OVER ({partition}ORDER BY {order} {frame})", result.kind)

    def _neighbour(self, column: Column, window: str) -> tuple[tuple[str, Column], tuple[str, Column]]:
        """The value, or the number, of one row; the window leaves no ties."""
        nulls = self._rng.choice(["", " IGNORE NULLS"])
        frame = f" ROWS BETWEEN {self._bounds(NEAR)})"
        operands = {
            "lag": f"{column.name}, {self._rng.randint(1, 3)}",
            "lead": f"{column.name}, {self._rng.randint(1, 3)}",
            "first_value": column.name,
            "last_value": column.name,
            "nth_value": f"{column.name}, {self._rng.randint(1, 3)}",
            "ROW_NUMBER": "",
            "ntile": str(self._rng.randint(1, 4)),
        }
        function = self._rng.choice(list(operands))
        if function in ("ROW_NUMBER", "ntile"):
            return self._same(f"{function}({operands[function]}) OVER {window})", Kind.INT)
        result = Column(self._name(), column.kind)
        end = frame if function.endswith("value") else ")"
        spark = f"{function}({operands[function]}){nulls} OVER {window}{end}"
        duck = f"{function}({operands[function]}{nulls}) OVER {window}{end}"
        return (spark, result), (duck, result)

    def _same(self, text: str, kind: Kind, loose: bool = False) -> tuple[tuple[str, Column], tuple[str, Column]]:
        column = Column(self._name(), kind, loose)
        return (text, column), (text, column)

    def _bounds(self, bounds: Sequence[str]) -> str:
        first, last = sorted(self._rng.choices(range(len(bounds)), k=2))
        start = "UNBOUNDED PRECEDING" if self._rng.random() < 0.3 else bounds[first]
        end = "UNBOUNDED FOLLOWING" if self._rng.random() < 0.2 else bounds[last]
        return f"{start} AND {end}"

    def _limited(self, source: Query) -> Query:
        chosen = self._selected(source.exact(), self._rng.randint(1, 3))
        order = self._order([column for _, column in chosen], all=True)
        limit = self._rng.randint(1, 4)
        return self._made(f"SELECT {as_list(chosen)} FROM ({{0}}) s ORDER BY {order} LIMIT {limit}", chosen, source)

    def _order(self, columns: Sequence[Column], all: bool) -> str:
        """all: by every column, so that only equal rows tie."""
        by = self._rng.sample(columns, len(columns) if all else self._rng.randint(1, len(columns)))
        return ", ".join(f"{column.name} {self._rng.choice(WAYS)}" for column in by)

    def _with(self, source: Query, other: Query) -> Query:
        """A query that is named, and read twice or joined with another."""
        name = self._name("w")
        named = Query(f"SELECT * FROM {name}", f"SELECT * FROM {name}", source.columns)
        bodies: list[Callable[[], Query]] = [
            lambda: self._joined(named, self._rng.choice([named, other])),
            lambda: self._set(named, self._rows(named)),
            lambda: self._groups(named, is_last=False),
        ]
        body = self._rng.choice(bodies)()
        head = f"WITH {name} AS "
        return Query(f"{head}({source.spark}) {body.spark}", f"{head}({source.duck}) {body.duck}", body.columns)

    # Text

    def _selected(self, columns: Sequence[Column], most: int) -> list[tuple[str, Column]]:
        """At least one output column: its text, and what it is."""
        chosen = []
        for _ in range(most):
            kind = self._rng.choice(columns).kind
            chosen.append((self._expressions.any_of(kind, columns, must_read=True), Column(self._name(), kind)))
        return chosen

    def _made(self, template: str, chosen: Sequence[tuple[str, Column]], *sources: Query) -> Query:
        columns = tuple(column for _, column in chosen)
        spark, duck = [source.spark for source in sources], [source.duck for source in sources]
        return Query(template.format(*spark), template.format(*duck), columns)

    def _name(self, prefix: str = "c") -> str:
        return f"{prefix}{next(self._numbers)}"

    def _maybe(self, word: str, condition: str) -> str:
        return f"{word} {condition}" if self._rng.random() < 0.35 else ""


def shared_kinds(left: Query, right: Query) -> list[Kind]:
    """Of what both have a column."""
    return [kind for kind in Kind if left.exact(kind) and right.exact(kind)]


def as_list(chosen: Sequence[tuple[str, Column]]) -> str:
    return ", ".join(f"{text} AS {column.name}" for text, column in chosen)
