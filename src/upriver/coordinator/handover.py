"""Who reads which slices of the epochs while keys move.

A slice that is wholly its new owner's, in every region, is read there from the next epoch on. Whoever reads a row
routes it through the region's distributor, so any reader is right; but at the old owner, each row of the slice would
have to be relayed.
"""

from collections.abc import Collection, Sequence

from upriver.ids import VnodeId
from upriver.vnodes import VnodeMap


class Handover:
    """before, after: the maps of all regions. With no region, nothing is handed over."""

    def __init__(self, before: VnodeMap, after: VnodeMap, regions: Sequence[str]) -> None:
        self._before, self._after = before, after
        self._gone: dict[str, set[VnodeId]] = {region: set() for region in regions}
        self._handed: set[VnodeId] = set()

    def gone(self, region: str, vnodes: Collection[VnodeId]) -> None:
        """These slices of the region are wholly their new owner's."""
        self._gone[region].update(vnodes)

    def take(self) -> VnodeMap | None:
        """By which map the next epoch is to be read; ``None``: by the same as the last one."""
        if not self._gone:
            return None
        gone = set.intersection(*self._gone.values())
        if gone == self._handed:
            return None
        self._handed = gone
        left = self._before.diff(self._after).keys() - gone
        return self._after.keeping(self._before, left)
