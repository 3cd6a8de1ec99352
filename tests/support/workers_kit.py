"""Workers whose machines are real, and to which nothing happens but what a test says."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from machines_kit import VNODES, hashed, read, rows

from upriver.ids import WorkerId
from upriver.protocol import worker_events
from upriver.protocol.messages import FromShare, Meet
from upriver.protocol.peers import Envelope
from upriver.vnodes import vnodes_of
from upriver.worker.serving import Serving
from upriver.worker.share import FlowShare


class SteppedWorkers:
    """Workers 0, 1 and so on."""

    def __init__(self, machines: Sequence[FlowShare]) -> None:
        self.machines = machines
        self.epochs: list[tuple[str, ...]] = []
        """Of the lake: the keys of each one's rows."""
        self.lines: defaultdict[tuple[int, int], deque[Envelope]] = defaultdict(deque)
        """By sender and receiver: what is on its way."""
        self.said: list[tuple[int, FromShare]] = []
        """To the coordinator, each with its sender."""
        self._reading: dict[int, worker_events.ReadEpoch] = {}

    def step(self, worker: int, event: worker_events.ShareEvent) -> list[worker_events.ShareAction]:
        """Have something happen to a worker."""
        actions = self.machines[worker].step(event)
        for action in actions:
            match action:
                case worker_events.ReadEpoch():
                    self._reading[worker] = action
                case worker_events.SendPeer(to=to, envelope=envelope):
                    self.lines[worker, to].append(envelope)
                case worker_events.Report(message=message):
                    self.said.append((worker, message))
            self.take(worker, action)
        if isinstance(event, Meet):
            self.step(worker, worker_events.PeersMet(meeting=event.meeting))
        return actions

    def take(self, worker: int, action: worker_events.ShareAction) -> None:
        """What else a worker wants done, or answers."""

    @property
    def reports(self) -> list[FromShare]:
        return [message for _, message in self.said]

    def phase(self, worker: int) -> Serving:
        phase = self.machines[worker].phase
        assert isinstance(phase, Serving)
        return phase

    def read(self, worker: int, *keys: str) -> None:
        """The worker reads the rows of these keys in the open epoch."""
        self.step(worker, rows(self._reading[worker].epoch, *sorted(keys, key=lambda key: int(hashed([key])[0]))))

    def end(self, worker: int, *already: str) -> None:
        """The worker reads what is left of its slices of the open epoch. already: keys whose rows it has read."""
        reading = self._reading[worker]
        mine = [key for key in self.epochs[reading.epoch - 1] if vnode_of(key) in reading.vnodes]
        left = [key for key in mine if key not in already]
        if left:
            self.read(worker, *left)
        self.step(worker, read(reading.epoch, len(mine)))

    def carry(self, sender: int, receiver: int, count: int | None = None) -> list[Any]:
        """The next things that a worker has said to another arrive; all of them, if no number is given."""
        line = self.lines[sender, receiver]
        carried = [line.popleft() for _ in range(len(line) if count is None else count)]
        for envelope in carried:
            self.step(receiver, worker_events.PeerSaid(sender=WorkerId(sender), envelope=envelope))
        return [envelope.content for envelope in carried]

    def carry_all(self) -> None:
        while any(self.lines.values()):
            for sender, receiver in list(self.lines):
                self.carry(sender, receiver)


def vnode_of(key: str) -> int:
    return int(vnodes_of(hashed([key]), VNODES)[0])
