"""The channels between the workers of a simulated cluster: dialled, opened, broken, let go.

Of two workers the one with the lower number dials the other when it is told of a meeting that names it. Each may be
told of the meeting before or after the channel is open, and speaks over it only when it has been told.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from simulator.process import Process
from upriver.ids import Incarnation, WorkerId
from upriver.protocol.messages import Meet
from upriver.protocol.peers import Envelope
from upriver.protocol.worker_events import PeerLost, PeersMet


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender ends the channel in good order."""


@dataclass(frozen=True, slots=True)
class Break:
    """The sender has died, or the channel is cut."""


@dataclass(slots=True, eq=False)
class SimulatedLine:
    """One direction of a channel. said: on its way."""

    sender: Process
    receiver: Process
    said: deque[Envelope | Goodbye | Break] = field(default_factory=deque)
    is_cut: bool = False
    """Broken, though both run: to speak again they dial again."""


@dataclass(slots=True, eq=False)
class _NetworkPlace:
    """What the shell of one process knows of its peers. joined: the peers that it may send to. met: the last meeting
    told of."""

    joined: dict[WorkerId, SimulatedLine] = field(default_factory=dict)
    met: int = 0


class Network:
    """All channels between processes. ``find``: the process of an incarnation, running or not."""

    def __init__(self, find: Callable[[Incarnation], Process | None]) -> None:
        self._find = find
        self._lines: dict[tuple[Incarnation, Incarnation], SimulatedLine] = {}
        """By sender and receiver: all over which something can still come."""
        self._dialling: dict[tuple[Incarnation, Incarnation], tuple[Process, Process | None]] = {}
        self._places: dict[Incarnation, _NetworkPlace] = {}
        self._severed: set[frozenset[WorkerId]] = set()
        """The places between which nothing goes, one way or both: so no channel comes about."""

    @property
    def busy(self) -> Iterator[SimulatedLine]:
        """The lines over which something is on its way to a process that runs."""
        return (line for line in self._lines.values() if line.said and line.receiver.runs)

    @property
    def dialling(self) -> Iterator[tuple[Incarnation, Incarnation]]:
        return iter(self._dialling)

    def meet(self, process: Process, meet: Meet) -> None:
        """A process is told of a meeting."""
        place = self._places.setdefault(process.incarnation, _NetworkPlace())
        named = {worker: peer for worker, (peer, _) in meet.peers.items() if worker != process.worker}
        for worker, joined in list(place.joined.items()):
            if named.get(worker) != joined.receiver.incarnation:
                place.joined.pop(worker).said.append(Goodbye())
        for worker, peer in sorted(named.items()):
            pair = process.incarnation, peer
            line = self._lines.get(pair)
            if line is not None and not line.is_cut:
                place.joined[worker] = line
            elif process.worker < worker and pair not in self._dialling:
                self._dialling[pair] = process, self._find(peer)
        self._check_complete(process)

    def open(self, pair: tuple[Incarnation, Incarnation]) -> None:
        """A channel that was dialled comes about, unless one of the two is gone."""
        dialler, accepter = self._dialling.pop(pair)
        if not dialler.runs:
            return
        if accepter is None or not accepter.runs:
            dialler.has_lost = True
            dialler.inbox.append(PeerLost(why="no process answers") if accepter is None else _lost(accepter))
            return
        if {dialler.worker, accepter.worker} in self._severed:
            dialler.has_lost = True
            dialler.inbox.append(PeerLost(why=f"{accepter} cannot be reached", unreached=accepter.worker))
            return
        for line in [self._lines.get(pair), self._lines.get(pair[::-1])]:
            if line is not None:  # the end of the one before is seen at the latest now
                self._end(line)
        for sender, receiver in ((dialler, accepter), (accepter, dialler)):
            self._lines[sender.incarnation, receiver.incarnation] = line = SimulatedLine(sender, receiver)
            named = None if sender.meet is None else sender.meet.peers.get(receiver.worker)
            if named is not None and named[0] == receiver.incarnation:
                place = self._places.setdefault(sender.incarnation, _NetworkPlace())
                place.joined[receiver.worker] = line
                self._check_complete(sender)

    def send(self, sender: Process, to: WorkerId, envelope: Envelope) -> bool:
        """Put something on a channel; whether there is one. What is said to the dead is lost."""
        place = self._places.get(sender.incarnation)
        if place is None or to not in place.joined:
            return False
        line = place.joined[to]
        if line.receiver.runs:
            line.said.append(envelope)
        return True

    def next_of(self, line: SimulatedLine) -> Envelope | None:
        """Take what comes next over a line; ``None`` if it is the end."""
        said = line.said.popleft()
        if isinstance(said, Envelope):
            return said
        self._end(line)
        return None

    def _end(self, line: SimulatedLine) -> None:
        """The receiver sees that nothing more comes."""
        self._lines.pop((line.sender.incarnation, line.receiver.incarnation), None)
        joined = self._places[line.receiver.incarnation].joined if line.receiver.incarnation in self._places else {}
        back = joined.get(line.sender.worker)
        if back is not None and back.receiver is line.sender:
            del joined[line.sender.worker]
            line.receiver.has_lost = True
            line.receiver.inbox.append(_lost(line.sender))

    def ended(self, process: Process, rng: Random, died: bool) -> None:
        """A process is no more: what it has said last may be lost if it has died, but nothing if it has stopped."""
        self._places.pop(process.incarnation, None)
        for pair, line in list(self._lines.items()):
            if line.receiver is process:
                del self._lines[pair]
            elif line.sender is process:
                for _ in range(rng.randint(0, len(line.said)) if died else 0):
                    line.said.pop()
                line.said.append(Break() if died else Goodbye())

    @property
    def severed(self) -> bool:
        """Whether any link is broken, and stays so."""
        return bool(self._severed)

    def sever(self, ends: tuple[Process, Process]) -> None:
        """From now on no channel comes about between the places of these two."""
        self._severed.add(frozenset(process.worker for process in ends))

    def mend(self, worker: WorkerId | None = None) -> None:
        """All links of a place are whole again; ``None``: all links."""
        self._severed = {ends for ends in self._severed if worker is not None and worker not in ends}

    def cut(self, rng: Random, *, one_way: bool = False) -> tuple[Process, Process] | None:
        """A channel between two that run breaks: of what was said last, either way or one way, a part is lost. Between
        which processes it was; ``None`` if there is none."""
        whole = [line for line in self._lines.values() if self._is_whole(line)]
        if not whole:
            return None
        line = rng.choice(whole)
        back = self._lines[line.receiver.incarnation, line.sender.incarnation]
        for of_one in (line, back):
            for _ in range(0 if one_way and of_one is back else rng.randint(0, len(of_one.said))):
                of_one.said.pop()
            of_one.said.append(Break())
            of_one.is_cut = True
        return line.sender, line.receiver

    def _is_whole(self, line: SimulatedLine) -> bool:
        back = self._lines.get((line.receiver.incarnation, line.sender.incarnation))
        ends = (Break, Goodbye)
        has_ended = back is None or any(isinstance(said, ends) for said in (*line.said, *back.said))
        return line.sender.runs and line.receiver.runs and not has_ended

    def on_its_way(self) -> Iterator[tuple[SimulatedLine, Envelope]]:
        """Everything that a process will hear, unless it dies first."""
        return ((line, said) for line in self.busy for said in line.said if isinstance(said, Envelope))

    def _check_complete(self, process: Process) -> None:
        place, meet = self._places[process.incarnation], process.meet
        assert meet is not None
        others = meet.peers.keys() - {process.worker}
        if place.met < meet.meeting and place.joined.keys() >= others:
            place.met = meet.meeting
            process.inbox.append(PeersMet(meeting=meet.meeting))


def _lost(process: Process) -> PeerLost:
    return PeerLost(peer=process.worker, incarnation=process.incarnation, why=f"{process} is gone")
