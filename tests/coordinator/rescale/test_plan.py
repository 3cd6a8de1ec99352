"""What a rescale comes to, when each worker may leave, when it is over, and what cannot be."""

from collections.abc import Mapping, Sequence

import pytest
from migration_kit import ONE, TWO, V1, ZERO, vnode, vnode_map

from upriver.coordinator.rescale.plan import AnnouncedPlan, RescalePlan
from upriver.errors import DeclarationError, IllegalEvent, ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.vnodes import resized

TOTALS, SIZES = "totals", "sizes"
BOTH = (ZERO, ONE)


def planned(
    new: Sequence[WorkerId] = BOTH, moves: Mapping[VnodeId, WorkerId] | None = None, regions: Sequence[str] = (TOTALS,)
) -> RescalePlan:
    """Of two workers with two vnodes each in each region."""
    return RescalePlan.made({region: vnode_map(0, 0, 0, 1, 1) for region in regions}, BOTH, new, moves)


def announced(
    new: Sequence[WorkerId] = BOTH, moves: Mapping[VnodeId, WorkerId] | None = None, regions: Sequence[str] = (TOTALS,)
) -> AnnouncedPlan:
    return AnnouncedPlan.of(planned(new, moves, regions))


def test_lowest_free_workers_join_and_the_highest_leave() -> None:
    assert resized((ZERO, TWO), 4) == (0, 1, 2, 3)
    assert resized((ZERO, TWO), 1) == (0,)
    assert resized((ZERO, TWO), None) == (0, 2)
    assert resized((ZERO,), 0) == ()


def test_joiners_take_part_with_all_regions_in_order() -> None:
    made = announced((ZERO, ONE, TWO), regions=(TOTALS, SIZES))
    assert made.plan.joining == (TWO,)
    assert list(made.unsettled()) == [(worker, region) for worker in (0, 1, 2) for region in (TOTALS, SIZES)]
    order = made.order(SIZES)
    assert (order.old, order.new, order.version) == (BOTH, (0, 1, 2), V1)


def test_a_plan_that_changes_nothing_says_so() -> None:
    assert planned().changes_nothing
    assert planned(moves={vnode(0): ZERO}).changes_nothing
    assert not planned(moves={vnode(0): ONE}).changes_nothing
    assert planned(moves={vnode(0): ONE}).vnodes == 1


def test_it_is_over_when_all_workers_have_settled_all_regions() -> None:
    made = announced(moves={vnode(0): ONE})
    made = made.settled(ZERO, TOTALS, V1, ())
    assert not made.is_over
    made = made.settled(ONE, TOTALS, V1, ())
    assert made.is_over
    assert (made.maps, made.workers) == ({TOTALS: vnode_map(1, 1, 0, 1, 1)}, BOTH)


def test_icadd_leave_after_marks_a_leaver_leaves_once_settled_and_is_waited_for() -> None:
    made = announced((ZERO,), regions=(TOTALS, SIZES)).settled(ONE, TOTALS, V1, ())
    assert not made.is_leaver(ONE)
    made = made.settled(ONE, SIZES, V1, ())
    assert made.is_leaver(ONE)
    assert made.workers == (ZERO,)
    made = made.settled(ZERO, TOTALS, V1, ()).settled(ZERO, SIZES, V1, ())
    assert not made.is_leaver(ZERO)
    made = made.peer_left(ZERO, TOTALS, ONE)
    assert not made.is_over
    assert made.peer_left(ZERO, SIZES, ONE).is_over


def test_a_worker_that_keeps_something_is_no_leaver() -> None:
    kept = (vnode(2), vnode(3))
    made = announced((ZERO,)).settled(ONE, TOTALS, V1, kept).settled(ZERO, TOTALS, V1, kept)
    assert not made.is_leaver(ONE)
    assert made.is_over
    assert (made.workers, made.maps[TOTALS]) == (BOTH, vnode_map(1, 0, 0, 1, 1))
    assert made.tidying() is None


def test_the_round_after_an_abort_gives_all_regions_the_map_of_the_first() -> None:
    made = announced((ZERO,), regions=(TOTALS, SIZES))
    for worker in BOTH:
        made = made.settled(worker, TOTALS, V1, ()).settled(worker, SIZES, V1, (vnode(2),))
    tidying = made.tidying()
    assert tidying is not None
    assert (tidying.old, tidying.new, tidying.version) == (BOTH, (ZERO,), 2)
    assert {region: vnode_map.owners for region, vnode_map in tidying.before.items()} == {
        TOTALS: (0, 0, 0, 0),
        SIZES: (0, 0, 1, 0),
    }
    assert {vnode_map.owners for vnode_map in tidying.after.values()} == {(0, 0, 0, 0)}


@pytest.mark.parametrize(
    ("new", "moves"),
    [
        ((), None),
        ((ZERO, ZERO), None),
        (tuple(map(WorkerId, range(5))), None),
        (BOTH, {VnodeId(9): ZERO}),
        (BOTH, {VnodeId(0): TWO}),
        ((ZERO,), {}),
    ],
    ids=["none", "twice", "more than vnodes", "no such vnode", "no such worker", "leaver keeps vnodes"],
)
def test_what_cannot_be_is_refused(new: tuple[WorkerId, ...], moves: dict[VnodeId, WorkerId] | None) -> None:
    with pytest.raises(DeclarationError):
        planned(new, moves)


def test_reports_that_are_not_due_are_illegal() -> None:
    made = announced((ZERO,)).settled(ZERO, TOTALS, V1, ())
    with pytest.raises(IllegalEvent, match="worker 0 settled region 'totals' at 1 unasked"):
        made.settled(ZERO, TOTALS, V1, ())
    with pytest.raises(IllegalEvent):
        made.settled(ONE, TOTALS, MapVersion(2), ())
    with pytest.raises(IllegalEvent):
        made.settled(ONE, SIZES, V1, ())
    with pytest.raises(IllegalEvent, match="worker 1 left region 'totals' of 0 unasked"):
        made.peer_left(ZERO, TOTALS, ONE)


def test_workers_that_do_not_agree_are_a_protocol_error() -> None:
    made = announced(moves={vnode(0): ONE}).settled(ZERO, TOTALS, V1, (vnode(0),))
    with pytest.raises(ProtocolError, match="do not agree"):
        made.settled(ONE, TOTALS, V1, ())
