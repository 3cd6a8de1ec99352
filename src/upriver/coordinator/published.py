"""The published epochs as the coordinator opens them: one by one, or several as one where the lake has a segment.

A segment describes epochs as one that were published apart, and workers may have gone through some of them. The order
changes when no worker stands among them; until then the segment waits (coordinator.none_within_a_segment).

A segment that was rewritten lacks rows that later epochs take back, up to the one as of which it was rewritten. So it
waits until no worker stands before that epoch and behind the segment's beginning: such a worker has the rows already.
All segments that were rewritten as of one epoch are taken at once, and each epoch is opened with the last such epoch
(coordinator.rewritten_for_all).
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from upriver.errors import ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, preceding
from upriver.protocol.coordinator_events import EpochPublished, SegmentPublished, SegmentsRewritten

Compacted = SegmentPublished | SegmentsRewritten
"""What a coordinator is told of segments that the lake has got."""
Stands = Collection[tuple[Epoch, Epoch]]
"""For each that goes through epochs, the last that it has finished and the last that it was sent."""


@dataclass(frozen=True, slots=True)
class PublishedEpoch:
    """An epoch, or a segment that ends with it. after: the one before. rows: per channel, over all vnodes. clock: its
    instant."""

    epoch: Epoch
    after: Epoch
    rows: Mapping[Channel, int]
    clock: int | None


class PublishedEpochs:
    """All epochs that a flow's workers may still be sent, in order."""

    def __init__(self) -> None:
        self.last = BEGINNING
        """The last that is published."""
        self.as_of = BEGINNING
        """Segments that were rewritten as of this epoch, or as of an earlier one, are read as they are now."""
        self.clock: int | None = None
        """The instant of the last that is published."""
        self._order: list[Epoch] = []
        self._known: dict[Epoch, PublishedEpoch] = {}
        """All and only those in ``_order``."""
        self._waiting: list[SegmentPublished] = []
        """Segments that describe epochs among which a worker stands."""
        self._rewritten: list[SegmentsRewritten] = []
        """Those that a worker may have read as they were; ascending."""

    def __contains__(self, epoch: Epoch) -> bool:
        return epoch in self._known

    def __getitem__(self, epoch: Epoch) -> PublishedEpoch:
        return self._known[epoch]

    def add(self, event: EpochPublished) -> None:
        """Raises ProtocolError for an epoch that does not follow the last one."""
        after = preceding(event.epoch, event.after)
        if after != self.last or event.epoch <= after:
            raise ProtocolError(f"epoch {event.epoch} was published after {self.last}")
        self.last = event.epoch
        self.as_of = max(self.as_of, event.rewritten)
        self.clock = event.clock
        self._order.append(event.epoch)
        self._known[event.epoch] = PublishedEpoch(event.epoch, after, event.rows, event.clock)

    def replace(self, events: Iterable[EpochPublished], since: Collection[Compacted] = ()) -> None:
        """These are the first epochs; those after them stay as they are. They are as the lake had them before it got
        what is in ``since``, which waits on; nothing else does: a segment that waits may know fewer lake edges."""
        fresh = PublishedEpochs()
        for event in events:
            fresh.add(event)
        later = self._order[bisect_right(self._order, fresh.last) :]
        first = fresh._order
        if later and self._known[later[0]].after != fresh.last:
            after = self._known[later[0]].after
            if (after, later[0]) not in _segments(since):
                raise ProtocolError(f"epochs up to {fresh.last} were given, and {later[0]} follows on another")
            first = first[: bisect_right(first, after)]  # the others are in a segment with later epochs by now
        self.as_of = max(self.as_of, fresh.as_of)
        self._rewritten = [event for event in self._rewritten if event not in since]
        self._forget_waiting()
        known = {epoch: fresh._known[epoch] for epoch in first}
        self._known = known | {epoch: self._known[epoch] for epoch in later}
        self._order = first + later
        for compacted in since:
            self.compacted(compacted)

    def copy(self) -> "PublishedEpochs":
        """Others with the same epochs, for which no segment waits."""
        made = PublishedEpochs()
        made.last, made.as_of, made.clock = self.last, self.as_of, self.clock
        made._order, made._known = list(self._order), dict(self._known)
        return made

    def forget(self) -> None:
        """No worker will be sent any of them."""
        self._order.clear()
        self._known.clear()
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self.as_of = max([self.as_of, *(event.as_of for event in self._rewritten)])
        self._waiting.clear()
        self._rewritten.clear()

    def following(self, epoch: Epoch) -> Epoch | None:
        """The epoch after this one; ``None`` if there is none yet. Raises ProtocolError within a segment."""
        place = bisect_right(self._order, epoch)
        if place == len(self._order):
            return None
        found = self._known[self._order[place]]
        if found.after > epoch:
            raise ProtocolError(f"after epoch {epoch} comes {found.epoch}, which follows on {found.after}")
        if found.after < epoch:
            raise ProtocolError(f"epoch {epoch} is within a segment, from {found.after} to {found.epoch}")
        return found.epoch

    def is_within_a_segment(self, epoch: Epoch) -> bool:
        """Whether no worker can begin behind this epoch: the epoch after it is opened as one with it, or segments are
        read as of a later one."""
        if epoch < self.as_of:
            return True
        place = bisect_right(self._order, epoch)
        return place < len(self._order) and self._known[self._order[place]].after < epoch

    def between(self, after: Epoch, through: Epoch, count: int | None = None) -> list[Epoch]:
        """The epochs after one and up to another, at most so many."""
        first, end = bisect_right(self._order, after), bisect_right(self._order, through)
        return self._order[first : end if count is None else min(end, first + count)]

    def share_of_rows(self, channels: Collection[Channel], through: Epoch) -> float:
        """Of the rows of these channels, the share up to this epoch; 1 if there are none. Another thread may call
        it."""
        known = tuple(self._known.values())
        rows = [sum(each.rows.get(channel, 0) for channel in channels) for each in known]
        read = sum(count for each, count in zip(known, rows, strict=True) if each.epoch <= through)
        return read / sum(rows) if any(rows) else 1.0

    # Segments

    def compacted(self, event: Compacted) -> None:
        """The lake has a segment, which waits for ``adopt``; or segments without rows that have left, which wait for
        ``adopt_rewritten``."""
        if isinstance(event, SegmentPublished):
            self._waiting.append(event)
        else:
            self._rewritten.append(event)

    @property
    def has_waiting(self) -> bool:
        """Whether a segment waits."""
        return bool(self._waiting or self._rewritten)

    @property
    def first_waiting(self) -> Epoch | None:
        """The last epoch before all that a waiting segment changes."""
        rewritten = [Epoch(event.as_of - 1) for event in self._rewritten]
        return min([*(segment.after for segment in self._waiting), *rewritten], default=None)

    def adopt(self, stands: Stands) -> None:
        """Open the epochs of segments as one from now on, where no worker stands among them."""
        waiting, self._waiting = self._waiting, []
        for segment in waiting:
            if _stand_between(stands, segment.after, segment.epoch):
                self._waiting.append(segment)
            else:
                self._merge(segment)

    def adopt_rewritten(self, stands: Stands) -> None:
        """Have segments read without the rows that have left, where no worker stands before the epoch by which they
        have left."""
        while self._rewritten:
            event = self._rewritten[0]
            if _stand_between(stands, min(segment.after for segment in event.segments), event.as_of):
                return
            del self._rewritten[0]
            self.as_of = event.as_of
            for segment in event.segments:
                self._merge(segment)

    def _merge(self, segment: SegmentPublished) -> None:
        first, end = bisect_right(self._order, segment.after), bisect_right(self._order, segment.epoch)
        merged = self._order[first:end]
        if not merged or merged[-1] != segment.epoch or self._known[merged[0]].after != segment.after:
            return  # the order has no longer all of its epochs, or has them within a larger segment
        clock = self._known[segment.epoch].clock
        for epoch in merged:
            del self._known[epoch]
        self._order[first:end] = [segment.epoch]
        self._known[segment.epoch] = PublishedEpoch(segment.epoch, segment.after, segment.rows, clock)


def _segments(compacted: Iterable[Compacted]) -> set[tuple[Epoch, Epoch]]:
    """The epoch before each segment, and its last one."""
    every = [event.segments if isinstance(event, SegmentsRewritten) else (event,) for event in compacted]
    return {(segment.after, segment.epoch) for segments in every for segment in segments}


def _stand_between(stands: Stands, after: Epoch, through: Epoch) -> bool:
    """Whether any has been sent an epoch after ``after`` and has not finished ``through``."""
    return any(finished < through and sent > after for finished, sent in stands)
