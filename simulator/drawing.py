"""The state in which a simulated cluster begins: its views, their kinds, and the owner of each vnode."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from random import Random

from simulator.tables import BAD_ROWS
from upriver.errors import DeclarationError
from upriver.ids import MapVersion, WorkerId
from upriver.plan.flows import flows_of
from upriver.plan.plan import DataflowPlan
from upriver.plan.provenance import why_untraced
from upriver.vnodes import VnodeMap

VNODES = (1, 4, 8, 16, 64, 256)
VNODES_CHOICES = 4  # of the numbers of vnodes that are enough, the lowest
BUDGET_SHARE = 0.7  # of the clusters whose views are all partial
BUDGETS = (1, 30_000, 100_000)
VIEWS_MAX = 4  # each is a flow, with epochs of its own
EXCHANGED_SHARE = 0.3  # of the clusters that may have views of several regions


def drawn_plans(rng: Random, plans: tuple[DataflowPlan, ...]) -> tuple[DataflowPlan, ...]:
    """Some of the views; in most clusters only such as exchange nothing, whose epochs flow."""
    flowing = tuple(plan for plan in plans if not plan.depth)
    pool = flowing if flowing and rng.random() >= EXCHANGED_SHARE else plans
    chosen = rng.sample(pool, rng.randint(1, min(VIEWS_MAX, len(pool))))
    whole = {plan.name for flow in flows_of(plans) if any(plan in chosen for plan in flow) for plan in flow}
    return tuple(plan for plan in plans if plan.name in whole)


def apart_of(rng: Random) -> Random:
    """Lots of their own: what is drawn of them changes nothing else."""
    apart = Random()
    apart.setstate(rng.getstate())
    return apart


def drawn_logged(rng: Random, plans: tuple[DataflowPlan, ...], share: float) -> tuple[DataflowPlan, ...]:
    """The changes of some of the full views are logged. Draws nothing if the share is 0."""
    if not share:
        return plans
    return tuple(
        replace(plan, logs_changes=True) if plan.full_because is not None and rng.random() < share else plan
        for plan in plans
    )


def drawn_partial(rng: Random, plans: tuple[DataflowPlan, ...], share: float) -> tuple[DataflowPlan, ...]:
    """Some of the views that can be are partial."""
    return tuple(
        replace(plan, full_because=None)
        if why_untraced(plan) is None and plan.name not in BAD_ROWS and rng.random() < share
        else plan
        for plan in plans
    )


def drawn_budget(rng: Random, plans: tuple[DataflowPlan, ...]) -> int | None:
    """Bytes of state that each worker may have, if all views can be evicted from: too few for any key, or for most."""
    apart = Random(apart_of(rng).random())
    if any(plan.full_because is not None for plan in plans) or apart.random() >= BUDGET_SHARE:
        return None
    return apart.choice(BUDGETS)


def drawn_views(rng: Random, plans: tuple[DataflowPlan, ...]) -> tuple[DataflowPlan, ...]:
    """Those that are there at the start: perhaps none, but for those that share stateful maps."""
    return tuple(plan for plan in plans if rng.random() < 0.5 or plan.feeds or plan.fed_by)


def may_change(
    plan: DataflowPlan, plans: Sequence[DataflowPlan], kept: Collection[str], later: Collection[str]
) -> bool:
    """Whether a user may drop a view, or declare it. Nothing that others read is dropped; and what is declared later
    shares no map. kept: the names of those of ``plans`` that are declared. later: of those that can be planned by
    themselves."""
    if plan.name in kept:
        return not any(plan.name in other.fed_by for other in plans if other.name in kept)
    return plan.name in later or not (plan.feeds or plan.fed_by)


def drawn_map(rng: Random, workers: int) -> VnodeMap:
    """Ranges of vnodes as at the start of an app, or any vnodes as after rescales.

    Raises DeclarationError for no workers, and for more than there can be vnodes.
    """
    if not 1 <= workers <= VNODES[-1]:
        raise DeclarationError(f"a simulated cluster has 1 to {VNODES[-1]} workers, not {workers}")
    vnodes = rng.choice([vnodes for vnodes in VNODES if vnodes >= workers][:VNODES_CHOICES])
    everyone = [WorkerId(worker) for worker in range(workers)]
    if rng.random() < 0.5:
        return VnodeMap.initial(vnodes, everyone)
    owners = everyone + rng.choices(everyone, k=vnodes - workers)
    rng.shuffle(owners)
    return VnodeMap(MapVersion(0), tuple(owners))
