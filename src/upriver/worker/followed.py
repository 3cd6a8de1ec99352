"""What a worker feeds to who follows it, and what it follows itself, as it is kept; rules S1 to S6.

``docs/design/standbys.md``.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from upriver.engine.keeping import Region
from upriver.ids import BEGINNING, Epoch, Incarnation, VnodeId, WorkerId
from upriver.state.checkpoint import StateChunk
from upriver.state.keysets import key_set


@dataclass(slots=True)
class Feed:
    """At the owner. to: who follows, and which incarnation that is. vnodes: the slices. out: how many loads are on
    their way there that are not known to be taken in. is_whole: the follower has had everything at the end of some
    epoch."""

    to: WorkerId
    incarnation: Incarnation | None
    vnodes: set[VnodeId]
    out: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class Shadow:
    """At who follows: the slices of one feed, as of the end of epoch ``through``, once all of them are here.

    regions: those that keep every key, by name. since: the first epoch at whose end all was here. later: what has
    changed in epochs that may not be over, in the order in which it came.
    """

    owner: WorkerId
    vnodes: set[VnodeId]
    regions: dict[str, Region]
    since: Epoch | None = None
    through: Epoch = BEGINNING
    later: list[tuple[Epoch, str, StateChunk]] = field(default_factory=list)

    def replace(self, region: str, chunk: StateChunk) -> None:
        """Keep this of these keys, and nothing else. Of a region whose view has failed, nothing is kept."""
        kept = self.regions.get(region)
        if kept is not None:
            kept.drop(chunk.keys)
            kept.install(chunk.parts)

    def forget_regions(self, regions: Collection[str]) -> None:
        """Their view has failed."""
        for name in regions:
            self.regions.pop(name, None)
        self.later = [entry for entry in self.later if entry[1] not in regions]

    def take_in(self, epoch: Epoch) -> None:
        """The epoch is over everywhere."""
        due = [(region, chunk) for of, region, chunk in self.later if of <= epoch]
        self.later = [entry for entry in self.later if entry[0] > epoch]
        for region, chunk in due:
            self.replace(region, chunk)

    def go_back_to(self, epoch: Epoch) -> None:
        """What came of later epochs will come again."""
        self.later = [entry for entry in self.later if entry[0] <= epoch]
        if self.since is not None and self.since > epoch:
            self.since = None
        self.through = Epoch(min(self.through, epoch))

    def is_as_of(self, epoch: Epoch) -> bool:
        """Whether all is here as of the end of this epoch."""
        return self.since is not None and self.since <= epoch <= self.through

    def hand_over(self, vnodes: Collection[VnodeId], count: int) -> dict[str, StateChunk]:
        """All that is kept of these slices, by region; it is kept here no more. count: the lake's vnodes."""
        handed = {}
        for name, region in self.regions.items():
            keys = key_set(*(region.keys_of(vnode, count) for vnode in vnodes))
            handed[name] = StateChunk(keys, tuple(region.collect(keys)))
        self.forget(vnodes, count)
        return handed

    def forget(self, vnodes: Collection[VnodeId], count: int) -> None:
        """Keep nothing of these slices."""
        self.vnodes.difference_update(vnodes)
        self.later = [(epoch, region, chunk.among(self.vnodes, count)) for epoch, region, chunk in self.later]
        for region in self.regions.values() if self.vnodes else ():
            for vnode in vnodes:
                region.drop(region.keys_of(vnode, count))
