"""The kinds of clusters that seeds play out, by name: their views, their event weights, and how often what else goes
on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from simulator.event_weights import FAULTS, PLACES_MAX
from simulator.shared_analyser import SharedAnalyser
from simulator.tables import (
    ALL_VIEWS,
    CLOCKED,
    CONSTANT,
    EXCHANGED,
    NO_RETENTION,
    OPERATORS,
    OPERATORS_IN_DUCKDB,
    ORDERED,
    PARTED,
    RETAINS,
    TABLES,
    TRACED,
    UNSURE,
    VIEWS,
    ViewSpec,
)
from upriver.plan.plan import DataflowPlan
from upriver.plan.retention import Retain
from upriver.protocol.strategies import Strategy
from upriver.sql.views import declare_view


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterScenario:
    """A kind of cluster. views: each seed draws some of them. weights: fields of ``EventWeights``; what it does not
    name is calm, or everything is drawn if it is ``None``. faults: of ``FAULTS``, the kinds that happen; drawn,
    unless they are given. steps: how many things happen before all comes to rest. workers: at the start.

    Of the clusters: standbys_share, those whose workers follow each other; failing_share, those where some views can
    fail; retained_share, those where rows leave their tables, in one of the ``ways`` of ``RETAINS``. Of the views:
    partial_share, of those that can be partial, logged_share, of the full ones, those whose changes are logged, and
    deadly_share, of those that can fail, those that kill their process instead.
    """

    views: tuple[ViewSpec, ...] = ALL_VIEWS
    weights: Mapping[str, Any] | None = None
    faults: Collection[str] | None = None
    partial_share: float = 0.5
    standbys_share: float = 0.4
    failing_share: float = 0.25
    deadly_share: float = 0.0
    retained_share: float = 0.3
    ways: tuple[int, ...] = tuple(range(len(RETAINS)))
    logged_share: float = 0.0
    steps: int = 200
    workers: int = 3


@cache
def compiled_views(views: tuple[ViewSpec, ...] = ALL_VIEWS, way: int | None = None) -> tuple[DataflowPlan, ...]:
    """The plans of the views that a simulated cluster can have. way: of ``RETAINS``, the one in which rows leave. Rows
    that may leave have no order, and views of them neither."""
    retains = retained(way)
    tables = {table.name: replace(table, retain=retains.get(table.name)) for table in TABLES}
    analyser = SharedAnalyser(tables)
    possible = [view for view in views if way is None or view.name not in ORDERED]
    declared = [(view, declare_view(view.name, view.sql, view.key, tables, {}, analyser)) for view in possible]
    return tuple(replace(plan, sql=view.duck) if view.duck is not None else plan for view, plan in declared)


def retained(way: int | None) -> Mapping[str, Retain]:
    """By table, how rows leave."""
    return NO_RETENTION if way is None else RETAINS[way]


def flowing(views: tuple[ViewSpec, ...] = ALL_VIEWS) -> tuple[ViewSpec, ...]:
    """Those of one region each."""
    depths = {plan.name: plan.depth for plan in compiled_views(views)}
    return tuple(view for view in views if not depths[view.name])


# Event weights --------------------------------------------------------------------------------------------------------

MadeFor = Mapping[str, Any]
"""Fields of ``EventWeights`` that are not left to chance."""

ALL_FAST = (6.0,) * PLACES_MAX
UNEVEN = (0.5, 6.0) * (PLACES_MAX // 2)

FLOOD: MadeFor = {"publish": 2.0, "sizes": (5, 20), "hear": 6.0, "carry": 4.0, "dial": 4.0}
SWIFT: MadeFor = {"publish": 0.3, "sizes": (0, 1), "pace": ALL_FAST, "hear": 6.0, "carry": 4.0, "dial": 0.5}
STEADY: MadeFor = {**FLOOD, "publish": 1.0, "sizes": (1, 3), "pace": ALL_FAST}
BUSY: MadeFor = {
    "publish": 1.0,
    "sizes": (1, 3, 8),
    "lookup": 1.0,
    "pace": (3.0,) * PLACES_MAX,
    "hear": 6.0,
    "carry": 4.0,
    "dial": 4.0,
    "notice": 2.0,
    "move": 2.0,
    "keys_max": 3,
    "store": 6.0,
    "strategies": tuple(Strategy),
}
DENSE: MadeFor = {**BUSY, "crash": 0.03, "start": 5.0, "rescale": 0.5, "checkpoint": 0.5, "spoil": 0.1}
"""Processes die, keys move, checkpoints are taken, and the lake does not take all of them."""
CALM: MadeFor = {**DENSE, "crash": 0.0, "spoil": 0.0}
HARSH: MadeFor = {**DENSE, "replan": 0.1, "driver": 0.01}
"""Views come and go, too, and drivers die."""
SEGMENTED: MadeFor = {"compact": 6.0, "sizes": (0, 1), "lookup": 0.3, "pace": ALL_FAST, "read": 3.0, "rescale": 0.0}
"""Epochs become segments."""
RESTORING: MadeFor = {**DENSE, "spoil": 0.3, "crash": 0.1}
"""Many die, and many checkpoints are damaged."""
_RARE: MadeFor = {"publish": 0.2, "lookup": 0.3, "rescale": 0.1}
SPARED: MadeFor = {**RESTORING, **_RARE, "checkpoint": 1.5, "copy": 3.0, "outgrown": 1}
"""So little else happens that some checkpoints are there when a worker dies."""
LOGGING: MadeFor = {**DENSE, "rescale": 0.3, "copy": 3.0, "driver": 0.02}
LOGGING_CALM: MadeFor = {**LOGGING, "crash": 0.0, "spoil": 0.0, "driver": 0.0}
LOGGING_SEGMENTED: MadeFor = {**LOGGING, **SEGMENTED, "checkpoint": 0.0, "crash": 0.1}
FOLLOWING: MadeFor = {
    **BUSY,
    "crash": 0.02,
    "start": 1.0,
    "rescale": 0.3,
    "strategies": (*Strategy, Strategy.LEARNER, Strategy.LEARNER),
    "checkpoint": 0.2,
    "feed": 4.0,
    "lease": 2.0,
    "standbys": 1,
    "warmups": 8,
    "overdue": 0.02,
}
LEARN: MadeFor = {**FOLLOWING, "crash": 0.0, "standbys": 0, "strategies": (Strategy.LEARNER,), "rescale": 1.0}
TAKE_OVER: MadeFor = {**FOLLOWING, "crash": 0.05, "rescale": 0.0, "checkpoint": 0.0}
SLOW_RECORDS: MadeFor = {**BUSY, "start": 5.0, "rescale": 1.0, "abort": 0.3, "driver": 0.1, "record": 0.2}
"""Drivers die, and the lake takes control records slowly."""
OPERATORS_FAIL: MadeFor = {
    **BUSY,
    "pace": UNEVEN,
    "rescale": 1.0,
    "keys_max": 1,
    "crash": 0.01,
    "start": 5.0,
    "echo": 1.0,
    "nonsense": 0.01,
}

# Scenarios ------------------------------------------------------------------------------------------------------------

DRAWN = ClusterScenario()
"""Everything that can be drawn is."""
PLAIN = ClusterScenario(partial_share=0.0, standbys_share=0.0, failing_share=0.0, retained_share=0.0)
"""Full views whose rows stay, and nothing that fails."""
FLOWING, WITH_EXCHANGES = replace(PLAIN, views=flowing(), steps=300), replace(PLAIN, views=EXCHANGED, steps=300)
FAIR = replace(
    FLOWING,
    views=ALL_VIEWS,
    weights=MappingProxyType({"publish": 0.05, "lookup": 0.2, "scan": 0.02, "move": 0.5, "sizes": (1, 8, 20)}),
    steps=150,
)
"""Nothing fails, and no rescale is requested."""
PARTIAL = replace(PLAIN, partial_share=1.0, failing_share=0.25, standbys_share=0.4)


def _with(scenario: ClusterScenario, weights: MadeFor, **changed: Any) -> ClusterScenario:
    return replace(scenario, weights=MappingProxyType({**weights, **changed}))


def _both(name: str, weights: MadeFor, /, **shares: Any) -> dict[str, ClusterScenario]:
    """The same for views of one region each and for views of several."""
    return {
        name: replace(_with(FLOWING, weights), **shares),
        f"{name} exchanges": replace(_with(WITH_EXCHANGES, weights), **shares),
    }


_EXCHANGES = replace(WITH_EXCHANGES, steps=200)
_KEYED = replace(PLAIN, views=VIEWS)
_CHECKPOINTED, _FOLLOWED = replace(FLOWING, partial_share=0.2), replace(FLOWING, partial_share=0.1)
_LOGGED = replace(_CHECKPOINTED, logged_share=0.7)

SCENARIOS: Mapping[str, ClusterScenario] = MappingProxyType(
    {
        "drawn": DRAWN,
        **{f"drawn {workers} workers": replace(DRAWN, workers=workers) for workers in (1, 2, 5)},
        "faults": replace(DRAWN, faults=tuple(FAULTS), steps=250),
        **{f"faults {kind}": replace(DRAWN, faults=(kind,), steps=250) for kind in ("cut", "disk", "driver")},
        "plain": PLAIN,
        "constant rows": _with(
            replace(WITH_EXCHANGES, views=CONSTANT, steps=400),
            {**BUSY, **SEGMENTED},
            crash=0.03,
            start=5.0,
            rescale=0.2,
        ),
        "clock": replace(DRAWN, views=CLOCKED, partial_share=0.0, retained_share=0.0),
        "clock partial": replace(PARTIAL, views=CLOCKED),
        "traced": replace(PARTIAL, views=TRACED),
        "traced without faults": replace(PARTIAL, views=TRACED, faults=()),
        "partial": replace(PARTIAL, views=VIEWS),
        "partial without faults": replace(PARTIAL, views=VIEWS, faults=()),
        "clock partial without faults": replace(PARTIAL, views=CLOCKED, faults=()),
        **{
            f"retention {way}{name}": replace(DRAWN, retained_share=1.0, ways=(way,), partial_share=share)
            for way in range(len(RETAINS))
            for name, share in (("", 0.0), (" partial", 1.0))
        },
        # With exchanges and few views, where each event weight is made for some rules.
        "exchanges uneven": _with(_EXCHANGES, FLOOD, lookup=3.0, scan=1.0, pace=UNEVEN),
        "exchanges leaving": _with(_EXCHANGES, FLOOD, read=0.1, rescale=3.0, move=2.0, strategies=(Strategy.ICADD,)),
        "exchanges torn": _with(_EXCHANGES, FLOOD, crash=0.3, notice=2.0, start=5.0),
        "exchanges swift": _with(_EXCHANGES, SWIFT, scan=0.3, crash=0.03, notice=2.0, start=5.0),
        "exchanges moving": _with(_EXCHANGES, FLOOD, rescale=3.0, move=2.0, keys_max=1, pace=UNEVEN),
        "exchanges flood": _with(_EXCHANGES, FLOOD),
        "exchanges echo": _with(_EXCHANGES, STEADY, echo=2.0),
        "exchanges nonsense": _with(_EXCHANGES, STEADY, nonsense=0.1),
        "reads torn": _with(_KEYED, FLOOD, torn=0.2),
        "segments read": replace(
            _with(_KEYED, SWIFT, pace=(0.4,) * PLACES_MAX, read=9.0, compact=4.0, lookup=3.0), partial_share=1.0
        ),
        # Checkpoints
        **_both("restored", SPARED, partial_share=0.2),
        "checkpoints": _with(_CHECKPOINTED, DENSE),
        "checkpoints torn": _with(_CHECKPOINTED, DENSE, crash=0.1),
        "checkpoints calm": _with(_CHECKPOINTED, CALM),
        "checkpoints moving": _with(_CHECKPOINTED, CALM, rescale=1.0),
        "checkpoints slowly copied": _with(_CHECKPOINTED, CALM, rescale=0.0, copy=0.3),
        "checkpoints spoiled": _with(_CHECKPOINTED, CALM, rescale=0.0, spoil=0.3, copy=3.0),
        "checkpoints damaged": _with(_CHECKPOINTED, RESTORING),
        "checkpoints segmented": _with(_CHECKPOINTED, {**RESTORING, **SEGMENTED}, copy=6.0, driver=0.1, checkpoint=1.0),
        # The change log
        **_both("log", LOGGING, partial_share=0.2, logged_share=0.7),
        **_both("log replanned", {**LOGGING, "replan": 0.5, "store": 1.0}, partial_share=0.2, logged_share=0.7),
        **_both("log segmented", {**LOGGING_SEGMENTED, "checkpoint": 0.3}, partial_share=0.2, logged_share=0.7),
        **_both(
            "log segmented replanned",
            {**LOGGING_SEGMENTED, "replan": 0.5, "store": 1.0},
            partial_share=0.2,
            logged_share=0.7,
        ),
        "log calm": _with(_LOGGED, LOGGING_CALM),
        "log moving": _with(_LOGGED, LOGGING_CALM, rescale=1.0),
        "log torn": _with(_LOGGED, LOGGING, crash=0.1),
        "log spoiled": _with(_LOGGED, LOGGING, spoil=0.3),
        "log slowly committed": _with(_LOGGED, LOGGING, publish=3.0, hear=1.0, store=0.3),
        "log segmented spoiled": _with(_LOGGED, LOGGING_SEGMENTED, spoil=0.5, store=1.0),
        # Standbys
        **_both("standbys", FOLLOWING, partial_share=0.1),
        **_both("taken over", TAKE_OVER, partial_share=0.1),
        "taken over uneven": _with(
            _FOLLOWED, TAKE_OVER, sizes=(8, 20), pace=(6.0, 1.0) * (PLACES_MAX // 2), crash=0.03, feed=8.0
        ),
        "taken over slowly fed": _with(_FOLLOWED, TAKE_OVER, feed=0.2),
        "taken over one by one": _with(_FOLLOWED, TAKE_OVER, warmups=2, takeover=0.0, replan=0.0),
        "learners": _with(_FOLLOWED, LEARN),
        "learners cut off": _with(_FOLLOWED, LEARN, cut=0.1),
        # Links between two workers that stay broken for a while
        **_both("links broken", {**DENSE, "sever": 0.3, "mend": 0.15, "free_slots": 0.3}, partial_share=0.2),
        **_both(
            "links broken standbys", {**FOLLOWING, "sever": 0.3, "mend": 0.15, "free_slots": 0.3}, partial_share=0.1
        ),
        "links broken for good": _with(WITH_EXCHANGES, {**CALM, "sever": 0.1, "mend": 0.0, "free_slots": 1.0}),
        "links broken for good standbys": _with(
            WITH_EXCHANGES, {**FOLLOWING, "crash": 0.0, "sever": 0.03, "mend": 0.0, "free_slots": 1.0}
        ),
        # Users' functions that are waited for
        **_both("functions", {**HARSH, "call": 0.5}, partial_share=0.3),
        **_both("functions standbys", {**FOLLOWING, "call": 0.5, "cut": 0.02}, partial_share=0.3),
        # Control records
        "records": _with(_CHECKPOINTED, SLOW_RECORDS, record=1.0, spoil=0.1, crash=0.02, checkpoint=0.3),
        "records slow": _with(FLOWING, SLOW_RECORDS),
        # Views that fail
        **_both("failing", HARSH, partial_share=0.3, failing_share=1.0),
        **_both(
            "failing standbys",
            {**HARSH, "standbys": 1, "cut": 0.02, "replan": 0.0},
            partial_share=0.3,
            failing_share=1.0,
        ),
        **_both("deadly", HARSH, partial_share=0.3, failing_share=1.0, deadly_share=0.7),
        **_both(
            "deadly standbys",
            {**HARSH, "standbys": 1, "replan": 0.0},
            partial_share=0.1,
            failing_share=1.0,
            deadly_share=0.7,
        ),
        "operators": _with(
            replace(
                WITH_EXCHANGES,
                views=(
                    *(ViewSpec(name, sql, ("page",), OPERATORS_IN_DUCKDB.get(name)) for name, sql in OPERATORS.items()),
                    *(VIEWS[0], EXCHANGED[0]),
                ),
            ),
            OPERATORS_FAIL,
        ),
        "parted": replace(DRAWN, views=PARTED, partial_share=0.0, failing_share=0.0),
        "parted moving": _with(
            replace(_EXCHANGES, views=(*VIEWS[:2], *PARTED)),
            FLOOD,
            lookup=4.0,
            rescale=3.0,
            move=1.0,
            pace=UNEVEN,
            strategies=(Strategy.ICADD, Strategy.REDISTRIBUTE, Strategy.LAZY),
        ),
        "unsure joins": _with(replace(WITH_EXCHANGES, views=UNSURE), OPERATORS_FAIL),
    }
)
