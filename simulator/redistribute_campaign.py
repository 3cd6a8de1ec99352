"""Random runs of ``redistribute``: the worlds and schedules of ICADD's, with regions of two operators."""

from collections.abc import Callable
from typing import Any

from simulator.icadd_campaign import icadd_campaign
from simulator.icadd_scenario import Rulebook
from simulator.redistribute_rulebook import redistribute_as_published, redistribute_rulebook

REDISTRIBUTE_RULEBOOKS: dict[str, Callable[[], Rulebook]] = {
    "fixed": redistribute_rulebook,
    "published": redistribute_as_published,
}
"""By the name that a user gives."""


def redistribute_campaign(
    first_seed: int, runs: int, rules: str = "fixed", workers: int | None = None, *, rulebook: Rulebook | None = None
) -> dict[str, Any]:
    """Run the seeds from ``first_seed`` on. Parameters and result are those of ``icadd_campaign``."""
    book = rulebook or REDISTRIBUTE_RULEBOOKS[rules]()
    result = icadd_campaign(first_seed, runs, rules=rules, workers=workers, rulebook=book)
    return {**result, "protocol": "redistribute"}
