"""Expressions at random, as SQL text that Spark and DuckDB read the same way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from random_tables import Kind

LEVELS_MAX = 2  # of operators in an expression
LITERALS = {
    Kind.INT: ("0", "1", "3", "-2"),
    Kind.LONG: ("CAST(2 AS BIGINT)", "CAST(5 AS BIGINT)"),
    Kind.TEXT: ("'a'", "'B'", "''"),
    Kind.REAL: ("CAST(0.5 AS DOUBLE)", "CAST(2 AS DOUBLE)"),
    Kind.MONEY: ("CAST(1.25 AS DECIMAL(9,2))",),
    Kind.FLAG: ("true", "false"),
    Kind.DAY: ("DATE '2024-01-31'",),
    Kind.TIME: ("TIMESTAMP '2024-01-01 00:05:00'",),
}
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


@dataclass(frozen=True)
class Column:
    """A column of a query's answer. loose: its last digits depend on the order in which numbers were added up, so
    nothing is to be made of it."""

    name: str
    kind: Kind
    loose: bool = False

    def of(self, alias: str) -> "Column":
        """The same, as it is spelled behind an alias."""
        return replace(self, name=f"{alias}.{self.name}")


class Expressions:
    """Makes expressions of columns."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def any_of(self, kind: Kind, columns: Sequence[Column], must_read: bool = False, depth: int = LEVELS_MAX) -> str:
        """Something of this kind. must_read: of a column, at least."""
        names = [column.name for column in columns if column.kind is kind]
        if not names:
            return self._rng.choice(LITERALS[kind])
        name = self._rng.choice(names)
        if not depth or self._rng.random() < 0.7:
            return name if must_read or self._rng.random() < 0.9 else self._rng.choice(LITERALS[kind])
        deeper = self.any_of(kind, columns, True, depth - 1)
        literal = self._rng.choice(LITERALS[kind])
        forms = [f"coalesce({deeper}, {literal})", f"nullif({deeper}, {literal})", f"greatest({deeper}, {name})"]
        forms += [f"CASE WHEN {self.condition(columns, depth - 1)} THEN {deeper} ELSE {name} END"]
        forms += self._forms(kind, deeper, name, columns)
        return self._rng.choice(forms)

    def _forms(self, kind: Kind, deeper: str, name: str, columns: Sequence[Column]) -> list[str]:
        match kind:
            case Kind.INT | Kind.LONG:
                return [f"{deeper} + 1", f"-{name}", f"abs({deeper})", f"{deeper} % 3", f"({deeper} - {name})"]
            case Kind.REAL:
                return [f"{deeper} * 2", f"-{name}", f"({deeper} + {name})"]
            case Kind.MONEY:
                return [f"-{name}", f"abs({name})"]
            case Kind.TEXT:
                return [f"upper({deeper})", f"{deeper} || 'x'", f"substring({deeper}, 1, 1)", f"{name} || {deeper}"]
            case Kind.FLAG:
                return [f"(NOT {deeper})", self.condition(columns, 1)]
            case Kind.DAY:
                return [f"last_day({deeper})"]
            case Kind.TIME:
                return [f"date_trunc('hour', {deeper})"]

    def condition(self, columns: Sequence[Column], depth: int = LEVELS_MAX) -> str:
        """Something true, false or null."""
        column = self._rng.choice(columns)
        kind, name = column.kind, column.name
        literals = LITERALS[kind]
        other = self.any_of(kind, columns, depth=max(0, depth - 1))
        forms = [f"{name} {self._rng.choice(COMPARISONS)} {other}", f"{name} IS NOT NULL", f"{name} IS NULL"]
        forms += [f"{name} IN ({', '.join(literals)})", f"{name} NOT BETWEEN {literals[0]} AND {literals[-1]}"]
        if kind is Kind.TEXT:
            forms += [f"{name} LIKE 'a%'", f"length({name}) > 0"]
        if kind in (Kind.DAY, Kind.TIME):
            forms += [f"month({name}) = 1"]
        if depth and self._rng.random() < 0.3:
            word = self._rng.choice(["AND", "OR"])
            return f"({self.condition(columns, depth - 1)} {word} NOT {self.condition(columns, depth - 1)})"
        return f"({self._rng.choice(forms)})"
