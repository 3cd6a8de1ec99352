"""Tables at random: their columns, keys and order, whether they are upserted, and their rows, with nulls and
duplicates.

Everything is drawn from a ``Random``: a seeded one, or one of Hypothesis, which then can make a failure smaller.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any

import pyarrow as pa

from upriver.plan.plan import TableSpec

TABLES_MAX = 3
COLUMNS_MAX = 4  # besides those that order rows and delete them
UPSERTED_SHARE = 0.4
ROWS_MAX = 10  # of a table in an epoch
START = datetime(2024, 1, 1, tzinfo=UTC)


class Kind(Enum):
    """What a column holds: its type, as Arrow and as Spark have it, and the values of a table's column. Few, so that
    keys meet; doubles are of few binary digits, so that sums are exact in any order."""

    def __init__(self, type: pa.DataType, ddl: str, values: tuple[Any, ...]) -> None:
        self.type = type
        self.ddl = ddl
        self.values = values

    INT = pa.int32(), "INT", (0, 1, 2, -4)
    LONG = pa.int64(), "BIGINT", (0, 1, 2, 2**33)
    TEXT = pa.string(), "STRING", ("", "a", "B", "ab")
    REAL = pa.float64(), "DOUBLE", (0.0, -0.0, 0.5, 2.0)
    MONEY = pa.decimal128(9, 2), "DECIMAL(9,2)", (Decimal("0.00"), Decimal("1.25"), Decimal("-2.50"))
    FLAG = pa.bool_(), "BOOLEAN", (True, False)
    DAY = pa.date32(), "DATE", (date(2024, 1, 1), date(2024, 1, 31), date(2023, 12, 31))
    TIME = pa.timestamp("us", "UTC"), "TIMESTAMP", tuple(START + timedelta(minutes=m) for m in (0, 4, 5, 61))


KEYS = (Kind.INT, Kind.LONG, Kind.TEXT, Kind.DAY, Kind.TIME, Kind.MONEY, Kind.FLAG)
SEQ, GONE = "seq", "gone"
SEQS, SEQ_STEP = 1009, 389  # prime, so that every number below comes once, and neighbours are far apart


@dataclass(frozen=True)
class RandomTable:
    """A declared table, and what its columns hold. Rows are in order of ``seq``; those of an upsert table that are
    ``gone`` delete."""

    spec: TableSpec
    kinds: Mapping[str, Kind]

    @property
    def is_upserted(self) -> bool:
        return bool(self.spec.primary_key)

    @property
    def ddl(self) -> str:
        """The columns, as Spark declares them."""
        return ", ".join(f"{name} {kind.ddl}" for name, kind in self.kinds.items())

    def current_sql(self, rows: str) -> str:
        """The rows that count, as a query over all versions of them, which are in the relation ``rows``."""
        if not self.is_upserted:
            return f"SELECT * FROM {rows}"
        columns, key = ", ".join(self.kinds), ", ".join(self.spec.primary_key)
        last = f"row_number() OVER (PARTITION BY {key} ORDER BY {SEQ} DESC)"
        numbered = f"SELECT *, {last} AS nth FROM {rows}"
        gone = f" AND {GONE} IS NOT TRUE" if self.spec.deletes else ""
        return f"SELECT {columns} FROM ({numbered}) WHERE nth = 1{gone}"


def random_tables(rng: Random) -> list[RandomTable]:
    """One to three tables; their names are t0, t1, ..., and no two columns of two tables have one name."""
    return [_random_table(f"t{number}", rng) for number in range(rng.randint(1, TABLES_MAX))]


def _random_table(name: str, rng: Random) -> RandomTable:
    drawn = [rng.choice(KEYS), *(rng.choice(list(Kind)) for _ in range(rng.randint(1, COLUMNS_MAX - 1)))]
    kinds = {f"{name}_{'abcd'[place]}": kind for place, kind in enumerate(drawn)}
    keyed = [column for column, kind in kinds.items() if kind in KEYS]
    key = tuple(rng.sample(keyed, rng.randint(1, min(2, len(keyed)))))
    primary_key: tuple[str, ...] = ()
    deletes = None
    if rng.random() < UPSERTED_SHARE:
        primary_key = tuple(rng.sample(keyed, rng.randint(1, min(2, len(keyed)))))
        deletes = rng.choice([None, f'"{GONE}"'])
    kinds |= {SEQ: Kind.LONG, GONE: Kind.FLAG}
    schema = pa.schema([(column, kind.type) for column, kind in kinds.items()])
    return RandomTable(TableSpec(name, schema, key, (SEQ,), primary_key, deletes), kinds)


class RandomRows:
    """The rows of some tables, epoch by epoch. Versions of a row come in any order."""

    def __init__(self, tables: list[RandomTable], rng: Random) -> None:
        self.tables = tables
        self.all = {table.spec.name: table.spec.schema.empty_table() for table in tables}
        """By table, all versions so far."""
        self._rng = rng
        self._seqs = (number * SEQ_STEP % SEQS for number in range(SEQS))

    def epochs(self, count: int) -> Iterator[dict[str, pa.RecordBatch]]:
        """The rows of so many epochs, by table; of some tables there are none."""
        for _ in range(count):
            drawn = {table.spec.name: self._drawn(table) for table in self.tables if self._rng.random() < 0.8}
            for name, rows in drawn.items():
                self.all[name] = pa.concat_tables([self.all[name], pa.Table.from_batches([rows])])
            yield drawn

    def _drawn(self, table: RandomTable) -> pa.RecordBatch:
        count = self._rng.randint(1, ROWS_MAX)
        columns = {column: self._column(column, kind, count) for column, kind in table.kinds.items()}
        arrays = [pa.array(columns[field.name], field.type) for field in table.spec.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=table.spec.schema)

    def _column(self, column: str, kind: Kind, count: int) -> list[Any]:
        if column == SEQ:
            return [next(self._seqs) for _ in range(count)]
        return [self._rng.choice([None, *kind.values]) for _ in range(count)]
