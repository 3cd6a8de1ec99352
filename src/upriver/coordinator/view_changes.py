"""Requested changes of the app's views, which wait while keys move.

Each names the epochs as the lake had them when it was requested. The segments that the lake gets while the change waits
replace files that it names, so they are kept beside it and wait on when the change is made.
"""

from collections import deque
from dataclasses import dataclass, field

from upriver.coordinator.published import Compacted
from upriver.protocol.coordinator_events import PlansWanted


@dataclass(frozen=True, slots=True)
class ViewChange:
    """A requested change. since: what the lake has compacted since the request."""

    wanted: PlansWanted
    since: list[Compacted] = field(default_factory=list)


class ViewChanges:
    """Those that wait, in order."""

    def __init__(self) -> None:
        self._waiting: deque[ViewChange] = deque()

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def put(self, wanted: PlansWanted) -> None:
        self._waiting.append(ViewChange(wanted))

    def compacted(self, event: Compacted) -> None:
        """The lake has segments that no change which waits by now can know of."""
        for change in self._waiting:
            change.since.append(event)

    def take(self) -> ViewChange:
        """The first, which waits no longer. Raises IndexError if none waits."""
        return self._waiting.popleft()
