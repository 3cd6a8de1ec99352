"""Copies of ICADD's messages in a region that splits and unites: counted, shared, and seen by every operator."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.icadd_multipath import (
    DIAMOND,
    JOIN,
    NEW,
    OLD,
    Habits,
    LogOperator,
    Shape,
    search_multipath,
)
from simulator.icadd_node import NodeKind
from simulator.icadd_rows import TracedRow
from simulator.published.multipath import (
    Message,
    MultipathAcquire,
    MultipathCollect,
    MultipathDrop,
    MultipathEdge,
    MultipathInterrogate,
    OperatorId,
    RegionGraph,
)
from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import Hashes
from upriver.ids import VnodeId, WorkerId
from upriver.state.vectors import NO_KEYS

UNION, LEFT = OperatorId("union"), OperatorId("left")
VNODES = (VnodeId(0),)


def keys(*numbers: int) -> Hashes:
    return np.array(numbers, np.uint64)


# Messages -----------------------------------------------------------------------------------------------------------


def test_adding_keys_again_changes_nothing_and_new_ones_count() -> None:
    message = MultipathInterrogate(VNODES)
    message.add_keys(keys(1, 3))
    message.add_keys(keys(1, 3))
    assert message.keys.tolist() == [1, 3]
    message.add_keys(keys(2, 3))
    assert message.keys.tolist() == [1, 2, 3]


def test_the_last_state_of_an_operator_wins() -> None:
    message = MultipathCollect(keys(1))
    message.add_state(UNION, "early")
    message.add_state(LEFT, "its own")
    message.add_state(UNION, "late")
    assert message.state == {UNION: "late", LEFT: "its own"}


def test_the_first_take_gets_the_state_and_others_none() -> None:
    message = MultipathAcquire(keys(1), {UNION: "state"})
    assert message.take(LEFT) is None
    assert message.take(UNION) == "state"
    assert message.take(UNION) is None


def test_a_message_is_over_when_every_copy_was_handed_back() -> None:
    message = MultipathDrop(keys(1))
    message.put_into(2)
    message.hand_back()
    assert not message.over
    message.hand_back()
    assert message.over
    with pytest.raises(ProtocolError, match="Drop was handed back more often"):
        message.hand_back()


# Graphs -------------------------------------------------------------------------------------------------------------


class Counter(LogOperator):
    """Counts the copies that it is shown."""

    copies = 0

    def drop(self, keys: Hashes) -> None:
        self.copies += 1


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[OperatorId, tuple[OperatorId, ...]], tuple[OperatorId, ...]]:
    """Edges of a region without circles, and its inputs."""
    names = [OperatorId(f"operator {n}") for n in range(draw(st.integers(1, 6)))]
    edges = {name: tuple(draw(st.sets(st.sampled_from(names[n + 1 :])))) for n, name in enumerate(names[:-1])}
    fed = {target for targets in edges.values() for target in targets}
    return edges, tuple(name for name in names if name not in fed)


def paths_to(name: OperatorId, edges: Mapping[OperatorId, tuple[OperatorId, ...]]) -> int:
    """How many ways lead from the distributor to an operator of a graph whose inputs nothing else feeds."""
    sources = [source for source, targets in edges.items() if name in targets]
    return sum(paths_to(source, edges) for source in sources) if sources else 1


@given(graphs(), st.randoms(use_true_random=False))
def test_every_operator_sees_a_copy_by_every_path_and_then_it_is_over(
    drawn: tuple[dict[OperatorId, tuple[OperatorId, ...]], tuple[OperatorId, ...]], rng: Random
) -> None:
    edges, inputs = drawn
    names = {*edges, *inputs, *(target for targets in edges.values() for target in targets)}
    operators = {name: Counter(name, JOIN) for name in names}
    graph: RegionGraph[TracedRow] = RegionGraph(operators, edges, inputs)
    message = MultipathDrop(NO_KEYS)
    graph.send(message)
    while busy := graph.busy():
        assert not message.over
        graph.deliver(rng.choice(busy))
    assert message.over
    assert {name: operator.copies for name, operator in operators.items()} == {
        name: paths_to(name, edges) for name in operators
    }


@pytest.mark.parametrize(
    ("edges", "inputs", "said"),
    [
        ({LEFT: (UNION,), UNION: (LEFT,)}, (LEFT,), "in a circle"),
        ({}, (LEFT,), "nothing feeds: .'union'"),
        ({LEFT: (UNION, OperatorId("nowhere"))}, (LEFT,), "not there.*'nowhere'"),
        ({LEFT: (UNION,), OperatorId("nowhere"): (UNION,)}, (LEFT,), "not there.*'nowhere'"),
    ],
)
def test_a_region_that_is_no_region_is_refused(
    edges: dict[OperatorId, tuple[OperatorId, ...]], inputs: tuple[OperatorId, ...], said: str
) -> None:
    operators = {name: LogOperator(name, JOIN) for name in (LEFT, UNION)}
    with pytest.raises(DeclarationError, match=said):
        RegionGraph(operators, edges, inputs)


def test_rows_and_messages_keep_their_order_on_an_edge() -> None:
    operator = LogOperator(LEFT, Shape(name="one", paths=((LEFT,),)))
    graph: RegionGraph[TracedRow] = RegionGraph({LEFT: operator}, {}, (LEFT,))
    first, second = TracedRow(1, OLD, 1), TracedRow(1, OLD, 2)
    message = MultipathCollect(keys(1))
    graph.pass_down(first, LEFT)
    graph.send(message)
    graph.pass_down(second, LEFT)
    assert [graph.deliver(MultipathEdge(None, LEFT)) for _ in range(3)] == [None, message, None]
    assert message.state == {LEFT: {1: (first,)}}
    assert operator.logs == {1: (first, second)}


# A key's way out of such a region and into another ------------------------------------------------------------------


@pytest.mark.parametrize("shape", [DIAMOND, JOIN], ids=lambda shape: shape.name)
@pytest.mark.parametrize("known", [True, False], ids=["old key", "new key"])
@pytest.mark.parametrize("rows", [{OLD: 2, NEW: 0}, {OLD: 0, NEW: 2}, {OLD: 1, NEW: 1}], ids=str)
def test_no_way_of_a_key_through_splits_and_unions_goes_wrong(
    shape: Shape, known: bool, rows: dict[WorkerId, int]
) -> None:
    states, found = search_multipath(shape, rows, known=known)
    assert found is None
    assert states > 300


class GivesAway(LogOperator):
    """R13: takes its state out at the first copy of Collect."""

    def collect(self, keys: Hashes) -> object | None:
        state = super().collect(keys)
        super().drop(keys)
        return state


class FirstStateWins(MultipathCollect):
    def add_state(self, operator: OperatorId, state: object) -> None:
        self.state.setdefault(operator, state)


class FirstCopyIsEnough(MultipathCollect):
    @property
    def over(self) -> bool:
        return True


class EveryTakeWins(MultipathAcquire):
    def take(self, operator: OperatorId) -> object | None:
        return self._state.get(operator)


class FirstInputOnly(RegionGraph[TracedRow]):
    """R14: what a distributor of one input would do; the other input's rows go on."""

    def send(self, message: Message) -> None:
        self._put(message, self._incoming[:1])


@pytest.mark.parametrize(
    ("shape", "broken"),
    [
        (DIAMOND, Habits(operator=GivesAway)),
        (DIAMOND, Habits(collect=FirstStateWins)),
        (DIAMOND, Habits(collect=FirstCopyIsEnough)),
        (DIAMOND, Habits(acquire=EveryTakeWins)),
        (JOIN, Habits(graph=FirstInputOnly)),
    ],
    ids=["R13_state_given_away", "first_add_state_wins", "first_copy_is_enough", "every_take_wins", "R14_first_input"],
)
def test_rows_are_lost_where_the_appendix_is_not_kept(shape: Shape, broken: Habits) -> None:
    _, found = search_multipath(shape, {OLD: 2, NEW: 0}, habits=broken)
    assert found is not None
    assert found.kind in (NodeKind.LOST, NodeKind.MISPLACED)


class AnswersOnce(LogOperator):
    """Names its keys to the first copy of Interrogate only."""

    answered = False

    def keys_of(self, vnodes: tuple[VnodeId, ...]) -> Hashes:
        answered, self.answered = self.answered, True
        return NO_KEYS if answered else super().keys_of(vnodes)


def test_a_key_that_came_between_two_copies_of_interrogate_is_missed_by_a_worker_that_answers_only_one() -> None:
    shape = replace(DIAMOND, stateless=(OperatorId("split"), LEFT, OperatorId("right")))
    rows = {OLD: 2, NEW: 0}
    _, found = search_multipath(shape, rows, known=False, habits=Habits(operator=AnswersOnce))
    assert found is not None
    assert found.kind is NodeKind.MISPLACED
    assert search_multipath(shape, rows, known=False)[1] is None
