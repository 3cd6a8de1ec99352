"""Rows of a wholesaler's eight tables, shaped as TPC-H describes its own: sizes, keys, ranges; other words.

At scale 1 there are 150,000 customers, 1,500,000 orders and about 6,000,000 lines. A third of the customers
never order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

REGIONS, NATIONS = 5, 25
FIRST_DAY, DAYS = 8_035, 2_406
"""Of orders: days since 1970, and how many there are."""
LINES_MAX = 7
"""Lines of an order; each number of lines is as likely."""
MONEY = pa.decimal128(15, 2)
BRANDS = tuple(f"brand {number}" for number in range(25))
BOXES = tuple(
    f"{size} {kind}" for size in ("small", "medium", "large", "flat", "long") for kind in ("bag", "tin", "box")
)
SEGMENTS = ("farms", "homes", "offices", "schools", "shops")
PRIORITIES = ("1 now", "2 today", "3 soon", "4 later", "5 whenever")
CARRIERS = ("barge", "bike", "cart", "lorry", "mule", "plane", "tram")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShopSpec:
    """scale: 1 for about 6,000,000 lines. seed: of the rows."""

    scale: float
    seed: int = 1

    def count(self, at_scale_1: int) -> int:
        return max(10, round(self.scale * at_scale_1))

    @property
    def orders(self) -> int:
        return self.count(1_500_000)

    @property
    def _parts(self) -> int:
        return self.count(200_000)

    @property
    def _suppliers(self) -> int:
        return self.count(10_000)

    def fixed(self) -> dict[str, pa.Table]:
        """The tables that get no rows later, by name."""
        draw = np.random.default_rng(self.seed)
        customers = self.count(150_000)
        pairs = 4 * self._parts
        return {
            "region": pa.table({"r_id": np.arange(REGIONS), "r_name": [f"region {n}" for n in range(REGIONS)]}),
            "nation": pa.table(
                {
                    "n_id": np.arange(NATIONS),
                    "n_name": [f"nation {n}" for n in range(NATIONS)],
                    "n_region": np.arange(NATIONS) % REGIONS,
                }
            ),
            "supplier": pa.table(
                {
                    "s_id": np.arange(self._suppliers),
                    "s_nation": draw.integers(0, NATIONS, self._suppliers),
                    "s_balance": money(draw.integers(-99_999, 999_999, self._suppliers)),
                }
            ),
            "customer": pa.table(
                {
                    "c_id": np.arange(customers),
                    "c_nation": draw.integers(0, NATIONS, customers),
                    "c_segment": words(SEGMENTS, draw.integers(0, len(SEGMENTS), customers)),
                    "c_balance": money(draw.integers(-99_999, 999_999, customers)),
                }
            ),
            "part": pa.table(
                {
                    "p_id": np.arange(self._parts),
                    "p_brand": words(BRANDS, draw.integers(0, len(BRANDS), self._parts)),
                    "p_box": words(BOXES, draw.integers(0, len(BOXES), self._parts)),
                    "p_size": draw.integers(1, 51, self._parts),
                }
            ),
            "offer": pa.table(
                {
                    "f_part": np.arange(pairs) // 4,
                    "f_supplier": self._supplier_of(np.arange(pairs) // 4, np.arange(pairs) % 4),
                    "f_cost": money(draw.integers(100, 100_000, pairs)),
                }
            ),
        }

    def sold(self, first: int, count: int) -> dict[str, pa.Table]:
        """So many orders from the first on, with their lines: the tables ``sale`` and ``line``."""
        draw = np.random.default_rng([self.seed, first])
        numbers = np.arange(first, first + count)
        ids = numbers // 8 * 32 + numbers % 8  # as sparse as TPC-H's
        customers = draw.integers(0, self.count(150_000), count)
        days = FIRST_DAY + draw.integers(0, DAYS, count)
        sales = pa.table(
            {
                "o_id": ids,
                "o_customer": customers - (customers % 3 == 0) * (customers > 0),
                "o_day": pa.array(days.astype(np.int32), pa.date32()),
                "o_priority": words(PRIORITIES, draw.integers(0, len(PRIORITIES), count)),
            }
        )
        order = np.repeat(np.arange(count), draw.integers(1, LINES_MAX + 1, count))
        lines = len(order)
        parts = draw.integers(0, self._parts, lines)
        quantity = draw.integers(1, 51, lines)
        shipped = days[order] + draw.integers(1, 122, lines)
        promised = days[order] + draw.integers(30, 91, lines)
        received = shipped + draw.integers(1, 31, lines)
        return {
            "sale": sales,
            "line": pa.table(
                {
                    "l_order": ids[order],
                    "l_part": parts,
                    "l_supplier": self._supplier_of(parts, draw.integers(0, 4, lines)),
                    "l_quantity": money(100 * quantity),
                    "l_price": money(quantity * (90_000 + parts % 20_001 + 100 * (parts % 1_000))),
                    "l_discount": money(draw.integers(0, 11, lines)),
                    "l_tax": money(draw.integers(0, 9, lines)),
                    "l_back": words(("A", "N", "R"), np.where(received > FIRST_DAY + 1_263, 1, 2 * (parts % 2))),
                    "l_open": words(("F", "O"), (shipped > FIRST_DAY + 1_263).astype(np.int64)),
                    "l_shipped": pa.array(shipped.astype(np.int32), pa.date32()),
                    "l_promised": pa.array(promised.astype(np.int32), pa.date32()),
                    "l_received": pa.array(received.astype(np.int32), pa.date32()),
                    "l_carrier": words(CARRIERS, draw.integers(0, len(CARRIERS), lines)),
                }
            ),
        }

    def _supplier_of(self, parts: Ints, nth: Ints) -> Ints:
        """The nth of the four suppliers of each part."""
        found: Ints = (parts + nth * (self._suppliers // 4 + 1)) % self._suppliers
        return found


def money(cents: Ints) -> pa.Array:
    """Decimals of two digits, out of 16 bytes each: the number, and its sign again."""
    halves = np.stack([cents, cents >> 63], axis=1).astype(np.int64)
    return pa.Array.from_buffers(MONEY, len(cents), [None, pa.py_buffer(halves)])


def words(values: tuple[str, ...], places: Ints) -> pa.Array:
    return pa.array(values).take(pa.array(places))


def write_rows(directory: Path, number: int, tables: Mapping[str, pa.Table]) -> None:
    """One more file of each table, which is seen whole or not at all."""
    for name, rows in tables.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        hidden = directory / name / f".{number}"
        pq.write_table(rows, hidden)
        hidden.rename(directory / name / f"{number:06}.parquet")
