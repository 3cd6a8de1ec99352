"""A worker's partial regions: answers of upqueries, and evictions; ``docs/internals/partial.md``."""

from collections.abc import Sequence

import numpy as np

from upriver.errors import IllegalEvent
from upriver.partial.cone import Cone
from upriver.partial.partial_region import PartialRegion, UnansweredKeys
from upriver.protocol.messages import Counted, Evict, Evicted, KeysUnfilled
from upriver.protocol.worker_events import KeysRead, KeysUnread, RowsFetched, RowsUnfetched, TimeToEvict, TimeToTakeIn
from upriver.state.failure import ViewFailure
from upriver.worker.epochs import ask_again, finish_epoch
from upriver.worker.lookups import begin_upquery, refuse_those_of
from upriver.worker.memory import fetch, is_over, work_on
from upriver.worker.serving import Evicting, Serving


def keys_read(phase: Serving, event: KeysRead | KeysUnread) -> None:
    """An upquery has its rows, or has failed. The next one begins, and waiting lookups are answered."""
    if event.generation != phase.refilled_since or phase.shares[event.region].failure is not None:
        return  # all have begun anew since, or the view has failed
    share = phase.shares[event.region]
    partial = share.partial
    left_open: Sequence[UnansweredKeys] | None = ()
    if not isinstance(partial, PartialRegion):
        raise IllegalEvent(f"an answer for region {event.region!r}, which has asked nothing")
    with share.contained("filling keys"):
        if isinstance(event, KeysRead):
            left_open = partial.answer(event.number, event.rows, event.through, event.rows_max)
        else:
            left_open = partial.refuse(event.number, event.error)
    _go_on(phase, event.region, left_open)


def unfilled(phase: Serving) -> int:
    """About how many rows of upqueries' answers are not taken in yet."""
    return sum(partial.unfilled for _, partial in _filling(phase))


def time_to_take_in(phase: Serving, event: TimeToTakeIn) -> None:
    """Take in some more rows of an upquery's answer."""
    filling = _filling(phase)
    if not filling:
        return
    region, partial = filling[0]
    left_open: Sequence[UnansweredKeys] | None = ()
    with phase.shares[region].contained("filling keys"):
        left_open = partial.fill(event.rows_max)
    _go_on(phase, region, left_open)


def _filling(phase: Serving) -> list[tuple[str, PartialRegion]]:
    shares = phase.shares.items()
    regions = [(name, share.partial) for name, share in shares if share.failure is None]
    return [(name, partial) for name, partial in regions if isinstance(partial, PartialRegion) and partial.unfilled]


def _go_on(phase: Serving, region: str, left_open: Sequence[UnansweredKeys] | None) -> None:
    """Rows of an answer were taken in, or cannot be. The next upquery begins if it may. left_open: the keys that could
    not be filled; ``None`` if more rows are left."""
    share = phase.shares[region]
    partial = share.partial
    if left_open is None:
        begin_upquery(phase, region)
        return
    _refuse_those_left_open(phase, region, left_open)
    phase.say(Counted(stats=phase.stats_after(region)))
    if share.failure is not None or not isinstance(partial, PartialRegion):
        return
    phase.fills_rest |= partial.wanted >= phase.crowd_keys
    begin_upquery(phase, region)
    ask_again(phase)


def _refuse_those_left_open(phase: Serving, view: str, left_open: Sequence[UnansweredKeys]) -> None:
    """Refuse lookups of keys that cannot be filled, and report the last failure to the coordinator."""
    for unanswered in left_open:
        error = type(unanswered.error)(f"view {view!r}: {unanswered.error}")
        refuse_those_of(phase, view, unanswered.keys, error)
    if left_open:
        failure = ViewFailure.of(left_open[-1].error, f"view {view!r}")
        phase.say(KeysUnfilled(view=view, failure=failure))


def rows_fetched(phase: Serving, event: RowsFetched | RowsUnfetched) -> None:
    """A cone goes on with its work, and then with the next."""
    if event.generation != phase.refilled_since or event.view in phase.failed:
        return  # all have begun anew since, or the view has failed
    cone = phase.cones.get(event.view)
    if cone is None:
        raise IllegalEvent(f"rows for view {event.view!r}, which has asked for none")
    share, reads = phase.shares[event.view], None
    with share.contained("reading the lake"):
        reads = cone.proceed(event.rows) if isinstance(event, RowsFetched) else cone.proceed_without(event.error)
    if share.failure is not None:
        return
    if reads is not None:
        fetch(phase, event.view, reads)
        return
    _refuse_those_left_open(phase, event.view, cone.unanswered())
    phase.say(Counted(stats=phase.stats_after(event.view)))
    work_on(phase, event.view, cone)
    finish_epoch(phase)  # waiting lookups get the epoch that the cone has come to
    ask_again(phase)


def evict(phase: Serving, event: Evict) -> None:
    """A request to evict keys: those that are present now, some at a time, when there is time."""
    share = phase.shares.get(event.view)
    wanted = np.empty(0, np.uint64)
    if share is not None and share.partial is not None:  # else the view was dropped or replaced
        everything = event.keys is None
        wanted = share.partial.keys_of(0, 1) if everything else np.unique(np.array(event.keys, np.uint64))
    phase.evictions.append(Evicting(event.eviction, event.view, wanted))
    _end_evictions(phase)


def time_to_evict(phase: Serving, event: TimeToEvict) -> None:
    """Evict some keys: first what evicted keys have left behind, then requested keys, then keys beyond the memory
    budget."""
    leftovers = next(((view, cone) for view, cone in phase.cones.items() if cone.has_leftovers), None)
    if leftovers is not None:
        _let_go(phase, *leftovers, event.keys_max)
    elif phase.evictions:
        _evict_wanted(phase, phase.evictions[0], event.keys_max)
    else:
        _evict_oldest(phase, event.keys_max)


def _let_go(phase: Serving, view: str, cone: Cone, keys_max: int) -> None:
    phase.evicted = cone.let_go(keys_max)
    if not cone.has_leftovers:
        stats = phase.stats_after(view)
        phase.is_over_budget = phase.is_over_budget and is_over(phase)
        phase.say(Counted(stats=stats))
        _end_evictions(phase)


def _evict_wanted(phase: Serving, wish: Evicting, keys_max: int) -> None:
    """Evict the next requested keys. Waiting lookups then request their keys again."""
    share = phase.shares.get(wish.view)
    keys, wish.left = wish.left[:keys_max], wish.left[keys_max:]
    phase.evicted = len(keys)
    if share is not None and share.partial is not None:
        share.partial.evict(keys)
        ask_again(phase)
    _end_evictions(phase)


def _end_evictions(phase: Serving) -> None:
    while phase.evictions and not len(phase.evictions[0].left) and not phase.has_leftovers:
        phase.say(Evicted(eviction=phase.evictions.popleft().number, stats=phase.stats()))


def _evict_oldest(phase: Serving, keys_max: int) -> None:
    """The largest partial region that can evict does so. If none can, all keys must stay."""
    stats, phase.evicted = phase.last_stats, 0
    partial = {name: share.partial for name, share in phase.shares.items() if share.partial is not None}
    for name in sorted(partial, key=lambda region: stats[region]["live_bytes"], reverse=True):
        waiting = [w.question.hash64 for w in phase.waiting if w.view == name]
        phase.evicted = partial[name].evict_oldest(keys_max, waiting)
        if phase.evicted:
            stats = phase.stats_after(name)
            break
    phase.is_over_budget = phase.evicted > 0 and is_over(phase)
    if not phase.is_over_budget:
        phase.say(Counted(stats=stats))
