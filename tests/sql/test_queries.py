"""Plans: what a view's SQL becomes, what its names mean, and which keys it may have."""

import pyarrow as pa
import pytest
from sql_kit import Parts, local_plan, parts_of, spec

from upriver.errors import DeclarationError, UnsupportedSql
from upriver.plan.plan import (
    AggregateCall,
    AggregatePlan,
    DataflowPlan,
    ExchangeEdge,
    LakeEdge,
    Projection,
    ProjectOp,
    ViewStore,
)

FLIGHTS = spec(
    "flights",
    pa.schema(
        [
            ("TailNum", pa.string()),
            ("carrier", pa.string()),
            ("day", pa.date32()),
            ("distance", pa.int32()),
            ("delay", pa.float64()),
            ("fare", pa.decimal128(9, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.map_(pa.string(), pa.string())),
        ]
    ),
)


def plan(sql: str, *key: str) -> DataflowPlan:
    return local_plan(sql, key or ("tailnum",), FLIGHTS)


def parts(sql: str, *key: str) -> Parts:
    """Of a view that is one region."""
    return parts_of(plan(sql, *key))


def groups(made: Parts) -> AggregatePlan:
    """Of a view of groups."""
    assert made.store.aggregate is not None
    return made.store.aggregate


def group_schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, type) for name, type in fields])


def test_the_plan_of_a_grouped_view() -> None:
    sql = "SELECT tailnum, count(*) AS n, sum(distance) AS miles FROM flights WHERE distance > 100 GROUP BY tailnum"
    schema = group_schema(("tailnum", pa.string()), ("n", pa.int64()), ("miles", pa.int64()))
    made = plan(sql)
    assert (made.name, made.sql, made.key, made.schema) == ("v", sql, ("tailnum",), schema)
    assert parts_of(made) == Parts(
        key=("tailnum",),
        edge=LakeEdge("flights", ("TailNum",)),
        filter='("distance" > CAST(100 AS INTEGER))',
        project=Projection(
            ('"TailNum"', '"distance"'), group_schema(("TailNum", pa.string()), ("distance", pa.int32()))
        ),
        store=ViewStore(
            key=("TailNum",),
            aggregate=AggregatePlan(
                ("TailNum",),
                (
                    AggregateCall("count_star", None, "count(*)", pa.int64()),
                    AggregateCall("sum", "distance", "sum(distance)", pa.int64()),
                ),
            ),
            having=None,
            output=Projection(('"TailNum"', '"count(*)"', '"sum(distance)"'), schema),
        ),
    )


def test_the_plan_of_a_view_of_rows() -> None:
    made = parts("SELECT f.distance * 2 AS twice, f.TAILNUM AS plane, tags FROM flights AS f", "PLANE")
    schema = group_schema(("twice", pa.int32()), ("plane", pa.string()), ("tags", pa.map_(pa.string(), pa.string())))
    assert made.project == Projection(('("distance" * CAST(2 AS INTEGER))', '"TailNum"', '"tags"'), schema)
    assert made.store.output == Projection(('"twice"', '"plane"', '"tags"'), schema)
    assert (made.store.aggregate, made.store.having, made.filter) == (None, None, None)
    assert (made.edge.index, made.key) == (("TailNum",), ("plane",))


def test_a_star_is_all_columns_as_the_table_spells_them() -> None:
    for star in ("*", "flights.*", "Flights.*"):
        made = plan(f"SELECT {star} FROM flights")
        assert made.schema.names == FLIGHTS.schema.names
        assert made.key == ("TailNum",)
    assert plan("SELECT *, distance + 1 AS more FROM flights").schema.names == [*FLIGHTS.schema.names, "more"]


def test_the_key_comes_first_in_the_group_and_keeps_its_order() -> None:
    made = parts(
        "SELECT carrier AS c, day, tailnum AS t, count(*) AS n FROM flights GROUP BY carrier, year(day), day, tailnum",
        "t",
        "c",
    )
    assert (made.edge.index, made.key) == (("TailNum", "carrier"), ("t", "c"))
    assert groups(made).group == ("TailNum", "carrier", "year(day)", "day")
    assert made.project.expressions == ('"carrier"', 'CAST(year("day") AS INTEGER)', '"day"', '"TailNum"')
    assert made.project.schema.names == ["carrier", "year(day)", "day", "TailNum"]


def test_an_aggregate_and_its_argument_are_computed_once() -> None:
    made = parts(
        """SELECT tailnum, sum(distance + 1) AS s, SUM(flights.Distance + 1) / count(1) AS mean, count(*) AS n,
                  max(distance + 1) - min(tailnum_length) AS r, max((distance + 1)) AS m
           FROM flights GROUP BY tailnum""".replace("tailnum_length", "length(tailnum)")
    )
    assert [(call.function, call.argument) for call in groups(made).calls] == [
        ("sum", "distance + 1"),
        ("count_star", None),
        ("max", "distance + 1"),
        ("min", "length(tailnum)"),
    ]
    assert made.project.schema.names == ["TailNum", "distance + 1", "length(tailnum)"]
    mean = 'spark_divide(CAST("sum(distance + 1)" AS DOUBLE), CAST("count(1)" AS DOUBLE))'
    assert made.store.output.expressions[2] == mean


@pytest.mark.parametrize(
    "group",
    [
        "year(day), tailnum",
        "2, 1",
        "y, t",
        "tailnum, YEAR(flights.day)",
        "(2), (tailnum)",
        "t, y, 1, tailnum, year(day)",
    ],
)
def test_a_group_may_be_named_by_position_alias_or_expression(group: str) -> None:
    made = parts(f"SELECT tailnum AS t, year(day) AS y, year(day) + 1 AS next FROM flights GROUP BY {group}", "t")
    computed = dict(zip(made.project.expressions, made.project.schema.names, strict=True))
    assert set(computed) == {'"TailNum"', 'CAST(year("day") AS INTEGER)'}
    year = computed['CAST(year("day") AS INTEGER)']
    assert groups(made).group == (computed['"TailNum"'], year)
    assert made.store.output.expressions[1:] == (f'"{year}"', f'("{year}" + CAST(1 AS INTEGER))')


def test_a_column_goes_before_an_alias_in_group_by() -> None:
    made = parts("SELECT tailnum, max(distance) AS day FROM flights GROUP BY tailnum, day")
    assert made.project.expressions == ('"TailNum"', '"day"', '"distance"')


def test_an_alias_goes_before_a_column_in_having() -> None:
    made = parts(
        "SELECT tailnum, sum(distance) AS delay FROM flights GROUP BY tailnum HAVING delay > 5 AND max(delay) > 2"
    )
    assert made.store.having is not None
    first, second = made.store.having.split(" AND ")
    assert '"sum(distance)"' in first  # which Spark compares as the DOUBLE that the column is
    assert second == "(\"max(delay)\" > CAST('2.0' AS DOUBLE))"
    assert made.project.expressions == ('"TailNum"', '"distance"', '"delay"')


def test_having_may_use_an_aggregate_that_is_not_selected() -> None:
    made = parts("SELECT tailnum FROM flights GROUP BY tailnum HAVING count(*) > 1 AND avg(fare) < 2.5")
    assert [call.function for call in groups(made).calls] == ["count_star", "avg"]
    assert groups(made).calls[1].type == pa.decimal128(13, 6)


def test_a_distinct_like_group_needs_no_aggregate() -> None:
    made = parts("SELECT tailnum, carrier FROM flights GROUP BY tailnum, carrier")
    assert made.store.aggregate == AggregatePlan(("TailNum", "carrier"), ())


def test_groups_of_doubles_are_normal() -> None:
    first, last = plan("SELECT delay, count(*) AS n FROM flights GROUP BY delay", "delay").regions
    (computed,) = (node.op for node in first.nodes)
    normal = Projection(('CAST(spark_group("delay") AS DOUBLE)',), group_schema(("delay", pa.float64())))
    assert computed == ProjectOp(normal)
    assert [entry.edge for entry in last.inputs] == [ExchangeEdge(first.name, ("delay",))]


def test_conditions_that_can_fail_are_guarded() -> None:
    made = parts("SELECT tailnum FROM flights WHERE distance <> 0 AND delay > 1 AND delay / distance > 1 AND delay < 9")
    guarded = (
        'CASE WHEN (NOT ("distance" = CAST(0 AS INTEGER))) THEN CASE WHEN ("delay" > CAST(\'1.0\' AS DOUBLE)) THEN ('
    )
    assert made.filter is not None
    assert made.filter.startswith(guarded)


def test_long_chains_are_no_trouble() -> None:
    made = parts("SELECT tailnum FROM flights WHERE " + " OR ".join(f"distance = {n}" for n in range(500)))
    assert made.filter is not None
    assert made.filter.count(" OR ") == 499


@pytest.mark.parametrize("key", ["tailnum", ["tailnum"], ("TAILNUM",)])
def test_a_key_is_one_name_or_several(key: str | list[str] | tuple[str]) -> None:
    assert local_plan("SELECT tailnum FROM flights", key, FLIGHTS).key == ("tailnum",)


GROUPED = "SELECT tailnum, upper(carrier) AS big, count(*) AS n FROM flights GROUP BY tailnum, carrier"
WRONG_KEYS = [
    (GROUPED, ("plane",), "its key 'plane' is none of its columns. They are tailnum, big, n."),
    (GROUPED, ("tailnum", "TAILNUM"), "its key names a column twice, tailnum, tailnum"),
    ("SELECT tailnum, tags FROM flights", ("tags",), "its key 'tags' is of type MAP"),
]


@pytest.mark.parametrize(("sql", "key", "why"), WRONG_KEYS)
def test_a_key_that_cannot_be(sql: str, key: tuple[str, ...], why: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        local_plan(sql, key, FLIGHTS)
    assert why in str(raised.value)
    assert str(raised.value).startswith("view 'v'")


WRONG_SQL = [
    ("", "unexpected empty statement"),
    ("SELECT 'open FROM flights", "Syntax error at or near ''"),
    ("SELECT tailnum FROM trains", "no table or view 'trains' is declared; there are: flights"),
    ("SELECT flights.tailnum FROM flights f", "name `flights`.`tailnum` cannot be resolved"),
    ("SELECT tailnum, TailNum FROM flights", "several columns have one name: 'tailnum' (2 times)"),
    ("SELECT tailnum, carrier FROM flights GROUP BY tailnum", 'The non-aggregating expression "carrier"'),
    ("SELECT tailnum FROM flights WHERE count(*) > 1", "invalid expressions: count(1)"),
]


@pytest.mark.parametrize(("sql", "why"), WRONG_SQL)
def test_sql_that_makes_no_sense(sql: str, why: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        plan(sql)
    assert why in str(raised.value)


def test_columns_that_differ_in_case_alone_are_ambiguous() -> None:
    table = spec("t", pa.schema([("k", pa.int32()), ("a", pa.int32()), ("A", pa.int32())]))
    assert parts_of(local_plan("SELECT k FROM t", "k", table)).edge == LakeEdge("t", ("k",))
    with pytest.raises(DeclarationError, match="Reference `a` is ambiguous"):
        local_plan("SELECT k, a FROM t", "k", table)


def test_a_message_shows_the_place() -> None:
    with pytest.raises(UnsupportedSql) as raised:
        plan("SELECT tailnum,\n\t rand() AS x\nFROM flights")
    first, line, caret = str(raised.value).splitlines()
    assert first.startswith("view 'v', line 2, column 3: rand(), which gives another answer each time,")
    assert (line, caret) == ("\t rand() AS x", "\t ^")


def test_a_column_without_a_name_gets_that_of_spark() -> None:
    assert plan("SELECT tailnum, distance + 1, count(*) FROM flights GROUP BY ALL").schema.names == [
        "tailnum",
        "(distance + 1)",
        "count(1)",
    ]


def test_columns_have_sparks_types() -> None:
    sql = "SELECT TAILNUM, sum(distance) AS s, avg(distance) AS a, sum(fare) AS f, max(at) AS t FROM flights GROUP BY 1"
    assert plan(sql).schema == group_schema(
        ("TAILNUM", pa.string()),
        ("s", pa.int64()),
        ("a", pa.float64()),
        ("f", pa.decimal128(19, 2)),
        ("t", pa.timestamp("us", tz="UTC")),
    )
