"""The tables of rules in docs/internals and the switches in the code tell of the same rules."""

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

from upriver.migration.rules import MendedRules, RedistributeRules
from upriver.partial.rules import UpqueryRules
from upriver.protocol.rules import Rules

DOCS = Path(__file__).parent.parent / "docs" / "internals"
WITHOUT_SWITCH = {
    "checkpoints.manifest_removed_first",
    "coordinator.bounded_epochs_ahead",
    "replication.epoch_waits_for_followers",
    "replication.published_epochs_first",
    "worker.bounded_loads_out",
}
"""Rules of these areas that are bounds, or are kept by more code than one condition."""


def switches() -> set[str]:
    """The rules that have one, by name."""
    sets = (Rules, UpqueryRules, MendedRules, RedistributeRules)
    names = [field.name for rules in sets for field in fields(rules) if field.name != "upqueries"]
    return {name.replace("_", ".", 1) for name in names}


def documented() -> Counter[str]:
    """The rules that stand first in a row of a table, by name."""
    rows = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    return Counter(re.findall(r"^\| `(\w+\.\w+)` \|", rows, flags=re.MULTILINE))


def test_every_switch_is_a_rule_of_the_documents() -> None:
    assert sorted(switches() - documented().keys()) == []


def test_every_rule_of_the_documents_has_its_switch_or_is_known_to_have_none() -> None:
    areas = {name.partition(".")[0] for name in switches()}
    told = {name for name in documented() if name.partition(".")[0] in areas}
    assert sorted(told - switches()) == sorted(WITHOUT_SWITCH)
