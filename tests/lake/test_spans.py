"""Which spans cover an interval of epochs, and which blocks become segments next."""

from hypothesis import given
from hypothesis import strategies as st

from upriver.ids import Epoch
from upriver.lake.spans import EpochSpan, block, cover, due, level_of, single

FAN_IN = 3
EPOCHS = st.integers(0, 120)
BLOCKS = [
    found for level in (1, 2, 3, 4) for first in range(1, 121) if (found := block(first, level, FAN_IN)) is not None
]
SEGMENTS = st.frozensets(st.sampled_from(BLOCKS))


def fewest(segments: frozenset[EpochSpan], after: int, through: int) -> int:
    """The fewest spans that cover these epochs, by trying all."""
    best = {after: 0}
    for last in range(after + 1, through + 1):
        ending = [span for span in segments if span.last == last and span.after >= after]
        best[last] = 1 + min(best[span.after] for span in [single(last), *ending])
    return best[max(after, through)]


@given(SEGMENTS, EPOCHS, EPOCHS)
def test_an_interval_is_covered_exactly_and_in_order_by_the_fewest_spans(
    segments: frozenset[EpochSpan], after: int, through: int
) -> None:
    spans = list(cover(segments, after, through, FAN_IN))
    assert [epoch for span in spans for epoch in range(span.first, span.last + 1)] == list(
        range(after + 1, through + 1)
    )
    assert {span for span in spans if len(span) > 1} <= segments
    assert len(spans) == fewest(segments, after, through)


@given(st.lists(st.integers(0, 100), max_size=5), st.lists(st.integers(1, 40), max_size=5))
def test_each_block_is_due_once_after_its_parts_and_never_beyond_the_horizon(
    horizons: list[int], taken: list[int]
) -> None:
    """horizons: in which due segments are made. taken: how many of them each time, before the work is interrupted;
    then parts that a larger segment replaces are removed."""
    made: set[EpochSpan] = set()
    for horizon, count in zip(sorted(horizons), taken, strict=False):
        for wanted in list(due(made, horizon, FAN_IN))[:count]:
            assert wanted.last <= horizon
            assert wanted not in made
            parts = list(cover(made, wanted.after, wanted.last, FAN_IN))
            assert len(parts) == FAN_IN
            made.add(wanted)
        made = {span for span in made if not any(span != other and _is_within(span, other) for other in made)}
    horizon = max(horizons, default=0)
    made.update(due(made, horizon, FAN_IN))
    whole = [span for span in BLOCKS if span.last <= horizon]
    assert all(any(_is_within(span, other) for other in made) for span in whole)
    assert list(due(made, horizon, FAN_IN)) == []


def test_a_block_that_was_passed_over_stays_due_with_those_that_contain_it() -> None:
    blocks = [block(first, 1, FAN_IN) for first in range(1, 28, FAN_IN)]
    passed_over = blocks[1]
    made = {span for span in blocks if span is not None and span != passed_over}
    made.add(EpochSpan(Epoch(10), Epoch(18)))
    larger = [EpochSpan(Epoch(first), Epoch(last)) for first, last in ((1, 9), (19, 27), (1, 27))]
    assert list(due(made, 30, FAN_IN)) == [passed_over, *(EpochSpan(Epoch(28), Epoch(30)),), *larger]
    assert list(due({*made, larger[2]}, 29, FAN_IN)) == []
    assert list(due({*made, larger[2]}, 20, FAN_IN)) == []


def _is_within(span: EpochSpan, other: EpochSpan) -> bool:
    return other.first <= span.first and span.last <= other.last


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_the_name_of_a_span_says_which_it_is(first: int, more: int) -> None:
    span = EpochSpan(Epoch(first), Epoch(first + more))
    assert EpochSpan.of_name(span.name) == span
    assert sorted([span.name, EpochSpan(Epoch(1), Epoch(span.last + 1)).name])[0] == span.name


def test_other_names_are_no_spans() -> None:
    assert [EpochSpan.of_name(name) for name in ("", "7", "7-", "-7", "a-7", "7-8-9")] == [None] * 6


def test_levels() -> None:
    assert [level_of(EpochSpan(Epoch(1), Epoch(last))) for last in (1, 16, 256, 4096)] == [0, 1, 2, 3]
