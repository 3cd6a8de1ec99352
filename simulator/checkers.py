"""What must hold, one small function each: it returns what is wrong, in words, or ``None``.

A checker sees what an observer from outside sees, never the inside of a machine.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from itertools import pairwise
from typing import ParamSpec

from simulator.oracle import Row, Rows
from simulator.tables import Key
from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.errors import UnknownView, UpriverError, WrongOwner
from upriver.ids import Channel, Epoch, FeedId, FlowId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.protocol.coordinator_events import RescaleOutcome
from upriver.vnodes import VnodeMap

P = ParamSpec("P")


class Violated(Exception):
    """A checker found something wrong. ``checker``: its name."""

    def __init__(self, checker: str, problem: str) -> None:
        super().__init__(f"{checker}: {problem}")
        self.checker = checker
        self.problem = problem


def require(checker: Callable[P, str | None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Raise Violated if the checker finds anything wrong."""
    problem = checker(*args, **kwargs)
    if problem is not None:
        raise Violated(checker.__name__, problem)


# Machines


def machines_do_not_fail(error: Exception) -> Violated:
    """No error of a machine is right, so this is the violation itself."""
    return Violated(machines_do_not_fail.__name__, f"{type(error).__name__}: {error}")


def the_app_does_not_fail(kind: str, error: str) -> str:
    return f"{kind}: {error}"


# Epochs at a worker


def epochs_are_applied_in_order_and_once(applied: Epoch, after: Epoch, following: Epoch) -> str | None:
    """after: the epoch on which this one follows."""
    return None if applied == after < following else f"epoch {following} after {after} follows {applied}"


def no_row_is_lost_or_doubled(promised: Mapping[Channel, int], received: Mapping[Channel, int]) -> str | None:
    return None if received == promised else f"{dict(promised)} rows went in, {dict(received)} came out"


def workers_are_not_sent_too_far_ahead(applied: Epoch, opened: Epoch, ahead: int) -> str | None:
    """ahead: how many are open beyond the one that is applied."""
    return None if ahead <= EPOCHS_AHEAD_MAX else f"epoch {opened} is open while {applied} is applied"


def files_stay_for_their_readers(missing: Collection[str]) -> str | None:
    return f"{sorted(missing)} are gone while a read needs them" if missing else None


def a_broken_link_makes_nobody_begin_anew(told: Collection[Incarnation], link: str) -> str | None:
    """told: the processes that had begun, and that the coordinator has told to begin anew as it heard of a broken link
    between two that are there."""
    return f"#{', #'.join(map(str, sorted(told)))} begin anew because of the link between {link}" if told else None


# Views


def a_worker_holds_only_keys_of_its_vnodes(
    keys: Collection[Key], vnode_of: Mapping[Key, int], vnodes: Collection[int]
) -> str | None:
    foreign = [key for key in keys if vnode_of.get(key) not in vnodes]
    return f"it holds {foreign}" if foreign else None


def no_keys_move_while_epochs_flow(has_map: bool) -> str | None:
    return None if has_map else "keys move at the end of an epoch that was not opened in lock step"


def a_key_lives_in_one_place(keys_of: Mapping[str, Collection[int]]) -> str | None:
    """``keys_of``: hash64 by place, or by way from one place to another."""
    places = Counter(key for keys in keys_of.values() for key in keys)
    split = [key for key, count in places.items() if count > 1]
    where = [place for place, keys in keys_of.items() if split and split[0] in keys]
    return f"{split} are at several places, the first at {where}" if split else None


def no_key_is_lost(expected: Collection[int], kept: Collection[int], travelling: Collection[int]) -> str | None:
    """``travelling``: keys whose state is on its way, some of which may have none."""
    lost, more = set(expected) - set(kept) - set(travelling), set(kept) - set(expected)
    return f"{sorted(lost)} are nowhere, {sorted(more)} should not be" if lost or more else None


def a_keys_rows_are_in_order(rows: Rows, place: int) -> str | None:
    """``place``: of the column that must ascend."""
    for key, of_key in rows.items():
        if any(before[place] >= after[place] for before, after in pairwise(of_key)):
            return f"rows of {key}: {[row[place] for row in of_key]}"
    return None


def views_equal_the_oracle(expected: Rows, found: Rows) -> str | None:
    return None if found == expected else difference(expected, found)


def views_equal_sql(expected: Counter[Row], found: Rows) -> str | None:
    rows = Counter(row for of_key in found.values() for row in of_key)
    return None if rows == expected else f"SQL has also {dict(expected - rows)}, we have also {dict(rows - expected)}"


def just_bad_rows_are_set_aside(expected: Set[Row], found: Set[Row]) -> str | None:
    """Of one epoch, which has ended. ``expected``: the rows from which the view cannot be computed."""
    lost, more = sorted(map(repr, expected - found)), sorted(map(repr, found - expected))
    return f"{lost} were not set aside, {more} were for no reason" if lost or more else None


def views_fail_everywhere_or_nowhere(failed: bool, here: Collection[bool]) -> str | None:
    """``failed``: as the coordinator says; ``here``: at each worker."""
    return None if set(here) <= {failed} else f"failed={failed} at the coordinator, and at workers {list(here)}"


def views_fail_for_a_reason(failed: bool, must: bool, may: bool) -> str | None:
    return f"failed={failed}, and it must be {must}" if (failed and not may) or (must and not failed) else None


def difference(expected: Rows, found: Rows) -> str:
    """The first key of which two views differ."""
    keys = dict.fromkeys([*expected, *found])
    key = next(key for key in keys if expected.get(key) != found.get(key))
    return f"{key}: {found.get(key)} where {expected.get(key)} is right"


# Lookups


def everybody_is_answered_once(ticket: int, waiting: Collection[int]) -> str | None:
    return None if ticket in waiting else f"ticket {ticket} has its answer already"


def lookups_wait_for_their_epoch(answered: Epoch, at_least: Epoch) -> str | None:
    return None if answered >= at_least else f"answered as of epoch {answered}, and {at_least} was asked for"


def lookups_wait_for_the_replay(answered: Epoch, serve_from: Epoch) -> str | None:
    return None if answered >= serve_from else f"answered at epoch {answered}, and {serve_from} was the least"


def lookups_equal_the_oracle(
    key: Key, found: Sequence[Row], epochs: Collection[Epoch], answered: Epoch, published: Epoch
) -> str | None:
    """``epochs``: as of which the key has the rows found, from ``answered`` on."""
    return None if epochs else f"{key}: {found} is not right as of any epoch from {answered} to {published}"


def keys_are_as_of_one_epoch(found: Rows, expected: Rows, epoch: Epoch) -> str | None:
    """``epoch``: that the answer tells; ``expected``: as of its end."""
    return None if found == expected else f"{found}, and at the end of epoch {epoch} it is {expected}"


def lookups_never_go_back(key: Key, seen: Epoch, epochs: Collection[Epoch]) -> str | None:
    """``seen``: the latest epoch that another lookup of the key had shown before this one was asked."""
    return None if max(epochs) >= seen else f"{key}: as of epoch {max(epochs)}, and {seen} was seen already"


def lookups_give_only_what_was_asked_for(asked: Collection[Key], found: Rows) -> str | None:
    more = [key for key in found if key not in asked]
    return f"asked for {asked}, got {more} too" if more else None


def lookups_tell_a_map_no_older_than_before(told: MapVersion, version: MapVersion) -> str | None:
    return None if version >= told else f"of map {version}, and {told} was told already"


def lookups_for_others_are_refused_by_who_is_alone(owned: bool, alone: bool, is_waiting: bool) -> str | None:
    wrong = alone and is_waiting and not owned
    return "it has no channel to any peer, and does not refuse what is not its own" if wrong else None


def lookups_are_refused_for_a_reason(
    error: UpriverError, known: bool, serves: bool, owned: bool, dismissed: bool
) -> str | None:
    """``owned``: it keeps the keys, or can ask its peers. ``dismissed``: it loses all that it has at this moment."""
    reason: type[UpriverError] | None = None if serves and known and owned and not dismissed else WrongOwner
    reason = UnknownView if serves and not known and not dismissed else reason
    circumstances = f"serves={serves} known={known} owned={owned} dismissed={dismissed}"
    return None if reason is type(error) else f"refused with {error!r}, {circumstances}"


# Epochs and snapshots at the coordinator


def epochs_end_in_order(ended: Epoch, next_ended: Epoch) -> str | None:
    """Those of a segment end as one."""
    return None if ended < next_ended else f"epoch {next_ended} ended after {ended}"


def an_epoch_ends_when_every_worker_has_applied_it(
    epoch: Epoch, workers: Collection[WorkerId], applied: Mapping[WorkerId, Epoch]
) -> str | None:
    """``applied``: of the incarnations that the coordinator has not been told are gone."""
    behind = [worker for worker in workers if applied.get(worker, -1) < epoch]
    return f"epoch {epoch} ended without workers {behind}" if behind else None


def snapshots_are_consistent_cuts(expected: Rows, found: Rows) -> str | None:
    return None if found == expected else difference(expected, found)


def snapshots_have_what_had_ended(ended: Epoch, cut: Epoch) -> str | None:
    """``ended``: when the snapshot was asked for. It has been looked up, and waited for."""
    return None if cut >= ended else f"a snapshot is as of epoch {cut}, and {ended} had ended when it was asked for"


def checkpoints_equal_the_oracle(expected: Rows, found: Rows) -> str | None:
    return None if found == expected else difference(expected, found)


def checkpoints_have_no_rows_on_their_way(gathered: int) -> str | None:
    return f"{gathered} rows that were exchanged are not taken in, and will come again" if gathered else None


def a_snapshot_that_is_ready_is_held(missing: Collection[Incarnation]) -> str | None:
    return f"incarnations {list(missing)} do not hold their parts" if missing else None


def snapshots_that_are_dropped_are_forgotten(
    held: Collection[SnapshotId], dropped: Collection[SnapshotId]
) -> str | None:
    kept = [snapshot for snapshot in held if snapshot in dropped]
    return f"snapshots {kept} are still held" if kept else None


# Rescales


def peers_are_spoken_to_over_a_channel(has_channel: bool, has_lost: bool) -> str | None:
    return None if has_channel or has_lost else "it speaks to a peer that it has no channel to"


def slices_have_their_standbys(wanted: int, copies: Mapping[VnodeId, int]) -> str | None:
    """copies: by vnode, how many workers have caught up with its owner."""
    short = {vnode: count for vnode, count in copies.items() if count != wanted}
    return f"{wanted} copies are wanted, and there are {short}" if short else None


def standbys_have_caught_up(behind: Collection[FeedId]) -> str | None:
    return f"the replicas of feeds {sorted(behind)} have not caught up" if behind else None


def standbys_equal_the_oracle(expected: Rows, found: Rows) -> str | None:
    return None if found == expected else difference(expected, found)


def a_rescale_ends_for_a_reason(outcome: RescaleOutcome, possible: bool, aborted: bool, disturbed: bool) -> str | None:
    """possible: what was wanted can be had. disturbed: a worker was lost since it began."""
    right = {
        RescaleOutcome.FINISHED: possible,
        RescaleOutcome.ABORTED: aborted,
        RescaleOutcome.REFUSED: not possible,
        RescaleOutcome.FAILED: disturbed,
    }
    return None if right[outcome] else f"{outcome}: possible={possible} aborted={aborted} disturbed={disturbed}"


def a_rescale_leaves_as_many_workers_as_wanted(wanted: int, workers: Collection[WorkerId]) -> str | None:
    return None if len(workers) == wanted else f"{wanted} were wanted, there are {sorted(workers)}"


def another_driver_knows_what_clients_have_heard(allowed: Collection[int], workers: int) -> str | None:
    """allowed: numbers of workers, as the rescales that clients have heard of have ended, or lead to."""
    return None if workers in allowed else f"it begins with {workers} workers, and clients expect {sorted(allowed)}"


# Views that come and go


def wishes_are_met_in_order(ticket: int, waiting: Collection[int]) -> str | None:
    return None if ticket == next(iter(waiting), None) else f"ticket {ticket} is met, and {list(waiting)} wait"


def flows_change_between_rescales(rescale_is_on: bool) -> str | None:
    return "a flow is added or dropped while a rescale is on" if rescale_is_on else None


def no_flow_comes_back(flow: FlowId, gone: Collection[FlowId]) -> str | None:
    return f"flow {flow} is gone, and is spoken of" if flow in gone else None


def no_share_of_a_gone_flow(gone: Collection[FlowId]) -> str | None:
    """gone: flows that there are no more, and the worker has a share of."""
    return f"there are shares of the flows {sorted(gone)}, which are gone" if gone else None


def what_is_late_changes_nothing(actions: Sequence[object]) -> str | None:
    """actions: what a machine does when it hears of a flow that is gone."""
    return f"it does {list(actions)}" if actions else None


def others_do_not_notice(
    told: Collection[FlowId], before: Mapping[str, object], after: Mapping[str, object]
) -> str | None:
    """One flow has had its step. told: other flows, whose shares were told of it. before, after: what others keep."""
    changed = [name for name, kept in before.items() if after.get(name) != kept]
    return f"flows {sorted(told)} are told, {changed} have changed" if told or changed else None


def workers_keep_the_views_that_are_wanted(kept: Collection[str], wanted: Collection[str]) -> str | None:
    return None if sorted(kept) == sorted(wanted) else f"it keeps {sorted(kept)} where {sorted(wanted)} are wanted"


# At the end


def the_river_comes_to_rest(steps: int, steps_max: int) -> str | None:
    return None if steps < steps_max else f"still moving after {steps} steps without disturbance"


def every_epoch_ends(published: Epoch, ended: Epoch) -> str | None:
    return None if ended == published else f"{published} epochs were published, {ended} have ended"


def nobody_is_left_waiting(tickets: Collection[int]) -> str | None:
    return f"tickets {sorted(tickets)} have no answer" if tickets else None


def everybody_retires(running: Collection[Incarnation]) -> str | None:
    return f"incarnations {list(running)} are still running" if running else None


def all_go_by_one_map(maps: Mapping[str, VnodeMap | None]) -> str | None:
    """``maps``: by worker; ``None`` for one that still moves keys."""
    first = next(iter(maps.values()))
    others = [who for who, vnode_map in maps.items() if vnode_map is None or vnode_map != first]
    return f"{others} go by another map than {next(iter(maps))}" if others else None


def who_is_not_wanted_has_gone(running: Collection[Incarnation], wanted: Collection[Incarnation]) -> str | None:
    stray = sorted(set(running) - set(wanted))
    return f"incarnations {stray} are still running" if stray else None


# Changes


def versions_go_on(view: str, after: Epoch, at: Epoch, found: Sequence[int], begins: bool) -> str | None:
    """after: the last version of the log before. at: the one that is published; the same again if only other views'
    logs begin there. found: those that its rows have. begins: whether the log does."""
    if after > at or (begins and after == at):
        return f"version {at} of {view} is published after {after}"
    wrong = [version for version in found if not after < version <= at]
    return f"rows of versions {wrong} of {view} are published after {after} with {at}" if wrong else None


def changes_add_up_to_the_view(
    view: str, version: Epoch, truth: Mapping[str, int], found: Mapping[str, int]
) -> str | None:
    """truth, found: rows, and how often there are so."""
    if truth == found:
        return None
    names = {*truth, *found}
    wrong = {row: (truth.get(row, 0), found.get(row, 0)) for row in names if truth.get(row, 0) != found.get(row, 0)}
    return f"{view} at version {version}, how often there is a row, and how often by its changes: {wrong}"
