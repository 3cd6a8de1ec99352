"""The races of document 001 as written, each with a small world that shows it by a shortest trace.

The numbers are those of ``docs/internals/redistribute.md``.
"""

from dataclasses import replace
from typing import Any

from simulator.icadd_cases import BOUNCED, QUIET, REGION
from simulator.icadd_faults import PublishedFault, found
from simulator.icadd_node import NodeKind
from simulator.icadd_world import IcaddWorld
from simulator.redistribute_cases import ONE_ORIGIN, SECOND_OPERATOR, TWO_ORIGINS, TWO_OWNERS
from simulator.redistribute_rulebook import redistribute_as_published, redistribute_rulebook
from upriver.ids import WorkerId
from upriver.migration.events import Rule
from upriver.migration.redistribute_phases import Stage, Started
from upriver.migration.rules import ALL_ON

BY_NEW_MAP = frozenset({Rule.C3_2, Rule.N1})


def _always(world: IcaddWorld) -> bool:
    return True


def _old_owner_has_state(world: IcaddWorld) -> bool:
    return bool(world.parts[WorkerId(0), REGION].logs)


def _others_sets_are_missing(world: IcaddWorld) -> bool:
    """The joining worker 2 has heard the sets of 0, and none of 1."""
    phase = world.parts[WorkerId(2), REGION].machine.phase
    return isinstance(phase, Started) and phase.migration.views[WorkerId(1)].stage is Stage.ANNOUNCED


REDISTRIBUTE_FAULTS = (
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
        also=_always,
    ),
    PublishedFault(
        number="P2",
        title="the old owner records what passes after its sets, but another X knows nothing of that key",
        case=TWO_ORIGINS,
        kind=NodeKind.SPLIT,
        rules=BY_NEW_MAP,
        rulebook=redistribute_rulebook(replace(ALL_ON, redistribute_new_keys_wait=False)),
        also=_always,
    ),
    PublishedFault(
        number="P3",
        title="REDISTRIBUTE goes to every X, so the state comes once from each: the next copy wipes out the first",
        case=QUIET,
        kind=NodeKind.SPLIT,
        rulebook=redistribute_as_published(),
        also=_always,
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
        also=_always,
    ),
)


def search_published_redistribute() -> list[dict[str, Any]]:
    """Each race of the rules as written, found anew, with a shortest trace: as ``icadd_faults.search_published``."""
    return [found(fault) for fault in REDISTRIBUTE_FAULTS]
