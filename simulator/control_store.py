"""The control records in the lake of a simulated cluster, and those on their way there."""

from collections import deque

from upriver.protocol.coordinator_events import ControlUnwritten, ControlWritten, WriteControl
from upriver.vnodes import Placement


class FakeControl:
    """waiting: in order, not written yet. newest: the last one that is written, of any driver."""

    def __init__(self) -> None:
        self.waiting: deque[WriteControl] = deque()
        self.newest: WriteControl | None = None

    def write(self, count: int) -> ControlWritten:
        """The lake takes the last of so many waiting records, and with it those before."""
        for _ in range(count):
            self.newest = self.waiting.popleft()
        assert self.newest is not None
        return ControlWritten(number=self.newest.number)

    def refuse(self, error: ControlUnwritten) -> list[WriteControl]:
        """The lake does not take the records up to this one. Returns them; they are tried again."""
        return [record for record in self.waiting if record.number <= error.number]

    def begin_again(self) -> Placement | None:
        """Another driver has come: the placement that it finds, if there is any."""
        self.waiting.clear()
        return None if self.newest is None else self.newest.target or self.newest.placement
