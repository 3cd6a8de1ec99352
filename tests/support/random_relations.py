"""Relations at random, of any shape, over the tables of dataflow_kit."""

from dataflow_kit import INT, ITEMS, SALES, STOCK, TEXT
from hypothesis import strategies as st
from relation_kit import (
    count,
    distinct,
    group,
    join,
    prefixed,
    scan,
    select,
    set_operation,
    top,
    union,
    where,
    windowed,
)

from upriver.plan.plan import FrameUnit, JoinKind, Order, SetKind, WindowCall, WindowFrame
from upriver.plan.relation import Relation

ORDER = (Order("b", True, True), Order("a", False, False), Order("c", True, False))
"""Without ties, but of rows that are equal."""

CALLS = [
    WindowCall("lag", "b", "w", INT, number=1, default="a"),
    WindowCall("max", "a", "w", INT, WindowFrame(FrameUnit.ROWS, -1, 1)),
    WindowCall("min", "b", "w", INT, WindowFrame(FrameUnit.RANGE, None, 0)),
    WindowCall("dense_rank", None, "w", INT),
]


@st.composite
def relations(draw: st.DrawFn, depth: int) -> Relation:
    """Any relation of the columns a: int, b: int, c: string; depth: of its tree, at most."""
    if not depth:
        return draw(
            st.sampled_from(
                [
                    select(scan(ITEMS), "size AS a", "size AS b", "item AS c"),
                    select(scan(SALES), "shop AS a", "item AS c", b=('"shop" + 1', INT)),
                    select(scan(STOCK), "shop AS a", "item AS c", b=("7", INT)),
                ]
            )
        )
    source = draw(relations(depth - 1))
    other = draw(relations(draw(st.integers(0, depth - 1))))
    pairs = draw(
        st.sampled_from([{"a": "o_a"}, {"b": "o_a"}, {"c": "o_c", "b": "o_b"}, {"a": "o_a", "b": "o_b", "c": "o_c"}])
    )
    kind = draw(st.sampled_from(list(JoinKind)))
    joined = join(source, prefixed(other, "o_"), pairs, kind)
    return draw(
        st.sampled_from(
            [
                where(source, '"a" > 1'),
                select(source, "b AS a", "c", b=('"a" + "b"', INT)),
                select(group(source, "a c", n=("max", "b", INT)), "a", "n AS b", "c"),
                select(count(source, "b"), "b AS a", "b", c=('"n"::VARCHAR', TEXT)),
                distinct(source),
                select(joined, "a", "c", "b"),
                select(
                    windowed(source, draw(st.sampled_from(["", "a", "c b"])), ORDER, draw(st.sampled_from(CALLS))),
                    "a",
                    "w AS b",
                    "c",
                ),
                select(top(source, draw(st.sampled_from(["", "a", "c b"])), ORDER, 2), "a", "b", "c"),
                union(select(source, "a", "b", "c"), select(other, "a", "b", "c")),
                set_operation(SetKind.EXCEPT, select(source, "a", "b", "c"), select(other, "a", "b", "c")),
            ]
        )
    )
