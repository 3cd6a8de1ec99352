"""Each checker lets right things pass and catches wrong ones; and views that are wrong are caught in a whole
cluster."""

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from simulator import checkers
from simulator.campaign import Simulator
from simulator.checkers import Violated, require
from simulator.scenarios import ClusterScenario
from simulator.tables import VIEWS
from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import UnknownView, WrongOwner
from upriver.ids import MapVersion, WorkerId
from upriver.protocol.coordinator_events import RescaleOutcome
from upriver.vnodes import VnodeMap

Checker = Callable[..., str | None]
Args = tuple[Any, ...]

A, B = ("a",), ("b",)
VNODE_OF = {A: 0, B: 1}
VIEW = {A: [("a", 1)], B: [("b", 1), ("b", 2)]}
OTHER = {A: [("a", 1)], B: [("b", 1)]}
SQL = Counter({("a", 1): 1, ("b", 1): 1, ("b", 2): 1})
MAP = VnodeMap.initial(2, [WorkerId(0), WorkerId(1)])
OTHER_MAP = VnodeMap(MapVersion(1), MAP.owners)
GONE, UNKNOWN = WrongOwner("gone"), UnknownView("typo")

CASES: list[tuple[Checker, list[Args], list[Args]]] = [
    (
        checkers.epochs_are_applied_in_order_and_once,
        [(0, 0, 1), (4, 4, 5), (4, 4, 8)],
        [(1, 0, 1), (1, 2, 3), (2, 0, 1), (1, 1, 1)],
    ),
    (checkers.files_stay_for_their_readers, [(set(),)], [({"1-1"},)]),
    (checkers.no_row_is_lost_or_doubled, [({"t": 2}, {"t": 2})], [({"t": 2}, {"t": 1}), ({"t": 2}, {"t": 3})]),
    (checkers.workers_are_not_sent_too_far_ahead, [(3, 9, EPOCHS_AHEAD_MAX)], [(3, 9, 1 + EPOCHS_AHEAD_MAX)]),
    (
        checkers.a_worker_holds_only_keys_of_its_vnodes,
        [([A], VNODE_OF, {0})],
        [([A, B], VNODE_OF, {0}), ([("c",)], VNODE_OF, {0})],
    ),
    (checkers.a_broken_link_makes_nobody_begin_anew, [([], "w0 and w1")], [([1, 2], "w0 and w1")]),
    (checkers.no_keys_move_while_epochs_flow, [(True,)], [(False,)]),
    (checkers.a_key_lives_in_one_place, [({"w0": [1], "w1": [2]},)], [({"w0": [1], "w0 -> w1": [1, 2]},)]),
    (
        checkers.no_key_is_lost,
        [({1, 2}, [1], [2]), ({1}, [1], [3])],
        [({1, 2}, [1], []), ({1}, [1, 2], [])],
    ),
    (checkers.a_keys_rows_are_in_order, [(VIEW, 1)], [({A: [("a", 2), ("a", 1)]}, 1), ({A: [("a", 1)] * 2}, 1)]),
    (checkers.views_equal_the_oracle, [(VIEW, dict(VIEW))], [(VIEW, OTHER), (OTHER, VIEW), (VIEW, {})]),
    (checkers.views_equal_sql, [(SQL, VIEW)], [(SQL, OTHER), (SQL, {}), (SQL + SQL, VIEW)]),
    (checkers.just_bad_rows_are_set_aside, [(set(), set()), ({A}, {A})], [({A}, set()), (set(), {A}), ({A}, {B})]),
    (checkers.everybody_is_answered_once, [(1, {1, 2})], [(3, {1, 2})]),
    (checkers.lookups_wait_for_their_epoch, [(2, 2), (2, 0)], [(2, 3)]),
    (checkers.lookups_wait_for_the_replay, [(2, 2), (3, 0)], [(1, 2)]),
    (checkers.lookups_equal_the_oracle, [(A, [1], [4], 3, 5)], [(A, [1], [], 3, 5)]),
    (checkers.lookups_tell_a_map_no_older_than_before, [(1, 1), (1, 2)], [(2, 1)]),
    (
        checkers.lookups_for_others_are_refused_by_who_is_alone,
        [(True, True, True), (False, True, False), (False, False, True)],
        [(False, True, True)],
    ),
    (checkers.lookups_give_only_what_was_asked_for, [([A, B], VIEW), ([A, B], {})], [([A], VIEW)]),
    (checkers.keys_are_as_of_one_epoch, [(VIEW, dict(VIEW), 3)], [(VIEW, OTHER, 3)]),
    (checkers.lookups_never_go_back, [(A, 2, [2]), (A, 2, [1, 3])], [(A, 2, [0, 1])]),
    (
        checkers.lookups_are_refused_for_a_reason,
        [
            (GONE, True, False, True, False),
            (UNKNOWN, False, True, True, False),
            (GONE, True, True, False, False),
            (GONE, False, True, True, True),
        ],
        [
            (GONE, True, True, True, False),
            (UNKNOWN, True, True, False, False),
            (GONE, False, True, True, False),
            (UNKNOWN, False, False, True, False),
        ],
    ),
    (checkers.epochs_end_in_order, [(0, 1), (0, 2)], [(1, 1), (2, 1)]),
    (
        checkers.an_epoch_ends_when_every_worker_has_applied_it,
        [(2, [0, 1], {0: 2, 1: 3})],
        [(2, [0, 1], {0: 2, 1: 1}), (2, [0, 1], {0: 2})],
    ),
    (checkers.snapshots_are_consistent_cuts, [(VIEW, dict(VIEW))], [(VIEW, OTHER)]),
    (checkers.snapshots_have_what_had_ended, [(2, 2), (2, 3)], [(2, 1)]),
    (checkers.checkpoints_equal_the_oracle, [(VIEW, dict(VIEW))], [(VIEW, OTHER)]),
    (
        checkers.versions_go_on,
        [("v", 2, 5, [], False), ("v", 2, 5, [3, 5], True), ("v", 2, 2, [], False)],
        [("v", 3, 2, [], False), ("v", 2, 2, [], True), ("v", 2, 5, [2], False), ("v", 2, 5, [6], False)],
    ),
    (checkers.changes_add_up_to_the_view, [("v", 2, {"a": 2}, {"a": 2})], [("v", 2, {"a": 2}, {"a": 1, "b": 1})]),
    (checkers.checkpoints_have_no_rows_on_their_way, [(0,)], [(2,)]),
    (checkers.a_snapshot_that_is_ready_is_held, [([],)], [([3],)]),
    (checkers.snapshots_that_are_dropped_are_forgotten, [([1, 2], {3})], [([1, 2], {2})]),
    (
        checkers.peers_are_spoken_to_over_a_channel,
        [(True, False), (True, True), (False, True)],
        [(False, False)],
    ),
    (
        checkers.a_rescale_ends_for_a_reason,
        [
            (RescaleOutcome.FINISHED, True, False, False),
            (RescaleOutcome.ABORTED, True, True, False),
            (RescaleOutcome.REFUSED, False, False, False),
            (RescaleOutcome.FAILED, True, False, True),
        ],
        [
            (RescaleOutcome.FINISHED, False, True, True),
            (RescaleOutcome.ABORTED, True, False, True),
            (RescaleOutcome.REFUSED, True, True, True),
            (RescaleOutcome.FAILED, True, True, False),
        ],
    ),
    (checkers.views_fail_everywhere_or_nowhere, [(True, [True]), (False, [False, False])], [(True, [True, False])]),
    (
        checkers.views_fail_for_a_reason,
        [(True, True, True), (False, False, True), (True, False, True)],
        [(True, False, False), (False, True, True)],
    ),
    (checkers.slices_have_their_standbys, [(1, {0: 1, 1: 1}), (0, {})], [(1, {0: 1, 1: 0}), (1, {0: 2})]),
    (checkers.standbys_have_caught_up, [([],)], [([3],)]),
    (checkers.standbys_equal_the_oracle, [(VIEW, dict(VIEW))], [(VIEW, OTHER), (VIEW, {})]),
    (checkers.a_rescale_leaves_as_many_workers_as_wanted, [(2, {0, 3})], [(2, {0}), (2, {0, 1, 2})]),
    (checkers.another_driver_knows_what_clients_have_heard, [({2}, 2), ({2, 3}, 3)], [({2}, 3)]),
    (checkers.the_river_comes_to_rest, [(9, 10)], [(10, 10)]),
    (checkers.wishes_are_met_in_order, [(1, [1, 2])], [(2, [1, 2]), (1, [])]),
    (checkers.flows_change_between_rescales, [(False,)], [(True,)]),
    (checkers.no_flow_comes_back, [(2, {1})], [(1, {1})]),
    (checkers.no_share_of_a_gone_flow, [([],)], [([1],)]),
    (checkers.what_is_late_changes_nothing, [([],)], [([1],)]),
    (
        checkers.others_do_not_notice,
        [([], {"a": 1}, {"a": 1}), ([], {}, {"a": 1})],
        [([1], {}, {}), ([], {"a": 1}, {"a": 2}), ([], {"a": 1}, {})],
    ),
    (checkers.workers_keep_the_views_that_are_wanted, [(["a", "b"], ["b", "a"])], [(["a"], ["b"]), ([], ["a"])]),
    (checkers.every_epoch_ends, [(3, 3)], [(3, 2)]),
    (checkers.nobody_is_left_waiting, [([],)], [([7],)]),
    (
        checkers.all_go_by_one_map,
        [({"readers": MAP, "w0": MAP},)],
        [({"readers": MAP, "w0": None},), ({"readers": MAP, "w0": OTHER_MAP},)],
    ),
    (checkers.who_is_not_wanted_has_gone, [([1, 2], [1, 2, 3])], [([1, 2], [2])]),
    (checkers.everybody_retires, [([],)], [([2],)]),
]
NEVER_RIGHT = {checkers.machines_do_not_fail, checkers.the_app_does_not_fail}


@pytest.mark.parametrize(("checker", "right", "wrong"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_checker_tells_right_from_wrong(checker: Checker, right: list[Args], wrong: list[Args]) -> None:
    for args in right:
        require(checker, *args)
    for args in wrong:
        with pytest.raises(Violated, match=f"^{checker.__name__}: .") as raised:
            require(checker, *args)
        assert raised.value.checker == checker.__name__


def test_every_checker_is_tried() -> None:
    functions = {f for _, f in inspect.getmembers(checkers, inspect.isfunction) if f.__module__ == checkers.__name__}
    assert functions - {checkers.require, checkers.difference} == {case[0] for case in CASES} | NEVER_RIGHT


def test_the_difference_of_two_views_is_told_by_its_first_key() -> None:
    assert checkers.difference(VIEW, OTHER) == "('b',): [('b', 1)] where [('b', 1), ('b', 2)] is right"


class Doubling(Region):
    """Takes in everything twice; so does the oracle, but not SQL."""

    def apply(self, port: int, batch: Batch) -> None:
        super().apply(port, batch)
        super().apply(port, batch)


class Hasty(Region):
    """Takes a key's rows of one batch in the wrong order."""

    def apply(self, port: int, batch: Batch) -> None:
        backwards = pa.array(range(len(batch) - 1, -1, -1), pa.int64())
        super().apply(port, Batch(batch.rows.take(backwards), batch.hash64[::-1]))


FORGOTTEN = {
    "views_equal_the_oracle",
    "lookups_equal_the_oracle",
    "views_equal_sql",
    "no_key_is_lost",
    "snapshots_are_consistent_cuts",
}


class Forgetful(Region):
    """Loses the first row of a batch that has several, which depends on how an epoch is cut."""

    def apply(self, port: int, batch: Batch) -> None:
        lost = 1 if len(batch) > 1 else 0
        super().apply(port, Batch(batch.rows.slice(lost), batch.hash64[lost:]))


@pytest.mark.parametrize(
    ("faulty", "caught_by"),
    [
        (Doubling, {"views_equal_sql", "a_keys_rows_are_in_order"}),
        (Hasty, {"a_keys_rows_are_in_order"}),
        (Forgetful, FORGOTTEN),
    ],
)
def test_a_view_that_is_wrong_is_caught(faulty: type[Region], caught_by: set[str]) -> None:
    evaluator = Evaluator()
    scenario = ClusterScenario(views=VIEWS, retained_share=0.0)
    simulator = Simulator(scenario, build_region=partial(faulty.build, evaluator=evaluator))
    found = [simulator.play(seed).violation for seed in range(5)]
    assert {violation.checker for violation in found if violation is not None} <= caught_by
    assert any(found)
