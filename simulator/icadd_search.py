"""Every way that a small world can go, breadth first: so the trace of a fault is a shortest one."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_scenario import Rulebook, Scenario
from simulator.icadd_snapshot import new_world
from simulator.icadd_trace import told
from simulator.icadd_world import IcaddStep, IcaddWorld

Wanted = Callable[[IcaddWorld, tuple[IcaddStep, ...], ProtocolViolation], bool]
"""Whether a violation, met in this world after these steps, is the one looked for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A shortest way to a fault. steps: the last one met it, unless it showed only when nothing could follow."""

    violation: ProtocolViolation
    steps: tuple[IcaddStep, ...]


@dataclass(frozen=True, slots=True)
class Searched:
    """states: different ones seen. ends: of them, those after which nothing can happen. complete: none was left out.
    trapped: of them, those from which neither an end nor a violation can be reached. findings: the first of each kind.
    """

    states: int
    ends: int
    complete: bool
    trapped: int
    findings: dict[NodeKind, Finding]


class Search:
    """Breadth first from the beginning of one scenario. A branch stops where a checker finds something."""

    def __init__(self, scenario: Scenario, rulebook: Rulebook) -> None:
        self.scenario = scenario
        self.rulebook = rulebook
        self._parents: dict[int, tuple[int, IcaddStep] | None] = {}
        self._before: dict[int, list[int]] = {}

    def everything(self, states_max: int) -> Searched:
        """All states, up to about this many."""
        findings: dict[NodeKind, Finding] = {}
        ends, stopped = 0, set()
        frontier = self._begin()
        while frontier and len(self._parents) < states_max:
            world, state = frontier.popleft()
            steps = world.possible()
            ends += not steps
            found = self._expand(world, state, steps, frontier)
            if found or not steps:
                stopped.add(state)
            for violation, last in found:
                if violation.kind not in findings:
                    findings[violation.kind] = Finding(violation, self._steps_to(state, last))
        return Searched(len(self._parents), ends, not frontier, self._trapped(stopped), findings)

    def first(self, wanted: Wanted, states_max: int) -> Finding | None:
        """A shortest way to a wanted violation, if there is one within about this many states."""
        frontier = self._begin()
        while frontier and len(self._parents) < states_max:
            world, state = frontier.popleft()
            for violation, last in self._expand(world, state, world.possible(), frontier):
                steps = self._steps_to(state, last)
                if wanted(world, steps, violation):
                    return Finding(violation, steps)
        return None

    def _begin(self) -> deque[tuple[IcaddWorld, int]]:
        world = new_world(self.scenario, self.rulebook)
        self._parents = {world.state(): None}
        self._before = {}
        return deque([(world, world.state())])

    def _expand(
        self, world: IcaddWorld, state: int, steps: list[IcaddStep], frontier: deque[tuple[IcaddWorld, int]]
    ) -> list[tuple[ProtocolViolation, IcaddStep | None]]:
        """Put what follows on the frontier; return what the checkers found, and at which step."""
        found: list[tuple[ProtocolViolation, IcaddStep | None]] = []
        if not steps:
            try:
                world.check_end()
            except ProtocolViolation as violation:
                found.append((violation, None))
        for step in steps:
            after = world.copy()
            try:
                after.take(step)
            except ProtocolViolation as violation:
                found.append((violation, step))
                continue
            key = after.state()
            self._before.setdefault(key, []).append(state)
            if key not in self._parents:
                self._parents[key] = (state, step)
                frontier.append((after, key))
        return found

    def _trapped(self, stopped: set[int]) -> int:
        """How many states lead to none of the stopped ones; of a search that is cut short, that says nothing."""
        leading, todo = set(stopped), list(stopped)
        while todo:
            for state in self._before.get(todo.pop(), ()):
                if state not in leading:
                    leading.add(state)
                    todo.append(state)
        return len(self._parents) - len(leading)

    def _steps_to(self, state: int, last: IcaddStep | None) -> tuple[IcaddStep, ...]:
        steps = [] if last is None else [last]
        parent = self._parents[state]
        while parent is not None:
            state, step = parent
            steps.append(step)
            parent = self._parents[state]
        return tuple(reversed(steps))


def tell(scenario: Scenario, rulebook: Rulebook, finding: Finding) -> list[str]:
    """A finding as lines for a person: what each step did, and what was found."""
    return told(new_world(scenario, rulebook), finding.steps)
