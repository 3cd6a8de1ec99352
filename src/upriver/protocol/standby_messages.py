"""What the coordinator and a worker say to each other of who follows whom, and of slices that change hands."""

from collections.abc import Mapping
from dataclasses import dataclass

from upriver.ids import Epoch, FeedId, VnodeId, WorkerId
from upriver.vnodes import VnodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """All workers go on as another generation, with what they keep as of the end of epoch ``at``: what came of a later
    one is put back. Slices that are another's by these maps are given up; those that were followed here, and are this
    worker's now, are taken over. The rest is that of ``Assign``.
    """

    maps: Mapping[str, VnodeMap]
    reads: tuple[VnodeId, ...]
    at: Epoch
    serve_from: Epoch
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Have the owner of these slices send all that it keeps of them, and then what changes, and say ``CaughtUp`` at the
    end of each epoch through which it is here. feed: names this, and nothing else that ever was."""

    feed: FeedId
    owner: WorkerId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollow:
    """Follow these slices of the feed no more."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Say ``Here``: a peer says that it cannot be reached."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All that the owner of a feed's slices keeps of them as of the end of this epoch is here."""

    feed: FeedId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEnded:
    """By this feed nobody is fed any more: whoever follows is to begin again. Said by the owner of its slices; or by
    who follows, if the owner may never have heard of it (S8)."""

    feed: FeedId


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """To a ``Probe``."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver:
    """This worker keeps so many slices now that it has followed, with so many keys and bytes of state, over all regions
    that keep every key."""

    vnodes: int
    keys: int
    bytes: int
