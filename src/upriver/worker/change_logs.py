"""Which keys of a shard have changed: for checkpoints, for followers, and for a takeover in the middle of an epoch.

The classes that count the keys are in ``state/checkpoint.py``; a shard has each of them only if it needs it.
"""

from collections.abc import Collection, Sequence

from upriver.hashing import Hashes
from upriver.ids import FeedId, VnodeId
from upriver.state.checkpoint import ChangedKeys, SliceLog, StateChunk, Undo
from upriver.state.vectors import NO_KEYS


class ChangeLogs:
    """The logs of one shard. Without any, all methods do nothing, and no key has changed."""

    def __init__(self, *, has_checkpoints: bool = False, can_undo: bool = False) -> None:
        """has_checkpoints: whether checkpoints are taken. can_undo: whether standbys may take over at any epoch's
        end."""
        self._changes = ChangedKeys() if has_checkpoints else None
        """The keys changed since the last checkpoint."""
        self._undo = Undo() if can_undo else None
        """The state before the open epoch."""
        self._feeds: dict[FeedId, SliceLog] = {}
        """What a follower still needs, by feed."""

    @property
    def has_checkpoints(self) -> bool:
        return self._changes is not None

    def note(self, hashes: Hashes) -> None:
        """These keys change."""
        if self._changes is not None:
            self._changes.note(hashes)
        self.note_for_followers(hashes)

    def note_for_followers(self, hashes: Hashes) -> None:
        for log in self._feeds.values():
            log.note(hashes)

    # Checkpoints

    @property
    def is_to_copy(self) -> bool:
        """Whether keys are left to copy for the checkpoint."""
        return self._changes is not None and self._changes.left

    def cut(self, everything: Hashes | None) -> None:
        """Cut a checkpoint of the keys that changed since the last one; of ``everything``, if it is given."""
        if self._changes is not None:
            self._changes.cut(everything)

    def next_to_copy(self, keys_max: int) -> Hashes:
        """The checkpoint's next keys."""
        return NO_KEYS if self._changes is None else self._changes.next(keys_max)

    def copy_before(self, hashes: Hashes) -> Hashes:
        """The keys that must be copied for the checkpoint before these change."""
        return NO_KEYS if self._changes is None else self._changes.before(hashes)

    def keep_cut(self) -> None:
        """The checkpoint is in the lake."""
        if self._changes is not None:
            self._changes.keep()

    def drop_cut(self) -> None:
        """The checkpoint is given up: its keys count as changed again."""
        if self._changes is not None:
            self._changes.drop()

    # Followers

    def follow(self, feed: FeedId, vnodes: Sequence[VnodeId], count: int, everything: Hashes) -> None:
        """A worker follows these slices from now on. count: the lake's vnodes. everything: all keys of the slices."""
        self._feeds[feed] = SliceLog(vnodes, count, everything)

    def restrict_feed(self, feed: FeedId, vnodes: Collection[VnodeId]) -> None:
        """The feed has only these slices from now on; without any, it is over."""
        if feed in self._feeds and vnodes:
            self._feeds[feed].keep_only(vnodes)
        else:
            self._feeds.pop(feed, None)

    def is_to_feed(self, feed: FeedId, waiting: int) -> bool:
        """Whether keys are left to copy for the follower. waiting: rows that will change keys which were noted when the
        rows came. So no pass over changed keys begins until then: what it copied would change unnoted."""
        log = self._feeds[feed]
        return log.is_in_pass or (log.left and not waiting)

    def next_to_feed(self, feed: FeedId, keys_max: int, waiting: int) -> Hashes | None:
        """The next keys to copy for the follower; ``None`` if there are none to copy now. waiting: as above."""
        return self._feeds[feed].next(keys_max) if self.is_to_feed(feed, waiting) else None

    def rest_to_feed(self, feed: FeedId) -> Hashes:
        """At the end of an epoch: all keys that have changed for the follower."""
        return self._feeds[feed].rest()

    # Undo

    def unsaved(self, hashes: Hashes) -> Hashes | None:
        """The keys among these whose state before the open epoch is not saved; ``None`` if nothing is saved."""
        return None if self._undo is None else self._undo.unsaved(hashes)

    def save(self, chunk: StateChunk) -> None:
        """Save this state as of before the open epoch."""
        if self._undo is not None:
            self._undo.save(chunk)

    def take_saved(self) -> Sequence[StateChunk]:
        """Remove and return the saved state."""
        return () if self._undo is None else self._undo.take()

    def forget_saved(self) -> None:
        """The open epoch is over."""
        if self._undo is not None:
            self._undo.forget()
