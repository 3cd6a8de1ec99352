"""Which worker reads which slices while keys move."""

from upriver.coordinator.rescale.stages import Handover
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.vnodes import VnodeMap


def vnode_map(version: int, *owners: int) -> VnodeMap:
    return VnodeMap(MapVersion(version), tuple(map(WorkerId, owners)))


BEFORE, AFTER = vnode_map(0, 0, 0, 1, 1), vnode_map(1, 0, 2, 2, 1)


def vnodes(*numbers: int) -> list[VnodeId]:
    return list(map(VnodeId, numbers))


def test_a_slice_is_handed_over_when_it_has_gone_in_every_view() -> None:
    handover = Handover(BEFORE, AFTER, ["a", "b"])
    assert handover.take() is None
    handover.gone("a", vnodes(1))
    handover.gone("b", vnodes(2))
    assert handover.take() is None
    handover.gone("b", vnodes(1))
    taken = handover.take()
    assert taken is not None
    assert taken.owners == (0, 2, 1, 1)
    assert handover.take() is None, "it was taken already"
    handover.gone("a", vnodes(2))
    assert handover.take() == AFTER


def test_with_no_view_nothing_is_handed_over() -> None:
    assert Handover(BEFORE, AFTER, []).take() is None
