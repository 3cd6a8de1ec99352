"""The faults of the migration protocols as published, each with a small world that shows it by a shortest trace.

The numbers are those of ``docs/internals/icadd.md`` and ``docs/internals/redistribute.md``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.icadd_cases import (
    BOUNCED,
    BYSTANDER,
    DOWN,
    DOWN_ONE,
    EPOCHS,
    JOIN_WITH_ROWS,
    QUIET,
    REGION,
    SNAPSHOT,
    TINY,
    graph_of,
)
from simulator.icadd_join import search_join
from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_scenario import Rulebook, Scenario, published
from simulator.icadd_search import Finding, Search, tell
from simulator.icadd_world import IcaddStep, IcaddWorld
from simulator.published.published import After
from simulator.redistribute_cases import ONE_ORIGIN, SECOND_OPERATOR, TWO_ORIGINS, TWO_OWNERS
from simulator.redistribute_rulebook import redistribute_as_published, redistribute_rulebook
from upriver.ids import WorkerId
from upriver.migration.events import Rule
from upriver.migration.redistribute_phases import Stage, Started
from upriver.migration.rules import ALL_ON

SEARCH_STATES_MAX = 200_000
BY_NEW_MAP = frozenset({Rule.C3_2, Rule.N1})


def _always(world: IcaddWorld) -> bool:
    return True


def _nobody_finished(world: IcaddWorld) -> bool:
    return not any(isinstance(part.machine.phase, After) for part in world.parts.values())


def _old_owner_has_state(world: IcaddWorld) -> bool:
    return bool(world.parts[WorkerId(0), REGION].logs)


def _others_sets_are_missing(world: IcaddWorld) -> bool:
    """The joining worker 2 has heard the sets of 0, and none of 1."""
    phase = world.parts[WorkerId(2), REGION].machine.phase
    return isinstance(phase, Started) and phase.migration.views[WorkerId(1)].stage is Stage.ANNOUNCED


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
    also: Callable[[IcaddWorld], bool] = _always

    def is_this(self, world: IcaddWorld, steps: tuple[IcaddStep, ...], violation: ProtocolViolation) -> bool:
        """Whether the checkers found this fault."""
        return violation.kind == self.kind and violation.rule in self.rules and self.also(world)

    def shortest(self, states_max: int = SEARCH_STATES_MAX) -> Finding | None:
        """A shortest way to it, if there is one within about this many states."""
        return Search(self.case, self.rulebook).first(self.is_this, states_max)

    def entry(self) -> dict[str, Any]:
        """The fault searched for: an entry of ``search_published``."""
        finding = self.shortest()
        story = [] if finding is None else tell(self.case, self.rulebook, finding)
        return _entry(self.number, self.title, self.kind, story, 0 if finding is None else len(finding.steps))


def _entry(number: str, title: str, kind: NodeKind, story: list[str], steps: int) -> dict[str, Any]:
    told = {"title": title, "found": bool(story), "kind": str(kind), "steps": steps, "trace": story}
    return {"fault": number, **told}


def _join_entry() -> dict[str, Any]:
    _, story = search_join(published, distributors=2)
    title = "of two distributors of one region, one collects a key while the other lets it through"
    return _entry("R14", title, NodeKind.SPLIT, story, max(0, len(story) - 1))


FAULTS: Mapping[str, tuple[PublishedFault, ...]] = {
    "icadd": (
        PublishedFault(
            number="R1",
            title="the version rule splits state when F(K) is a third worker",
            case=BYSTANDER,
            kind=NodeKind.SPLIT,
            rules=frozenset({Rule.V}),
            rulebook=published(),
        ),
        PublishedFault(
            number="R2",
            title="Done overtakes rows that are still on their detour by the old owner",
            case=TINY,
            kind=NodeKind.ORDER,
            rules=frozenset({Rule.N1}),
            rulebook=published(),
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
        ),
        PublishedFault(
            number="R5",
            title="a joining worker that does not know F makes state of its own",
            case=JOIN_WITH_ROWS,
            kind=NodeKind.SPLIT,
            rules=frozenset({Rule.N1}),
            rulebook=published(joiner_knows_old_map=False),
        ),
        PublishedFault(
            number="R7",
            title="a Done that comes before its receiver's own Interrogate is lost",
            case=QUIET,
            kind=NodeKind.STUCK,
            rulebook=published(),
        ),
        PublishedFault(
            number="R8",
            title="a leaver goes while others still send to it",
            case=DOWN,
            kind=NodeKind.DEAD,
            rulebook=published(),
        ),
        PublishedFault(
            number="R10",
            title="an epoch ends over rows that are held",
            case=EPOCHS,
            kind=NodeKind.LATE,
            rules=frozenset(Rule),
            rulebook=published(),
        ),
        PublishedFault(
            number="R11",
            title="barriers cut through rows on their detour, though the snapshot waits until all have finished",
            case=SNAPSHOT,
            kind=NodeKind.CUT,
            rules=frozenset(Rule),
            rulebook=published(),
        ),
    ),
    "redistribute": (
        PublishedFault(
            number="P1",
            title="a key first seen between SHUTDOWN and the sets: the old owner makes state of it, then X goes by F'",
            case=ONE_ORIGIN,
            kind=NodeKind.SPLIT,
            rules=BY_NEW_MAP,
            rulebook=redistribute_as_published(),
            also=_old_owner_has_state,
        ),
        PublishedFault(
            number="P1, empty sets",
            title="the old owner has no key, so says empty sets and is through: a row on its way is stranded there",
            case=BOUNCED,
            kind=NodeKind.MISPLACED,
            rulebook=redistribute_as_published(),
        ),
        PublishedFault(
            number="P2",
            title="the old owner records what passes after its sets, but another X knows nothing of that key",
            case=TWO_ORIGINS,
            kind=NodeKind.SPLIT,
            rules=BY_NEW_MAP,
            rulebook=redistribute_rulebook(replace(ALL_ON, redistribute_new_keys_wait=False)),
        ),
        PublishedFault(
            number="P3",
            title="REDISTRIBUTE goes to every X, so the state comes once from each: the next copy wipes out the first",
            case=QUIET,
            kind=NodeKind.SPLIT,
            rulebook=redistribute_as_published(),
        ),
        PublishedFault(
            number="P4",
            title="X goes by F' for a key in no set as soon as some sets have come, though not those of its old owner",
            case=TWO_OWNERS,
            kind=NodeKind.SPLIT,
            rules=BY_NEW_MAP,
            rulebook=redistribute_as_published(),
            also=_others_sets_are_missing,
        ),
        PublishedFault(
            number="P5",
            title="of several operators only the first makes the sets: keys of the second go by F' at once",
            case=SECOND_OPERATOR,
            kind=NodeKind.SPLIT,
            rules=BY_NEW_MAP,
            rulebook=redistribute_as_published(),
        ),
    ),
}
"""By protocol."""


def on_the_graph(fault: PublishedFault) -> PublishedFault:
    """The fault on the document's own graph, whose first region feeds the one in which it shows."""
    return replace(fault, case=graph_of(DOWN_ONE if fault.case is DOWN else fault.case))


def search_published(protocol: str) -> list[dict[str, Any]]:
    """Each fault of the rules as written, found anew, with a shortest trace. For JSON.

    Keys: fault, title, found, kind, steps, trace (a line per step, and the finding).
    """
    join = [_join_entry()] if protocol == "icadd" else []
    return [*(fault.entry() for fault in FAULTS[protocol]), *join]
