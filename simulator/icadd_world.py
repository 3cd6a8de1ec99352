"""A model world for live migration: workers with real distributors, FIFO channels, operators that log what they see.

What a step does depends on nothing but the world and the step. Operators keep, per key, the log of the rows that they
applied; state moves with its log, so the logs at the end show what went wrong. A step copies only what it changes, so
worlds are cheap to copy.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from simulator.icadd_coordinator import (
    ModelAction,
    ModelCoordinator,
    RetireModelWorker,
    StartModelWorkers,
    TellDistributor,
)
from simulator.icadd_node import NodeKind, NodePart, ProtocolViolation
from simulator.icadd_rows import ModelRows, TracedRow, brief, frozen, key_name
from simulator.icadd_scenario import Rulebook, Scenario, vnode_owner
from upriver.coordinator.rescale.plan import RescalePlan
from upriver.errors import ProtocolError
from upriver.ids import WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Drop,
    Event,
    InputClosed,
    Interrogate,
    Leave,
    PassDown,
    Received,
    ReportGone,
    ReportSettled,
    RescaleAnnounced,
    RowsArrived,
    Rule,
    Send,
    TakeState,
)
from upriver.migration.messages import Acquire, Message, RowsSent, WorkerDone
from upriver.vnodes import VnodeMap

LATE_TRIGGER = "a worker hears of the rescale behind a peer that has begun"


class IcaddStep(NamedTuple):
    """kind: a name of ``IcaddWorld``'s steps. peer: the sender, if something is received."""

    kind: str
    worker: WorkerId = WorkerId(-1)
    region: str = ""
    peer: WorkerId = WorkerId(-1)


Channels = dict[tuple[WorkerId, WorkerId], tuple[tuple[str, Message, Any], ...]]
"""By sender and receiver, what is on its way, in order: region, message, and the message in hashable form."""


class IcaddWorld:
    """All of it. Steps raise ``ProtocolViolation`` when a checker finds something.

    happened: what has been seen on the way here, by name; it makes no difference to what follows.
    """

    def __init__(self, scenario: Scenario, rulebook: Rulebook) -> None:
        self.scenario = scenario
        self.rulebook = rulebook
        self.parts: dict[tuple[WorkerId, str], NodePart] = {}
        self.channels: Channels = {}
        self.applied: dict[tuple[str, int, WorkerId], int] = {}
        self.fed: dict[tuple[WorkerId, str], tuple[TracedRow, ...]] = {}
        """By worker and region, the rows that the region before has given it there, in order."""
        self.coordinator = ModelCoordinator(scenario.maps, scenario.workers, rulebook.coordinator)
        self.asked = 0
        self.unsettled: frozenset[tuple[WorkerId, str]] = frozenset()
        self.epoch_ended = 0
        self.happened: frozenset[str] = frozenset()
        self._aborts_left = int(scenario.aborts)
        self._own_parts: set[tuple[WorkerId, str]] = set()
        self.epochs = sorted({item.epoch for items in scenario.inputs.values() for item in items})
        self._birth()

    def _birth(self) -> None:
        for worker in self.scenario.workers:
            for region, map in self.scenario.maps.items():
                self.parts[worker, region] = self._new_part(worker, region, map)
        for region, keys in self.scenario.prior.items():
            for key in keys:
                self.parts[vnode_owner(self.scenario.maps[region], key), region].logs[key] = ((WorkerId(-1), 0),)
        if self.scenario.asked_at_once:
            self._ask(IcaddStep("ask"))

    def _new_part(self, worker: WorkerId, region: str, map: VnodeMap) -> NodePart:
        """Of a worker that comes up; the upstream of one that comes back goes on where it was."""
        back = self.parts.get((worker, region))
        machine, operators = self.rulebook.machine(worker, map, self.scenario.together), self.rulebook.operators
        return NodePart(machine, operators, position=0 if back is None else back.position)

    def copy(self) -> "IcaddWorld":
        """A world to go another way from here."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.parts = dict(self.parts)
        self._own_parts, other._own_parts = set(), set()
        other.channels = dict(self.channels)
        other.applied = dict(self.applied)
        other.fed = dict(self.fed)
        other.coordinator = self.coordinator.copy()
        return other

    def state(self) -> int:
        """Equal for equal worlds of one scenario; with 64 bits, unequal for others but for a wonder."""
        parts = tuple((place, self.parts[place].state()) for place in sorted(self.parts))
        channels = tuple(
            (pair, tuple((region, key) for region, _, key in self.channels[pair]))
            for pair in sorted(self.channels)
            if self.channels[pair]
        )
        rest = self.unsettled, self.asked, self.epoch_ended, self._aborts_left
        return hash((parts, channels, frozenset(self.applied.items()), frozenset(self.fed.items()), rest))

    # What can happen ----------------------------------------------------------------------------------------------

    def possible(self) -> list[IcaddStep]:
        """Every step that can be next, in a fixed order."""
        steps: list[IcaddStep] = []
        for (worker, region), part in self.parts.items():
            if part.steps is None:
                part.steps = tuple(self._of_part(worker, region, part))
            steps += part.steps
        steps += [IcaddStep("receive", to, peer=sender) for (sender, to), queue in self.channels.items() if queue]
        if self.asked < len(self.scenario.requests):
            steps.append(IcaddStep("ask"))
        if self._aborts_left and self.coordinator.announced is not None:
            steps.append(IcaddStep("abort"))
        if self.epoch_ended < len(self.epochs) - 1 and self._quiet(self.epochs[self.epoch_ended]):
            steps.append(IcaddStep("end epoch"))
        return steps

    def _of_part(self, worker: WorkerId, region: str, part: NodePart) -> Iterator[IcaddStep]:
        if part.left:
            return
        if part.orders:
            yield IcaddStep("order", worker, region)
        if part.position < len(self.input_of(worker, region)):
            yield IcaddStep("input", worker, region)
        elif part.peers is not None and not part.queue and not self._may_be_fed(worker, region):
            yield IcaddStep("close", worker, region)
        if part.queue:
            yield IcaddStep("operate", worker, region)
        if part.answer is not None:
            yield IcaddStep("answer", worker, region)
        if part.machine.can_collect and part.answer is None:
            yield IcaddStep("collect", worker, region)

    def input_of(self, worker: WorkerId, region: str) -> tuple[TracedRow, ...]:
        """The rows that come in there, in order, as far as they are known."""
        return (*self.scenario.inputs.get((worker, region), ()), *self.fed.get((worker, region), ()))

    def _may_be_fed(self, worker: WorkerId, region: str) -> bool:
        """Whether the region before may give more rows there."""
        return any(
            to == region and not self.parts[worker, before].left for before, (to, _) in self.scenario.feeds.items()
        )

    def _feed(self, worker: WorkerId, region: str, item: TracedRow) -> None:
        """The operators of a region put out a row for the next one."""
        to, keys = self.scenario.feeds[region]
        known = self.fed.get((worker, to), ())
        number = 1 + sum(row.key == keys[item.key] for row in known)
        self.fed[worker, to] = (*known, TracedRow(keys[item.key], worker, number, item.epoch))
        self._own(IcaddStep("input", worker, to))

    def _quiet(self, epoch: int) -> bool:
        """Whether, by the rules, all rows up to this epoch count as applied: as many received as sent."""
        for place in {**self.scenario.inputs, **self.fed}:
            items, position = self.input_of(*place), self.parts[place].position if place in self.parts else 0
            if any(item.epoch <= epoch for item in items[position:]):
                return False
        for part in self.parts.values():
            waiting = part.machine.rows_waiting if self.rulebook.waiting_rows_in_flight else 0
            if waiting or part.queue:
                return False
        return not any(isinstance(message, RowsSent) for queue in self.channels.values() for _, message, _ in queue)

    # Steps --------------------------------------------------------------------------------------------------------

    def take(self, step: IcaddStep) -> None:
        """Take one of the possible steps."""
        _STEPS[step.kind](self, step)

    def _ask(self, step: IcaddStep) -> None:
        request = self.scenario.requests[self.asked]
        self.asked += 1
        if self.coordinator.announced is not None:
            self.happened |= {"a rescale waits for another"}
        self._coordinate(self.coordinator.ask(request))

    def _abort(self, step: IcaddStep) -> None:
        self._aborts_left -= 1
        self.happened |= {"a rescale is aborted"}
        self._coordinate(self.coordinator.abort())

    def _end_epoch(self, step: IcaddStep) -> None:
        self.epoch_ended += 1

    def _order(self, step: IcaddStep) -> None:
        part = self._own(step)
        order, part.orders = part.orders[0], part.orders[1:]
        self._event(step, order)

    def _take_input(self, step: IcaddStep) -> None:
        part = self._own(step)
        item = self.input_of(step.worker, step.region)[part.position]
        part.position += 1
        self._event(step, RowsArrived(rows=ModelRows.of(item)))

    def _receive(self, step: IcaddStep) -> None:
        (region, message, _), *rest = self.channels[step.peer, step.worker]
        self.channels[step.peer, step.worker] = tuple(rest)
        place = step._replace(region=region)
        part = self._own(place)
        if part.left:
            if not (self.rulebook.loses_done_to_the_gone and isinstance(message, WorkerDone)):
                raise ProtocolViolation(
                    NodeKind.DEAD, f"{brief(message)} from {step.peer} reached {step.worker}, which has left"
                )
            return
        self.happened |= {type(message).__name__}
        if any(isinstance(order, RescaleAnnounced) and message.version >= order.version for order in part.orders):
            self.happened |= {LATE_TRIGGER}
        self._event(place, Received(sender=step.peer, message=message))

    def _answer(self, step: IcaddStep) -> None:
        part = self._own(step)
        answer, part.answer = part.answer, None
        assert answer is not None
        self._event(step, answer)

    def _collect(self, step: IcaddStep) -> None:
        self._own(step)
        self._event(step, CollectAsked(keys_max=self.scenario.keys_max))

    def _close(self, step: IcaddStep) -> None:
        part = self._own(step)
        assert part.peers is not None
        peers, part.peers = part.peers, None
        self._event(step, InputClosed(peers=peers))

    def _operate(self, step: IcaddStep) -> None:
        self._operators(step, self._own(step))

    def _operators(self, step: IcaddStep, part: NodePart) -> None:
        """The operators see the next thing in their queue."""
        task, part.queue = part.queue[0], part.queue[1:]
        match task:
            case PassDown(rows=rows, rule=rule):
                assert isinstance(rows, ModelRows)
                for item in rows.items:
                    self._apply(step, part, item, rule)
            case Interrogate():
                part.interrogate(task, len(self.scenario.maps[step.region].owners))
            case Collect():
                part.collect(task)
            case TakeState():
                part.take(task)
            case Drop():
                part.drop(task)

    # What steps do ------------------------------------------------------------------------------------------------

    def _own(self, step: IcaddStep) -> NodePart:
        """The part of this step, for this world alone to change."""
        place = step.worker, step.region
        if place in self._own_parts:
            self.parts[place].forget()
        else:
            self.parts[place] = self.parts[place].copy()
            self._own_parts.add(place)
        return self.parts[place]

    def _event(self, step: IcaddStep, event: Event) -> None:
        try:
            actions = self.parts[step.worker, step.region].machine.step(event)
        except ProtocolError as error:
            raise ProtocolViolation(NodeKind.ILLEGAL, str(error)) from error
        for action in actions:
            self._carry_out(step, action)
        machine = self.parts[step.worker, step.region].machine
        if machine.rows_waiting:
            self.happened |= {f"rows wait in {type(machine.phase).__name__}"}
        if len(getattr(machine.phase, "slices", ())) > 1:
            self.happened |= {"slices are given together"}

    def _carry_out(self, step: IcaddStep, action: Action) -> None:
        part = self.parts[step.worker, step.region]
        match action:
            case Send(to=to, message=message):
                queue = self.channels.get((step.worker, to), ())
                self.channels[step.worker, to] = (*queue, (step.region, message, frozen(message)))
            case ReportSettled(version=version, kept=kept):
                self.unsettled -= {(step.worker, step.region)}
                settled = partial(self.coordinator.settled, step.worker, step.region, version, kept)
                self._coordinate(_legal(settled))
            case ReportGone(peer=peer):
                self._coordinate(_legal(partial(self.coordinator.peer_left, step.worker, step.region, peer)))
            case Leave():
                part.left = True
                if step.region in self.scenario.feeds:
                    self._own(IcaddStep("close", step.worker, self.scenario.feeds[step.region][0]))
            case _:
                part.queue = (*part.queue, action)
                while part.queue and not self.scenario.slow_operators:
                    self._operators(step, part)

    def _coordinate(self, actions: list[ModelAction]) -> None:
        for action in actions:
            match action:
                case StartModelWorkers(plan=plan):
                    self._start_workers(plan)
                case TellDistributor(worker=worker, region=region, order=order):
                    part = self._own(IcaddStep("order", worker, region))
                    part.orders = (*part.orders, order)
                    self.unsettled |= {(worker, region)}
                case RetireModelWorker(worker=worker, peers=peers):
                    for region in self.scenario.maps:
                        self._own(IcaddStep("close", worker, region)).peers = peers

    def _start_workers(self, plan: RescalePlan) -> None:
        maps = plan.before if self.rulebook.joiner_knows_old_map else plan.after
        for worker in plan.joining:
            for region, map in maps.items():
                self.parts[worker, region] = self._new_part(worker, region, map)

    # Checks -------------------------------------------------------------------------------------------------------

    def _apply(self, step: IcaddStep, part: NodePart, item: TracedRow, rule: Rule) -> None:
        """SPLIT, ORDER, DOUBLED, LATE: one row, as an operator sees it."""
        place, key = f"{item} was applied at {step.worker} by rule {rule}", item.key
        if key in part.sealed:
            raise ProtocolViolation(NodeKind.SPLIT, f"{place} while its key's state is being collected there", rule)
        for (worker, region), other in self.parts.items():
            if region != step.region:
                continue
            if worker != step.worker and other.holds(key):
                raise ProtocolViolation(NodeKind.SPLIT, f"{place} while {worker} has its key's state", rule)
            if other.taking(key):
                raise ProtocolViolation(NodeKind.SPLIT, f"{place} while its key's state waits at {worker}", rule)
        for (source, target), queue in self.channels.items():
            for region, message, _ in queue:
                if region == step.region and isinstance(message, Acquire) and key in message.keys.tolist():
                    where = f"{place} while its key's state is on its way from {source} to {target}"
                    raise ProtocolViolation(NodeKind.SPLIT, where, rule)
        last = self.applied.get((step.region, key, item.origin), 0)
        if item.seq <= last:
            raise ProtocolViolation(NodeKind.DOUBLED, f"{place} for the second time", rule)
        if item.seq > last + 1:
            raise ProtocolViolation(NodeKind.ORDER, f"{place} ahead of #{last + 1}", rule)
        if self.epoch_ended and item.epoch <= self.epochs[self.epoch_ended - 1]:
            raise ProtocolViolation(NodeKind.LATE, f"{place} after its epoch {item.epoch} had ended", rule)
        self.happened |= {f"rule {rule}"}
        self.applied[step.region, key, item.origin] = item.seq
        part.logs[key] = (*part.logs.get(key, ()), (item.origin, item.seq))
        if step.region in self.scenario.feeds:
            self.happened |= {"a region feeds another"}
            self._feed(step.worker, step.region, item)

    def check_end(self) -> None:
        """MISPLACED, LOST, DOUBLED, STUCK: nothing more can happen."""
        seen: dict[tuple[str, int, WorkerId], list[int]] = {}
        for (worker, region), part in self.parts.items():
            for key, log in part.logs.items():
                self._check_place(worker, region, key)
                for origin, seq in log:
                    seen.setdefault((region, key, origin), []).append(seq)
        for place in {**self.scenario.inputs, **self.fed}:
            region = place[1]
            for item in self.input_of(*place) if place in self.parts else ():
                times = seen.get((region, item.key, item.origin), []).count(item.seq)
                if times != 1:
                    kind = NodeKind.DOUBLED if times else NodeKind.LOST
                    raise ProtocolViolation(kind, f"{item} is in the state {times} times at the end")
        for worker, region in sorted(self.unsettled):
            raise ProtocolViolation(NodeKind.STUCK, f"worker {worker} never settles {region}")
        for (worker, region), part in sorted(self.parts.items()):
            if part.machine.rows_waiting:
                raise ProtocolViolation(NodeKind.STUCK, f"worker {worker} keeps rows of {region} waiting")

    def _check_place(self, worker: WorkerId, region: str, key: int) -> None:
        owner = vnode_owner(self._map_at_end(region), key)
        if worker != owner:
            raise ProtocolViolation(
                NodeKind.MISPLACED, f"the state of {key_name(key)} ends at {worker}, and belongs to {owner}"
            )

    def _map_at_end(self, region: str) -> Any:
        announced = self.coordinator.announced
        return self.coordinator.maps[region] if announced is None else announced.plan.after[region]


def _legal(report: Callable[[], list[ModelAction]]) -> list[ModelAction]:
    """What the coordinator does about a report."""
    try:
        return report()
    except ProtocolError as error:
        raise ProtocolViolation(NodeKind.ILLEGAL, str(error)) from error


_STEPS: Mapping[str, Callable[[IcaddWorld, IcaddStep], None]] = {
    "ask": IcaddWorld._ask,
    "abort": IcaddWorld._abort,
    "end epoch": IcaddWorld._end_epoch,
    "order": IcaddWorld._order,
    "input": IcaddWorld._take_input,
    "receive": IcaddWorld._receive,
    "answer": IcaddWorld._answer,
    "collect": IcaddWorld._collect,
    "close": IcaddWorld._close,
    "operate": IcaddWorld._operate,
}
