"""Awkward decimals of many types, in the columns of a table, and expressions of them."""

from collections.abc import Sequence
from decimal import Context, Decimal
from itertools import product
from random import Random

import pyarrow as pa

EXACT = Context(prec=100)
"""Of no rounding."""
ROWS = 40
SIZES = {
    "a": (38, 0),
    "b": (38, 38),
    "c": (38, 18),
    "d": (38, 6),
    "e": (15, 2),
    "f": (5, 2),
    "g": (20, 0),
    "h": (38, 30),
    "k": (7, 7),
}
"""The digits and places of the columns of decimals."""
LITERALS = ("7", "-3", "0.5", "100", "1.000000000000000000000000000000000001", "99999999999999999999")
NUMBERS = ("i", "CAST(i AS BIGINT)")
TEXTS: Sequence[str] = (
    *("٣", "1e-400", "-1e400", "5e-11", "12345678901234567890123456789012345678901234567890e-45", "+.5E0", "-0e-400"),
    *("0.4" + "9" * 50, "4999999999e-10", "-5e-1", "0" * 40 + "1e38", "1e37", "1e-99999", " 9.99e1 ", "9.995e1"),
    *("-0.00000000000000000000000000000000000000499999e3", "9" * 38 + ".5", "1e", "", "e5", "7."),
)
"""Numbers, and what is none."""


def decimals(digits: int, places: int, count: int, rng: Random) -> list[Decimal | None]:
    """Numbers of any length, halves, powers of ten and their neighbours, the greatest, 0, and NULL."""
    found: list[Decimal | None] = []
    for _ in range(count):
        shorter = rng.randrange(1, digits + 1)
        unit = rng.choice(
            [
                rng.randrange(10**digits),
                rng.randrange(10**shorter),
                10**shorter - 1,
                10 ** (shorter - 1) + rng.randrange(2),
                5 * 10 ** (shorter - 1) - rng.randrange(2),
                10**digits - 1 - rng.randrange(3),
                rng.randrange(4),
            ]
        )
        number = Decimal(rng.choice((unit, -unit))).scaleb(-places, EXACT)
        found.append(None if rng.random() < 0.06 else number)
    return found


def table(rng: Random) -> pa.RecordBatch:
    """A column of each size, one of INT, and ``r``, which numbers the rows."""
    columns = {name: pa.array(decimals(*size, ROWS, rng), pa.decimal128(*size)) for name, size in SIZES.items()}
    numbers = [rng.choice([0, 1, -1, 7, None, 2**31 - 1, -(2**31)]) for _ in range(ROWS)]
    texts = pa.array([TEXTS[row % len(TEXTS)] for row in range(ROWS)])
    return pa.record_batch(
        {"r": pa.array(range(ROWS), pa.int32()), **columns, "i": pa.array(numbers, pa.int32()), "s": texts}
    )


def expressions() -> Sequence[str]:
    names = list(SIZES)
    found = [f"{x} {sign} {y}" for sign in "+*/" for x, y in product(names, "abch")]
    found += [f"{x} - {y}" for x, y in zip(names, names[3:] + names[:3], strict=True)]
    # Java refuses to divide without places where the quotient would have more than 39 digits.
    found += [f"{x} {word} {y}" for word in ("%", "DIV") for x, y in product("abceh", "abdf") if _quotient(x, y) <= 39]
    found += [f"{x} {sign} {literal}" for sign in "+*/" for x, literal in product("abe", LITERALS)]
    found += [f"7 / {x}" for x in names] + [
        f"{x} {sign} {other}" for sign in "-*/%" for x, other in product("bc", NUMBERS)
    ]
    found += [f"{x} {sign} {y}" for sign in ("=", "<", ">=", "<=>") for x, y in (("a", "b"), ("b", "c"), ("d", "i"))]
    found += [f"{x} > {literal}" for x, literal in product("abk", LITERALS)]
    found += [f"coalesce({x}, {y})" for x, y in product("abc", ("b", "h", "1", "0.5", *NUMBERS))]
    found += ["if(i > 0, a, c)", "if(i > 0, e, b)", "greatest(a, b, c)", "least(h, a)", "nullif(a, b)", "c IN (1, 2)"]
    found += ["b IN (a, h, 0.5)", "a BETWEEN b AND 7", "e * (1 - f) * (1 + k)", "e * 100 / c", "a * b * c", "e / f / k"]
    found += [f"{function}({x})" for function in ("floor", "ceil", "round", "bround", "abs", "-") for x in "abcfk"]
    found += [f"{function}({x}, {n})" for function in ("round", "bround") for x, n in product("bch", (2, 37))]
    found += [f"CAST({x} AS DECIMAL({p},{s}))" for x in "abcde" for p, s in ((38, 0), (38, 38), (38, 10), (9, 4))]
    found += [f"CAST({x} AS {type})" for x in "abck" for type in ("STRING", "DOUBLE", "BOOLEAN")]
    found += [f"CAST({x} AS {type})" for x in "bef" for type in ("INT", "BIGINT")]
    found += [f"CAST(s AS DECIMAL{size})" for size in ("", "(38,0)", "(38,38)", "(38,10)", "(5,2)")]
    found += ["try_divide(a, b)", "try_add(a, a)", "try_multiply(c, h)", "try_subtract(b, a)", "try_mod(f, i)"]
    return found


def _quotient(x: str, y: str) -> int:
    """The most digits of a quotient without places."""
    return SIZES[x][0] - SIZES[x][1] + SIZES[y][1]
