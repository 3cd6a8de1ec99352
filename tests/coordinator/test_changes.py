"""The change log as the coordinator sees to it: rules changes.not_within_a_segment and changes.noted_from_the_cut."""

from dataclasses import replace

import pytest
from coordinator_kit import BOTH, PLAN, Recorded, came, finished, gone, only, published, said, vnode_map

from upriver.coordinator.epochs import LoggedVersions
from upriver.ids import Epoch
from upriver.protocol.coordinator_events import CoordinatorEvent, HorizonAsked, HorizonIs, PublishChanges
from upriver.protocol.messages import Assign, ChangesWritten, TakeChanges
from upriver.protocol.rules import ALL_RULES, Rules

LOGGED = replace(PLAN, logs_changes=True)


def logging(*events: CoordinatorEvent, rules: Rules = ALL_RULES, logs: LoggedVersions | None = None) -> Recorded:
    machine = Recorded(vnode_map(), (LOGGED,), rules, logs=logs)
    for event in events:
        machine.step(event)
    return machine


@pytest.mark.parametrize("rule", [True, False])
def test_changes_not_within_a_segment_epochs_behind_the_log_stay_apart(rule: bool) -> None:
    whole = [event for epoch in (1, 2, 3) for event in (published(epoch), finished(1, epoch), finished(2, epoch))]
    logs = LoggedVersions(found={"rows": Epoch(1)})
    machine = logging(*BOTH, *whole, rules=Rules(changes_not_within_a_segment=rule), logs=logs)
    assert only(HorizonIs, machine.step(HorizonAsked(ticket=0))) == [HorizonIs(ticket=0, epoch=Epoch(1 if rule else 2))]


@pytest.mark.parametrize("rule", [True, False])
def test_changes_noted_from_the_cut_a_worker_that_comes_while_the_log_begins_notes_what_follows(rule: bool) -> None:
    machine = logging(BOTH[0], rules=Rules(changes_noted_from_the_cut=rule))
    (ask, _) = only(TakeChanges, machine.step(BOTH[1]))
    machine.step(said(1, ChangesWritten(taking=ask.taking, parts=())))
    assert len(only(PublishChanges, machine.step(said(2, ChangesWritten(taking=ask.taking, parts=()))))) == 1
    machine.step(gone(2))
    (assigned,) = only(Assign, machine.step(came(1, 3)))
    assert assigned.logged == {"rows": ask.at if rule else None}
