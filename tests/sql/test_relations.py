"""Queries as trees of relations: what each construct becomes."""

import re
from typing import TypeVar

import pyarrow as pa
import pytest
from query_kit import names_are_apart, tables

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import DeclarationError
from upriver.plan.plan import (
    AggregateCall,
    AggregateOp,
    FilterOp,
    JoinKind,
    JoinOp,
    Op,
    Order,
    ProjectOp,
    Ranking,
    Replicated,
    Scan,
    SetKind,
    SetOperationOp,
    TopKOp,
    UnionOp,
    WindowOp,
)
from upriver.plan.relation import Relation
from upriver.sql.views import CompiledView, compile_view

TABLES = tables()
Found = TypeVar("Found", bound=Op)


def compiled(sql: str, **views: str) -> CompiledView:
    return compile_view("v", sql, TABLES, views, SharedAnalyser(TABLES))


def tree(sql: str, **views: str) -> Relation:
    return compiled(sql, **views).relation


def found(relation: Relation, kind: type[Found]) -> list[Found]:
    """The operators of a kind, from the root down."""
    below = [op for part in relation.inputs for op in found(part, kind)]
    return [relation.op, *below] if isinstance(relation.op, kind) else below


def kinds(relation: Relation) -> list[str]:
    """The operators along the first inputs."""
    names = []
    while True:
        names.append(type(relation.op).__name__)
        if not relation.inputs:
            return names
        relation = relation.inputs[0]


# Structure


def test_a_grouped_query_has_its_operators_in_the_order_of_the_clauses() -> None:
    view = tree("SELECT k, count(*) AS n FROM sales WHERE i > 1 GROUP BY k HAVING n > 2")
    order = [name for name in kinds(view) if name != "ProjectOp"]
    assert order == ["FilterOp", "AggregateOp", "FilterOp", "Scan"]
    assert view.schema.names == ["k", "n"]


def test_a_join_reads_its_condition_in_parts() -> None:
    on = "s.k = q.k AND s.i <=> q.j AND s.l < q.j AND q.j > 1 AND s.b"
    view = tree(f"SELECT s.k, q.j FROM sales s LEFT JOIN people q ON {on}")
    (join,) = found(view, JoinOp)
    assert join.kind == JoinKind.LEFT
    assert (join.left_key, join.right_key, join.null_safe) == (("k", "i_1"), ("k_1", "j"), (False, True))
    assert join.condition == '"b" AND ("l" < "j")'
    (of_right,) = found(view, FilterOp)
    assert of_right.predicate == '("j" > CAST(1 AS BIGINT))'


def test_types_that_differ_meet_below_the_join() -> None:
    view = tree("SELECT s.i, q.j FROM sales s JOIN people q ON s.i = q.j")
    (join,) = found(view, JoinOp)
    computed = found(view, ProjectOp)[1]
    assert computed.projection.expressions[-1] == 'CAST("i" AS BIGINT)'
    assert computed.projection.schema.field(join.left_key[0]).type == pa.int64()


def test_where_is_asked_before_the_join_or_in_its_order() -> None:
    where = "s.i > 1 AND q.j < 5 AND s.i / q.j > 1 AND 1 / s.i < 1 AND s.i < q.j"
    view = tree(f"SELECT s.k FROM sales s JOIN people q ON s.k = q.k WHERE {where}")
    (join,) = found(view, JoinOp)
    above, left, right = [op.predicate for op in found(view, FilterOp)]
    assert left.startswith('CASE WHEN ("i" > CAST(1 AS INTEGER)) THEN (spark_divide(')
    assert right == '("j" < CAST(5 AS BIGINT))'
    assert join.condition is None, "a join cannot try a pair again at the end of its epoch"
    assert "spark_divide(" in above
    assert above.endswith('(CAST("i" AS BIGINT) < "j")')


def test_comparisons_of_both_sides_are_bands() -> None:
    """Up to the first condition that can fail, unless it is a band itself; none of an outer join with such a one."""
    for kind, on, bands, tried in (
        ("", "s.i BETWEEN q.j AND q.j + 1 AND s.k > q.k", "i_1 >= j, i_1 <= q.j + 1", "q.j + 1"),
        ("LEFT", "q.j > s.l AND s.k < q.k AND s.l <> q.j AND q.j <= s.i + 1", "l <= j, s.i + 1 >= j", "s.i + 1"),
        ("", "s.l > q.j AND s.l / q.j > 1 AND s.i < q.j", "l >= j", ""),
        ("LEFT", "s.l > q.j AND s.l / q.j > 1 AND s.i < q.j", "", ""),
        ("", "s.l / (s.l - 1) > q.j AND s.l > q.j", "", ""),
        ("", "s.l + q.j > 1 AND s.k >= q.k AND s.l > 1 AND q.j < 5", "", ""),
    ):
        view = tree(f"SELECT s.k, q.j FROM sales s {kind} JOIN people q ON {on}")
        (join,) = found(view, JoinOp)
        said = [f"{band.left} {'<=' if band.at_most else '>='} {band.right}" for band in join.bands]
        assert (", ".join(said), ", ".join(join.tried)) == (bands, tried), on


def test_the_tables_of_a_side_in_all_slots_are_known() -> None:
    for text, replicated in (
        ("sales s JOIN people q ON s.l > q.j", Replicated(1, ("people",))),
        (
            "sales s RIGHT JOIN (SELECT * FROM people UNION ALL SELECT * FROM people) q ON s.l > q.j",
            Replicated(0, ("sales",)),
        ),
        ("sales s FULL JOIN people q ON s.l > q.j", None),
        ("sales s JOIN people q ON s.k = q.k AND s.l > q.j", None),
    ):
        (join,) = found(tree(f"SELECT s.k FROM {text}"), JoinOp)
        assert join.replicated == replicated, text


def test_where_stays_above_an_outer_join_that_may_add_nulls() -> None:
    view = tree("SELECT s.k FROM sales s LEFT JOIN people q ON s.k = q.k WHERE coalesce(q.j, 0) < 5 AND s.i > 1")
    assert kinds(view) == ["ProjectOp", "FilterOp", "JoinOp", "FilterOp", "Scan"]
    (join,) = found(view, JoinOp)
    assert join.kind is JoinKind.LEFT


def test_an_outer_join_whose_nulls_where_refuses_is_an_inner_one() -> None:
    for kind, where, inner in (
        ("LEFT", "q.j < 5 AND s.i > 1", JoinKind.INNER),
        ("RIGHT", "s.i > 1", JoinKind.INNER),
        ("RIGHT", "q.j < 5", JoinKind.RIGHT),
        ("FULL", "q.j < 5", JoinKind.RIGHT),
        ("FULL", "s.i IS NOT NULL", JoinKind.LEFT),
        ("FULL", "s.i > 1 AND q.j < 5", JoinKind.INNER),
        ("FULL", "s.i < q.j", JoinKind.INNER),
        ("FULL", "coalesce(s.i, q.j) > 1", JoinKind.FULL),
        ("LEFT", "q.j IS NULL", JoinKind.LEFT),
    ):
        view = tree(f"SELECT s.k FROM sales s {kind} JOIN people q ON s.k = q.k WHERE {where}")
        (join,) = found(view, JoinOp)
        assert join.kind is inner, (kind, where)


def test_a_comma_takes_its_equality_from_where_in_any_order() -> None:
    view = tree("SELECT s.k FROM sales s, places r, people q WHERE r.k = q.k AND q.j = s.l")
    first, second = found(view, JoinOp)
    assert (second.left_key, second.right_key) == (("l",), ("j",))
    assert (first.left_key, first.right_key) == (("k_1",), ("k_2",))


def test_a_row_number_is_bounded_by_its_condition() -> None:
    rank = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY i DESC, x)"
    numbered = f"SELECT *, {rank} AS n FROM sales"
    for condition, limit, filtered in (
        ("n <= 3", 3, False),
        ("n < 3", 2, False),
        ("3 > n", 2, False),
        ("n = 1", 1, False),
        ("n = 2", 2, True),
        ("n BETWEEN 1 AND 4", 4, True),
        ("n BETWEEN 2 AND 4", 4, True),
        ("n <= 5 AND n <= 2", 2, False),
        ("n IN (1, 3)", 3, True),
        ("n <= 5 AND i > 1", 5, True),
    ):
        view = tree(f"SELECT k, i, n FROM ({numbered}) WHERE {condition}")
        order = (Order("i", True, False), Order("x", False, True))
        assert found(view, TopKOp) == [TopKOp(("k",), order, limit, Ranking.ROW_NUMBER, "n")], condition
        assert bool(found(view, FilterOp)) == filtered, condition


def test_a_bound_is_found_through_joins_and_views() -> None:
    ranked = "SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i) AS n FROM sales"
    sql = f"WITH r AS ({ranked}) SELECT q.name, r.i FROM people q LEFT JOIN r ON r.k = q.k AND r.n <= 2"
    assert [op.limit for op in found(tree(sql), TopKOp)] == [2]
    sql = f"WITH r AS ({ranked}) SELECT q.name, r.i FROM people q LEFT JOIN r ON r.k = q.k WHERE r.n <= 2"
    assert [op.limit for op in found(tree(sql), TopKOp)] == [2]
    view = tree(f"{sql} OR r.n IS NULL")
    assert not found(view, TopKOp)
    assert [call.function for op in found(view, WindowOp) for call in op.calls] == ["rank"]


def test_functions_of_one_window_are_one_operator() -> None:
    window = "(PARTITION BY k ORDER BY i)"
    view = tree(
        f"SELECT sum(l) OVER {window} AS s, lag(l) OVER (PARTITION BY b ORDER BY i) AS o, RANK() OVER {window} AS r, "
        f"ROW_NUMBER() OVER w AS n FROM sales WINDOW w AS {window}"
    )
    calls = sorted(tuple(call.function for call in op.calls) for op in found(view, WindowOp))
    assert calls == [("lag",), ("sum", "rank", "row_number")]


@pytest.mark.parametrize(
    ("frame", "start", "end"),
    [
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", None, 0),
        ("rows between 3 preceding and unbounded following", -3, None),
        ("Rows Between Current Row And 2 Following", 0, 2),
        ("rows 2 preceding", -2, 0),
        ("RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING", -2, -1),
        ("range between -2 preceding and 3 following", 2, 3),
        ("range unbounded preceding", None, 0),
    ],
)
def test_the_bounds_of_a_frame_in_any_case(frame: str, start: int | None, end: int | None) -> None:
    view = tree(f"SELECT sum(l) OVER (PARTITION BY k ORDER BY i {frame}) AS s FROM sales")
    ((call,),) = [op.calls for op in found(view, WindowOp)]
    assert (call.frame.unit, call.frame.start, call.frame.end) == (frame.split()[0].lower(), start, end)


def test_a_bound_of_one_rank_drops_no_row_from_the_other_windows() -> None:
    sql = (
        "SELECT k, s FROM (SELECT k, sum(l) OVER (PARTITION BY b) AS s, RANK() OVER (PARTITION BY k ORDER BY i) AS r, "
        "RANK() OVER (PARTITION BY b ORDER BY i) AS q FROM sales) WHERE r = 1 AND q <= 2"
    )
    view = tree(sql)
    (top,) = found(view, TopKOp)
    assert (top.partition, top.limit) == (("b",), 2)  # the outermost: its bound is applied after all other windows
    assert [call.function for op in found(view, WindowOp) for call in op.calls] == ["rank", "sum"]


def test_the_first_rows_of_all_are_of_one_partition() -> None:
    view = tree("SELECT k, i AS v FROM sales ORDER BY v DESC, l LIMIT 3")
    order = (Order("v", True, False), Order("l", False, True))
    assert found(view, TopKOp) == [TopKOp((), order, 3, Ranking.ROW_NUMBER, None)]
    assert view.schema.names == ["k", "v"]


def test_a_window_that_slides_is_a_union_of_projections() -> None:
    view = tree("SELECT window.start AS s, count(*) AS n FROM sales GROUP BY window(ts, '10 minutes', '3 minutes')")
    (union,) = [part for part in walked(view) if isinstance(part.op, UnionOp)]
    assert len(union.inputs) == 4
    assert [len(found(part, FilterOp)) for part in union.inputs] == [1] * 4
    (groups,) = found(view, AggregateOp)
    assert groups.plan.group == ("window.start", "window.end")


def test_a_tumbling_window_is_one_projection() -> None:
    view = tree("SELECT k, window(ts, '10 minutes').end AS e FROM sales")
    assert kinds(view) == ["ProjectOp", "ProjectOp", "FilterOp", "Scan"]
    assert not found(view, UnionOp)


def test_aggregates_of_picked_and_of_distinct_values() -> None:
    calls = "count(DISTINCT i) FILTER (WHERE b) AS n, count_if(i > 1) AS m, every(b) AS e"
    (groups,) = found(tree(f"SELECT k, {calls} FROM sales GROUP BY k"), AggregateOp)
    assert groups.plan.calls == (
        AggregateCall("count", "i", "count(DISTINCT i) FILTER (WHERE b)", pa.int64(), True, "b"),
        AggregateCall("count_star", None, "count_if(i > 1)", pa.int64(), False, "i > 1"),
        AggregateCall("bool_and", "b", "every(b)", pa.bool_()),
    )


def test_distinct_rows_are_groups_without_aggregates() -> None:
    view = tree("SELECT DISTINCT k, x FROM sales")
    assert [name for name in kinds(view) if name != "ProjectOp"] == ["AggregateOp", "Scan"]
    (groups,) = found(view, AggregateOp)
    assert (groups.plan.group, groups.plan.calls) == (("k", "x"), ())
    assert found(view, ProjectOp)[1].projection.expressions == ('"k"', 'CAST(spark_group("x") AS DOUBLE)')


def test_a_chain_of_union_all_is_one_union() -> None:
    view = tree("SELECT k FROM sales UNION ALL SELECT k FROM people UNION ALL SELECT name FROM people")
    (union,) = [part for part in walked(view) if isinstance(part.op, UnionOp)]
    assert len(union.inputs) == 3
    assert all(part.schema == union.schema for part in union.inputs)


@pytest.mark.smoke
def test_set_operations_keep_their_precedence() -> None:
    view = tree("SELECT k FROM sales EXCEPT SELECT k FROM people INTERSECT ALL SELECT k FROM places")
    assert found(view, SetOperationOp) == [
        SetOperationOp(SetKind.EXCEPT, False),
        SetOperationOp(SetKind.INTERSECT, True),
    ]


def test_a_subquery_in_where_is_a_semi_join() -> None:
    subquery = "SELECT 1 FROM people q WHERE q.k = s.k AND q.j > s.i AND q.j < 5"
    view = tree(f"SELECT k FROM sales s WHERE NOT EXISTS ({subquery})")
    (join,) = found(view, JoinOp)
    assert (join.kind, join.left_key, join.right_key) == (JoinKind.ANTI, ("k",), ("k_1",))
    assert join.condition == '("j" > CAST("i" AS BIGINT))'
    assert [op.predicate for op in found(view, FilterOp)] == ['("j" < CAST(5 AS BIGINT))']


@pytest.mark.parametrize("named", ["totals", "(SELECT * FROM totals) t", "(SELECT k, i FROM sales) t"])
def test_a_subquery_whose_names_all_are_its_own_is_computed_once(named: str) -> None:
    """Though the query around has columns of these names, too."""
    group = f"SELECT k FROM {named} GROUP BY k HAVING sum(i) > 1"
    view = tree(f"SELECT s.k FROM sales s WHERE s.k IN ({group})", totals="SELECT k, i FROM sales")
    (join,) = found(view, JoinOp)
    assert (join.kind, len(join.left_key)) == (JoinKind.SEMI, 1)


def walked(relation: Relation) -> list[Relation]:
    return [relation, *(inner for part in relation.inputs for inner in walked(part))]


def states(relation: Relation) -> list[str]:
    """What keeps rows, from the root down, without the numbers of columns of one name."""
    return [re.sub(r"_\d+'", "'", str(one.op)) for one in walked(relation) if isinstance(one.op, AggregateOp | JoinOp)]


# Views over views, and WITH


def test_a_view_of_a_view_reads_the_tables() -> None:
    totals, big = "SELECT k, sum(i) AS total FROM sales GROUP BY k", "SELECT * FROM Totals WHERE total > 1"
    sql = "SELECT b.k, total, q.name FROM big b JOIN people q ON b.k = q.k"
    view = compiled(sql, totals=f"{totals};", big=big)
    assert {op.table for op in found(view.relation, Scan)} == {"sales", "people"}
    inlined = f"WITH totals AS ({totals}), big AS ({big}) {sql}"
    assert states(view.relation) == states(compiled(inlined).relation)


def test_what_is_inlined_has_no_place() -> None:
    view = compiled("SELECT b.k FROM big b JOIN people q ON b.k = q.k", big="SELECT k, i FROM sales WHERE i > 1")
    places = {part.op.table: part.place for part in walked(view.relation) if isinstance(part.op, Scan)}
    assert places == {"sales": None, "people": 27}


def test_a_message_on_a_view_of_a_view_keeps_its_place() -> None:
    """In Spark's own words and count of columns."""
    with pytest.raises(DeclarationError, match=r"name `nothing` cannot be resolved.*line 2 pos 7"):
        compiled("SELECT k,\n       nothing FROM big", big="SELECT k, i\nFROM sales -- ends here")


def test_a_query_of_with_goes_before_tables_and_views() -> None:
    sql = "WITH people AS (SELECT k FROM places), big AS (SELECT k FROM people) SELECT * FROM big"
    assert [op.table for op in found(tree(sql, big="SELECT i FROM sales"), Scan)] == ["places"]


def test_a_query_of_with_that_is_used_twice_is_one_relation() -> None:
    view = tree("WITH n AS (SELECT k, count(*) AS c FROM sales GROUP BY k) SELECT a.k FROM n a JOIN n b ON a.c = b.c")
    groups = [part for part in walked(view) if isinstance(part.op, AggregateOp)]
    assert len(groups) == 2
    assert groups[0] is groups[1]


# Names


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT k FROM sales s JOIN people q ON s.k = q.k", "Reference `k` is ambiguous"),
        ("SELECT q.name FROM sales s SEMI JOIN people q ON s.k = q.k", "name `q`.`name` cannot be resolved"),
        ("SELECT k FROM nowhere", "no table or view 'nowhere' is declared; there are: people, places, sales"),
        (
            "SELECT s.k, q.k FROM sales s JOIN people q ON s.k = q.k",
            "several columns have one name: 'k' (2 times). Name each, SELECT a.k",
        ),
        ("SELECT k, RANK() OVER (PARTITION BY i) AS n FROM sales", "rank requires the window to be ordered"),
    ],
)
def test_names_that_mean_nothing_or_too_much(sql: str, why: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        compiled(sql)
    assert why in str(raised.value)


def test_columns_of_the_same_name_are_kept_apart() -> None:
    joined = "sales s JOIN people q ON s.k = q.k JOIN places r ON r.k = q.k"
    view = tree(f"SELECT s.k AS a, Q.K AS b, r.k AS c FROM {joined}")
    assert names_are_apart(view)
    assert {key for op in found(view, JoinOp) for key in op.left_key + op.right_key} == {"k", "k_1", "k_2"}
    assert view.schema.names == ["a", "b", "c"]


def test_columns_named_as_ours_would_be_are_kept_apart() -> None:
    left, right = "(SELECT i AS `b.k` FROM sales) a", "(SELECT k AS `b.k`, j AS k FROM people) b"
    sql = f"SELECT a.`b.k`, b.k AS other FROM {left} JOIN {right} ON a.`b.k` = b.k"
    assert names_are_apart(tree(sql))


def test_where_things_are_is_told() -> None:
    sql = "SELECT s.k FROM sales s JOIN people q ON s.k = q.k WHERE s.i > 1"
    places = {type(part.op).__name__: part.place for part in walked(tree(sql)) if not isinstance(part.op, ProjectOp)}
    assert sql[places["JoinOp"] or 0 :].startswith("people q")
    assert sql[places["FilterOp"] or 0 :].startswith("s.i > 1")
