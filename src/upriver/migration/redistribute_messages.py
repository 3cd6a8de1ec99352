"""What distributors say to each other under ``redistribute`` (document 001), beside rows, Acquire, Kept and Bye.

Z is an old owner of keys that move. Every worker has a distributor, so everybody is an X of every Z.
"""

from dataclasses import dataclass

from upriver.ids import MapVersion
from upriver.xxh64 import Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """To a Z that leaves: the sender is about to route by the map of this version, which has no place for it."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaleup:
    """To a Z that stays: the sender is about to route by the map of this version, which gives some of its keys away."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """From Z to every X: the keys that it has state of and that must go. hold: those that go first."""

    version: MapVersion
    whitelist: Hashes
    hold: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """From X to Z: the sender sends it no more rows of ``keys``, nor of any key that was not in the sets."""

    version: MapVersion
    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Redistribute:
    """From Z to every X: ``keys`` are the new owner's; ``following`` go next, and are on hold from now on.

    added: keys that Z has met since it sent the sets; what is in neither is the new owner's. Empty but for a Z's first.
    state: that of ``keys``, by the published rules only; else it goes to the new owner in an Acquire ahead of this.
    """

    version: MapVersion
    keys: Hashes
    following: Hashes
    added: Hashes
    state: object = None


RedistributeMessage = Shutdown | Scaleup | Sets | Final | Redistribute
