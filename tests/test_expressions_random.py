"""Random expression trees, and random chains without parentheses, give what real Spark gives."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from sql_kit import by_spark, differences, evaluated, spec

from upriver.dataflow.local_typer import LocalTyper

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


def form(template: str, *parts: SearchStrategy[str]) -> SearchStrategy[str]:
    return st.tuples(*parts).map(lambda texts: template.format(*texts))


def trees(depth: int) -> dict[str, SearchStrategy[str]]:
    """Expressions of each type, at most ``depth`` deep; no integer can leave its range, as factors are remainders."""
    if depth == 0:
        return {
            "int": st.sampled_from(["i", "j", "l", "0", "1", "-3", "7L", "CAST(NULL AS INT)", "length(s)", "year(d)"]),
            "float": st.sampled_from(["x", "0D", "-1.5D", "1e2", "CAST(i AS DOUBLE)", "CAST(NULL AS DOUBLE)"]),
            "text": st.sampled_from(["s", "u", "'a'", "''", "' B '", "CAST(NULL AS STRING)", "CAST(i AS STRING)"]),
            "day": st.sampled_from(["d", "DATE '2024-01-31'", "CAST(NULL AS DATE)"]),
            "bool": st.sampled_from(["b", "true", "false", "CAST(NULL AS BOOLEAN)", "(i IS NULL)", "(p > 1.5)"]),
        }
    low = trees(depth - 1)
    whole, real, text, day, truth = (low[kind] for kind in ("int", "float", "text", "day", "bool"))
    shared = {kind: _choices(low[kind], truth) for kind in low}
    return {
        "int": st.one_of(
            whole,
            form("({} + {})", whole, whole),
            form("({} - {} % 100)", whole, whole),
            form("(({} % 1000) * ({} % 1000))", whole, whole),
            form("({} DIV nullif({}, 0))", whole, whole),
            form("({} % nullif({}, 0))", whole, whole),
            form("abs({})", whole),
            form("-({})", whole),
            form("length({})", text),
            form("instr({}, {})", text, text),
            form("datediff({}, {})", day, day),
            form("month({})", day),
            shared["int"],
        ),
        "float": st.one_of(
            real,
            form("({} + {})", real, st.one_of(real, whole)),
            form("({} * {})", real, real),
            form("({} - {})", whole, real),
            form("({} / nullif({}, 0))", st.one_of(whole, real), st.one_of(whole, real)),
            form("nanvl({}, {})", real, real),
            form("-({})", real),
            shared["float"],
        ),
        "text": st.one_of(
            text,
            form("({} || {})", text, text),
            form("substring({}, CAST({} % 5 AS INT), CAST({} % 4 AS INT))", text, whole, whole),
            form("upper({})", text),
            form("trim({})", text),
            form("replace({}, {}, {})", text, text, text),
            form("CAST({} AS STRING)", st.one_of(whole, truth, day)),
            shared["text"],
        ),
        "day": st.one_of(
            day,
            form("date_add({}, CAST({} % 1000 AS INT))", day, whole),
            form("trunc({}, 'month')", day),
            shared["day"],
        ),
        "bool": st.one_of(
            truth,
            *(
                form("({} {} {})", kind, st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]), kind)
                for kind in (whole, real, text, day, truth)
            ),
            form("({} {} {})", whole, st.sampled_from(["<", "=", ">="]), real),
            form("({} AND {})", truth, truth),
            form("({} OR {})", truth, truth),
            form("(NOT {})", truth),
            form("({} IN ({}, {}))", whole, whole, whole),
            form("({} NOT IN ({}, 'a', {}))", text, text, text),
            form("({} BETWEEN {} AND {})", real, real, real),
            form("({} IS NULL)", st.one_of(whole, real, text, day, truth)),
            form("({} LIKE 'a%')", text),
            form("isnan({})", real),
        ),
    }


def _choices(kind: SearchStrategy[str], truth: SearchStrategy[str]) -> SearchStrategy[str]:
    """The ways to choose between expressions of one type."""
    return st.one_of(
        form("CASE WHEN {} THEN {} WHEN {} THEN {} END", truth, kind, truth, kind),
        form("if({}, {}, {})", truth, kind, kind),
        form("coalesce({}, {})", kind, kind),
        form("nullif({}, {})", kind, kind),
        form("greatest({}, {}, {})", kind, kind, kind),
        form("least({}, {})", kind, kind),
    )


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
