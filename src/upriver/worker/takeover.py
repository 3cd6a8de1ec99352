"""Takeover: all workers go on as another generation and keep their state, while some slices change hands; rules
replication.put_back and replication.caught_up.

``docs/internals/standbys.md``. A learner takes over what it has learned this way, between two epochs. When a worker is
lost, the other workers put back changes of the unfinished epoch, and take over the lost worker's slices that they have
followed.
"""

from collections import defaultdict
from dataclasses import replace

from upriver.errors import ProtocolError, WrongOwner
from upriver.ids import VnodeId
from upriver.protocol.messages import CaughtUp, Resume, StartedAnew, TookOver
from upriver.vnodes import VnodeMap
from upriver.worker.lookups import refuse_all
from upriver.worker.replication import keep_feeding
from upriver.worker.serving import Serving, started


def resumed(old: Serving, event: Resume) -> Serving:
    """The worker's state after the change; its ``actions`` are what the worker must do."""
    old.actions = []
    refuse_all(old, WrongOwner("keys change their workers; ask again"))
    before = {name: _map_of(old, name) for name in old.shares}
    assignment = replace(
        old.assignment,
        maps=event.maps,
        reads=event.reads,
        start_at=event.at,
        serve_from=event.serve_from,
        generation=event.generation,
        failed=old.failed,
    )
    new = started(assignment, old.build_region, old.rules, old.memory_budget, old.crowd_keys, old.answer_rows_max)
    new.born, new.actions, new.evictions = old.born, old.actions, old.evictions
    new.fills_rest = old.fills_rest
    new.checkpoint, new.copying, new.is_sealed = old.checkpoint, old.copying, old.is_sealed
    new.feeds, new.shadows, new.hungry = old.feeds, old.shadows, old.hungry
    if old.opened <= event.at:
        new.refilled_since = old.refilled_since
    _keep_state(old, new)
    new.say(StartedAnew(generation=event.generation))
    _change_hands(new, before)
    _stop_what_is_over(new, before)
    for number, shadow in new.shadows.items():
        shadow.go_back_to(event.at)
        if shadow.since is not None:
            new.say(CaughtUp(feed=number, epoch=shadow.through))
    return new


def _map_of(phase: Serving, region: str) -> VnodeMap:
    vnode_map = phase.map_of(region)
    if vnode_map is None:
        raise ProtocolError(f"all resume, and keys of region {region!r} are moving")
    return vnode_map


def _keep_state(old: Serving, new: Serving) -> None:
    """Keep full regions as of the end of the last epoch (replication.put_back). Keep partial regions as they are; if
    they may have rows of an unfinished epoch, they begin empty."""
    for name, share in new.shares.items():
        before = old.shares[name]
        if before.partial is None and new.rules.replication_put_back:
            before.put_back()
        if before.partial is None or new.refilled_since == old.refilled_since:
            share.succeed(before)


def _change_hands(phase: Serving, before: dict[str, VnodeMap]) -> None:
    """Give up slices that another worker owns now, and take over gained slices that this worker has followed."""
    gained: defaultdict[str, list[VnodeId]] = defaultdict(list)
    owners: dict[VnodeId, int] = {}
    for name, share in phase.shares.items():
        moved = before[name].diff(phase.assignment.maps[name])
        share.give_up([vnode for vnode, (was, _) in moved.items() if was == phase.me])
        if share.partial is None:
            gained[name] = [vnode for vnode, (_, now) in moved.items() if now == phase.me]
            owners |= {vnode: was for vnode, (was, _) in moved.items()}
    _take_over({vnode for vnodes in gained.values() for vnode in vnodes}, owners, phase)


def _take_over(wanted: set[VnodeId], owners: dict[VnodeId, int], phase: Serving) -> None:
    for shadow in phase.shadows.values():
        mine = sorted(vnode for vnode in shadow.vnodes & wanted if shadow.owner == owners[vnode])
        if not mine or not (shadow.is_as_of(phase.applied) or not phase.rules.replication_caught_up):
            continue
        shadow.go_back_to(phase.applied)
        shadow.take_in(phase.applied)
        handed = shadow.hand_over(mine, phase.vnodes)
        for name, chunk in handed.items():
            phase.shares[name].take_over(chunk)
        keys = sum(len(chunk.keys) for chunk in handed.values())
        phase.say(TookOver(vnodes=len(mine), keys=keys, bytes=sum(chunk.nbytes for chunk in handed.values())))
        wanted.difference_update(mine)
    if wanted:
        raise ProtocolError(f"worker {phase.me} is to take slices {sorted(wanted)} over, and has not followed them")


def _stop_what_is_over(phase: Serving, before: dict[str, VnodeMap]) -> None:
    """End the feeds of slices that have changed hands: followers begin another feed with the new owner."""
    moved = {vnode for name, vnode_map in before.items() for vnode in vnode_map.diff(phase.assignment.maps[name])}
    for number, feed in list(phase.feeds.items()):
        keep_feeding(phase, number, feed.vnodes - moved)
    for number, shadow in list(phase.shadows.items()):
        shadow.forget(shadow.vnodes & moved, phase.vnodes)
        if not shadow.vnodes:
            del phase.shadows[number]
