"""The faults of ICADD as published, each with a small world that shows it and a test of whether it is the one.

The numbers are those of ``docs/internals/icadd.md``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.icadd_cases import BOUNCED, BYSTANDER, DOWN, EPOCHS, JOIN_WITH_ROWS, QUIET, SNAPSHOT, TINY
from simulator.icadd_join import search_join
from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_scenario import Rulebook, Scenario, published
from simulator.icadd_search import Finding, Search, tell
from simulator.icadd_world import IcaddStep, IcaddWorld
from simulator.published.published import After
from upriver.migration.events import Rule

SEARCH_STATES_MAX = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFault:
    """number, title: for people. kind, rules: what a checker must find, and by which rule the row at fault passed.

    also: what else must hold in the world in which it was found, for it to be this fault and no other.
    """

    number: str
    title: str
    case: Scenario
    kind: NodeKind
    rules: frozenset[Rule | None] = frozenset({None})
    rulebook: Rulebook
    also: Callable[[IcaddWorld], bool]

    def is_this(self, world: IcaddWorld, steps: tuple[IcaddStep, ...], violation: ProtocolViolation) -> bool:
        """Whether the checkers found this fault."""
        return violation.kind == self.kind and violation.rule in self.rules and self.also(world)

    def shortest(self, states_max: int = SEARCH_STATES_MAX) -> Finding | None:
        """A shortest way to it, if there is one within about this many states."""
        return Search(self.case, self.rulebook).first(self.is_this, states_max)


def _always(world: IcaddWorld) -> bool:
    return True


def _nobody_finished(world: IcaddWorld) -> bool:
    return not any(isinstance(part.machine.phase, After) for part in world.parts.values())


FAULTS = (
    PublishedFault(
        number="R1",
        title="the version rule splits state when F(K) is a third worker",
        case=BYSTANDER,
        kind=NodeKind.SPLIT,
        rules=frozenset({Rule.V}),
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R2",
        title="Done overtakes rows that are still on their detour by the old owner",
        case=TINY,
        kind=NodeKind.ORDER,
        rules=frozenset({Rule.N1}),
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R3",
        title="a bystander's switch from F to F' reorders its own rows, with no Done in sight",
        case=BYSTANDER,
        kind=NodeKind.ORDER,
        rules=frozenset(Rule),
        rulebook=published(),
        also=_nobody_finished,
    ),
    PublishedFault(
        number="R4",
        title="the version rule passes a new key by rule 1.1: it is never whitelisted, and stays for ever",
        case=BOUNCED,
        kind=NodeKind.MISPLACED,
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R5",
        title="a joining worker that does not know F makes state of its own",
        case=JOIN_WITH_ROWS,
        kind=NodeKind.SPLIT,
        rules=frozenset({Rule.N1}),
        rulebook=published(joiner_knows_old_map=False),
        also=_always,
    ),
    PublishedFault(
        number="R7",
        title="a Done that comes before its receiver's own Interrogate is lost",
        case=QUIET,
        kind=NodeKind.STUCK,
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R8",
        title="a leaver goes while others still send to it",
        case=DOWN,
        kind=NodeKind.DEAD,
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R10",
        title="an epoch ends over rows that are held",
        case=EPOCHS,
        kind=NodeKind.LATE,
        rules=frozenset(Rule),
        rulebook=published(),
        also=_always,
    ),
    PublishedFault(
        number="R11",
        title="barriers cut through rows that are on their detour, though the snapshot waits until all have finished",
        case=SNAPSHOT,
        kind=NodeKind.CUT,
        rules=frozenset(Rule),
        rulebook=published(),
        also=_always,
    ),
)


def search_published() -> list[dict[str, Any]]:
    """Each fault of the rules as written, found anew, with a shortest trace. For JSON.

    Keys: fault, title, case, kind, rule (the document's, or null), steps, trace (a line per step, and the finding).
    """
    return [*map(found, FAULTS), _found_join()]


def _found_join() -> dict[str, Any]:
    _, story = search_join(published, distributors=2)
    return {
        "fault": "R14",
        "title": "of two distributors of one region, one collects a key while the other lets it through",
        "found": bool(story),
        "case": "join of two inputs",
        "kind": str(NodeKind.SPLIT),
        "rule": None,
        "steps": max(0, len(story) - 1),
        "trace": story,
    }


def found(fault: PublishedFault) -> dict[str, Any]:
    """A fault searched for: an entry of ``search_published``."""
    finding = fault.shortest()
    story: list[str] = [] if finding is None else tell(fault.case, fault.rulebook, finding)
    rule = None if finding is None else finding.violation.rule
    return {
        "fault": fault.number,
        "title": fault.title,
        "found": finding is not None,
        "case": fault.case.name,
        "kind": str(fault.kind),
        "rule": None if rule is None else str(rule),
        "steps": 0 if finding is None else len(finding.steps),
        "trace": story,
    }
