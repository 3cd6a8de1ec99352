"""Random expression trees, and random chains without parentheses, give what real Spark gives."""

import re
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from sql_kit import by_spark, differences, evaluated, spec

from simulator.local_typer import LocalTyper

pytestmark = pytest.mark.spark

BATCH = 50  # expressions in one Spark query
FEW = settings(
    derandomize=True,
    deadline=None,
    max_examples=3,
    phases=[Phase.generate],  # a failure names the expression: nothing to shrink, one Spark query at a time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [0, 1, -1, None, 5, -7, 9]),
    "j": (pa.int32(), [3, None, 0, -2, 4]),
    "l": (pa.int64(), [0, 2**31, None, -(2**33), 17, 1]),
    "x": (pa.float64(), [0.0, -0.0, 1.5, None, NAN, INF, -INF, 0.1, -2.5, 1e-300, 3.0]),
    "p": (pa.decimal128(5, 2), [None, 0, 1, -3, 12, 999]),
    "s": (pa.string(), ["", "a", None, "Ab", " b", "ß", "日本", "a%"]),
    "u": (pa.string(), ["a", None, "", "b"]),
    "d": (pa.date32(), [date(1970, 1, 1), None, date(2024, 2, 29), date(1969, 12, 31), date(1, 3, 1)]),
    "b": (pa.bool_(), [True, False, None]),
}


def table() -> pa.RecordBatch:
    arrays = [pa.array([values[row % len(values)] for row in range(140)], type) for type, values in VALUES.values()]
    return pa.RecordBatch.from_arrays([pa.array(range(140), pa.int32()), *arrays], names=["r", *VALUES])


LEAVES = {
    "int": "i; j; l; 0; 1; -3; 7L; CAST(NULL AS INT); length(s); year(d)",
    "float": "x; 0D; -1.5D; 1e2; CAST(i AS DOUBLE); CAST(NULL AS DOUBLE)",
    "text": "s; u; 'a'; ''; ' B '; CAST(NULL AS STRING); CAST(i AS STRING)",
    "day": "d; DATE '2024-01-31'; CAST(NULL AS DATE)",
    "bool": "b; true; false; CAST(NULL AS BOOLEAN); (i IS NULL); (p > 1.5)",
}
# What an expression is made of: in braces, expressions of those types. No integer can leave its range.
SHAPES = {
    "int": """({int} + {int}); ({int} - {int} % 100); (({int} % 1000) * ({int} % 1000)); ({int} DIV nullif({int}, 0));
        ({int} % nullif({int}, 0)); abs({int}); -({int}); length({text}); instr({text}, {text}); month({day});
        datediff({day}, {day})""",
    "float": """({float} + {float}); ({float} - {int}); ({float} * {float}); ({int} / nullif({float}, 0)); -({float});
        ({float} / nullif({int}, 0)); nanvl({float}, {float})""",
    "text": """({text} || {text}); upper({text}); trim({text}); replace({text}, {text}, {text}); CAST({int} AS STRING);
        CAST({bool} AS STRING); CAST({day} AS STRING);
        substring({text}, CAST({int} % 5 AS INT), CAST({int} % 4 AS INT))""",
    "day": "date_add({day}, CAST({int} % 1000 AS INT)); trunc({day}, 'month')",
    "bool": """({bool} AND {bool}); ({bool} OR {bool}); (NOT {bool}); ({int} < {float}); ({float} = {int});
        ({int} IN ({int}, {int})); ({text} NOT IN ({text}, 'a', {text})); ({float} BETWEEN {float} AND {float});
        ({text} LIKE 'a%'); isnan({float})""",
}
FOR_ALL = """CASE WHEN {bool} THEN {same} WHEN {bool} THEN {same} END; if({bool}, {same}, {same});
    coalesce({same}, {same}); nullif({same}, {same}); greatest({same}, {same}, {same}); least({same}, {same})"""
COMPARED = """({same} = {same}); ({same} <> {same}); ({same} < {same}); ({same} >= {same}); ({same} <=> {same});
    ({same} IS NULL)"""


def trees(depth: int) -> dict[str, SearchStrategy[str]]:
    """Expressions of each type, at most ``depth`` deep."""
    leaves = {kind: st.sampled_from(texts.split("; ")) for kind, texts in LEAVES.items()}
    if depth == 0:
        return leaves
    below = trees(depth - 1)
    shapes = {kind: [*listed(SHAPES[kind]), *same(FOR_ALL, kind)] for kind in LEAVES}
    shapes["bool"] += [shape for kind in LEAVES for shape in same(COMPARED, kind)]
    return {kind: st.one_of(leaves[kind], *(filled(shape, below) for shape in shapes[kind])) for kind in LEAVES}


def listed(texts: str) -> list[str]:
    return [text.strip() for text in texts.split(";")]


def same(texts: str, kind: str) -> list[str]:
    return [text.replace("{same}", f"{{{kind}}}") for text in listed(texts)]


def filled(shape: str, below: dict[str, SearchStrategy[str]]) -> SearchStrategy[str]:
    """The shape with an expression in each brace."""
    words = re.split(r"\{(\w+)\}", shape)
    return st.tuples(*(below[word] if place % 2 else st.just(word) for place, word in enumerate(words))).map("".join)


def form(template: str, *parts: SearchStrategy[str]) -> SearchStrategy[str]:
    return st.tuples(*parts).map(lambda texts: template.format(*texts))


def chains() -> SearchStrategy[str]:
    """Operators in a row: what binds to what is for the two parsers to say."""
    atom = st.sampled_from(["i", "j", "2", "-3", "- i", "(i + 1)", "7"])
    term = st.lists(st.tuples(st.sampled_from([" + ", " - ", " * ", "* "]), atom), max_size=4)
    number = st.tuples(atom, term).map(lambda parts: parts[0] + "".join(sign + one for sign, one in parts[1]))
    compared = form("{} {} {}", number, st.sampled_from(["=", "<", "<=", "<>", "!=", "<=>"]), number)
    ranged = form("{} {} {} AND {}", number, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), number, number)
    listed = form("{} {} ({}, {})", number, st.sampled_from(["IN", "NOT IN"]), number, number)
    nulled = form("{} {}", number, st.sampled_from(["IS NULL", "IS NOT NULL"]))
    like = st.sampled_from(["s LIKE 'a%'", "s || u LIKE '%b'", "s NOT LIKE ''", "b", "!b"])
    truth = st.one_of(compared, ranged, listed, nulled, like)
    signed = st.tuples(st.sampled_from(["", "NOT ", "NOT NOT ", "! "]), truth).map("".join)
    links = st.lists(st.tuples(st.sampled_from([" AND ", " OR ", " and "]), signed), max_size=4)
    return st.tuples(signed, links).map(lambda parts: parts[0] + "".join(word + one for word, one in parts[1]))


def check_equal(spark: Any, expressions: list[str]) -> None:
    rows = table()
    ours = evaluated(rows, expressions, LocalTyper({"t": spec("t", rows.schema)}))
    theirs = by_spark(spark, rows, expressions)
    assert differences(ours, theirs, expressions, rows) == []
    assert ours.schema.types == [field.type for field in theirs.schema]


@FEW
@given(st.lists(st.one_of(*trees(3).values()), min_size=BATCH, max_size=BATCH))
def test_random_expressions_equal_spark(spark: Any, expressions: list[str]) -> None:
    check_equal(spark, expressions)


@FEW
@given(st.lists(chains(), min_size=BATCH, max_size=BATCH))
def test_operators_bind_as_in_spark(spark: Any, expressions: list[str]) -> None:
    check_equal(spark, expressions)
