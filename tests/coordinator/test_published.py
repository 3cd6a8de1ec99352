"""Published epochs, one by one and as segments: what a coordinator opens of them, and for which workers."""

from dataclasses import replace
from itertools import pairwise

import pytest
from checkpoints_kit import checkpointing, flown, found, happens, restored, want
from coordinator_kit import BOTH, CHANNEL, PLAN, TABLE, came, coordinator, finished, gone, only, published, said
from stateful_kit import recall_op

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.published import Compacted, PublishedEpochs
from upriver.errors import ProtocolError
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan, MapSource, Node, Per
from upriver.protocol.coordinator_events import (
    EpochPublished,
    ForgetCheckpoints,
    HorizonAsked,
    HorizonIs,
    SegmentPublished,
    SegmentsRewritten,
)
from upriver.protocol.messages import Assign, OpenEpoch, Unrestored
from upriver.protocol.rules import Rules


def segment(after: int, epoch: int, rows: int = 0) -> SegmentPublished:
    return SegmentPublished(epoch=Epoch(epoch), after=Epoch(after), rows={CHANNEL: rows})


def epochs(*ends: int) -> PublishedEpochs:
    """Of segments and single epochs that end there."""
    known = PublishedEpochs()
    for after, end in zip((0, *ends), ends, strict=False):
        known.add(EpochPublished(epoch=Epoch(end), rows={}, after=Epoch(after)))
    return known


def test_epochs_follow_each_other_singly_and_in_segments() -> None:
    known = epochs(4, 5, 6)
    assert known.between(Epoch(0), Epoch(9)) == [4, 5, 6]
    assert known.between(Epoch(0), Epoch(9), 2) == [4, 5]
    assert [known.following(Epoch(at)) for at in (0, 4, 5, 6)] == [4, 5, 6, None]
    with pytest.raises(ProtocolError, match="epoch 2 is within a segment, from 0 to 4"):
        known.following(Epoch(2))
    with pytest.raises(ProtocolError, match="epoch 8 was published after 6"):
        known.add(EpochPublished(epoch=Epoch(8), rows={}))


def test_a_segment_waits_while_a_worker_stands_or_is_on_its_way_among_its_epochs() -> None:
    for finished_, sent, is_taken in [(2, 2, False), (0, 3, False), (1, 9, False), (4, 4, True), (0, 0, True)]:
        known = epochs(1, 2, 3, 4, 5)
        known.compacted(segment(0, 4))
        known.adopt([(Epoch(9), Epoch(9)), (Epoch(finished_), Epoch(sent))])
        assert known.between(Epoch(0), Epoch(9)) == ([4, 5] if is_taken else [1, 2, 3, 4, 5])
        assert known.first_waiting == (None if is_taken else 0)


def test_a_segment_of_segments_takes_their_place() -> None:
    known = epochs(2, 4, 5)
    known.compacted(segment(0, 4, rows=7))
    known.adopt([])
    assert known.between(Epoch(0), Epoch(9)) == [4, 5]
    assert known[Epoch(4)].rows == {CHANNEL: 7}


def test_epochs_that_are_given_anew_keep_those_that_follow() -> None:
    known = epochs(1, 2, 3)
    known.replace([EpochPublished(epoch=Epoch(2), rows={CHANNEL: 5}, after=Epoch(0))])
    assert known.between(Epoch(0), Epoch(9)) == [2, 3]
    with pytest.raises(ProtocolError, match="epochs up to 1 were given, and 3 follows on another"):
        epochs(3).replace([EpochPublished(epoch=Epoch(1), rows={})])


def test_epochs_that_are_given_anew_may_be_in_a_segment_with_later_ones_by_then() -> None:
    known, since = epochs(1, 2, 3), segment(0, 2)
    known.compacted(since)
    known.adopt([])
    known.replace([EpochPublished(epoch=Epoch(1), rows={})], [since])
    assert known.between(Epoch(0), Epoch(9)) == [2, 3]


def horizon(machine: CoordinatorMachine) -> int:
    (told,) = [action for action in machine.step(HorizonAsked(ticket=3)) if isinstance(action, HorizonIs)]
    return int(told.epoch)


def through(count: int, rule: bool = True) -> CoordinatorMachine:
    """A coordinator of two workers that are through so many epochs."""
    machine = coordinator(*BOTH, rules=Rules(coordinator_none_within_a_segment=rule))
    for epoch in range(1, count + 1):
        for event in (published(epoch), finished(1, epoch), finished(2, epoch)):
            machine.step(event)
    return machine


def test_the_horizon_is_the_last_epoch_that_every_worker_is_through() -> None:
    machine = coordinator(*BOTH)
    assert horizon(machine) == 0
    for event in (published(1), published(2), finished(1, 1), finished(2, 1), finished(1, 2)):
        machine.step(event)
    assert horizon(machine) == 1


def restoring(rule: bool = True) -> CoordinatorMachine:
    """A coordinator of two workers that have begun with a checkpoint of epoch 7, which builds on those of epochs 6, 3
    and 2. The lake has epochs 1 to 9."""
    chain = (found(7, 6), found(6, 3), found(3, 2), found(2))
    machine = checkpointing(checkpoints=chain, rules=Rules(checkpoints_not_within_a_segment=rule))
    happens(machine, *(published(epoch) for epoch in range(1, 10)), *BOTH, restored(1), restored(2))
    return machine


@pytest.mark.parametrize("rule", [True, False])
def test_checkpoints_kept_while_read_an_outgrown_checkpoint_holds_nothing_up_once_no_worker_reads_it(
    rule: bool,
) -> None:
    rules = Rules(checkpoints_kept_while_read=rule)
    machine = checkpointing(checkpoints=(found(2),), rules=rules, outgrown=2)
    known = [published(epoch) for epoch in range(1, 6)]
    happens(machine, *known, *BOTH, restored(1), restored(2))
    happens(machine, *(finished(worker, epoch) for epoch in (3, 4) for worker in (1, 2)), want(1))
    assert only(ForgetCheckpoints, happens(machine, finished(1, 5), finished(2, 5))) == []  # another is on its way
    dropped = only(ForgetCheckpoints, happens(machine, gone(2), came(1, 3)))
    assert (len(dropped), next(iter(machine.cluster)).start_at) == ((0, 2) if rule else (1, 0))
    dropped += only(ForgetCheckpoints, happens(machine, restored(3)))
    assert len(dropped) == 1
    happens(machine, *(finished(3, epoch) for epoch in range(1, 6)))
    assert (horizon(machine), next(iter(machine.cluster)).start_at) == (5, 0)


def test_a_checkpoint_that_an_interval_renews_holds_the_horizon() -> None:
    machine = checkpointing(checkpoints=(found(2),))
    happens(machine, *(published(epoch) for epoch in range(1, 10)), *BOTH, restored(1), restored(2))
    happens(machine, *(finished(worker, epoch) for epoch in range(3, 10) for worker in (1, 2)))
    assert horizon(machine) == 2


def counting() -> DataflowPlan:
    """A view of a stateful map that gets the net changes of each epoch."""
    (region,) = PLAN.regions
    map_of_changes = recall_op(TABLE.schema, ("k",), Per.ROW)
    op = replace(map_of_changes, sources=(MapSource("t", ("k",), changes=True),))
    return replace(PLAN, regions=(replace(region, nodes=(*region.nodes, Node(op, (0,), op.output))),))


def test_epochs_whose_changes_count_are_not_merged_before_there_is_a_checkpoint() -> None:
    both_through = [event for epoch in (1, 2, 3) for event in flown(epoch)]
    for plan, expected in ((PLAN, 3), (counting(), 0)):
        machine = checkpointing(*BOTH, *both_through, plans=(plan,))
        assert horizon(machine) == expected
    machine = checkpointing(checkpoints=(found(2),), plans=(counting(),), outgrown=2)
    happens(machine, *(published(epoch) for epoch in range(1, 10)), *BOTH, restored(1), restored(2))
    dropped = happens(machine, *(finished(worker, epoch) for epoch in range(3, 10) for worker in (1, 2)))
    assert only(ForgetCheckpoints, dropped) == []
    assert horizon(machine) == 2


def test_the_horizon_waits_for_the_newest_checkpoint_and_not_for_its_bases() -> None:
    machine = restoring()
    assert horizon(machine) == 7
    machine.step(segment(0, 6))
    assert (horizon(machine), next(iter(machine.cluster)).start_at) == (7, 7)
    machine.step(segment(6, 8))
    assert horizon(machine) == 6  # it waits: workers begin within it


@pytest.mark.parametrize("rule", [True, False])
def test_checkpoints_not_within_a_segment_a_checkpoint_on_which_no_epoch_follows_is_skipped(rule: bool) -> None:
    machine = restoring(rule)
    machine.step(segment(2, 6))
    happens(machine, gone(1), came(0, 3))
    damaged = [Unrestored(checkpoint=Epoch(epoch), error="a file is gone") for epoch in (7, 6)]
    again = happens(machine, *(said(3, each) for each in damaged))
    begin = [assign.chain for assign in only(Assign, again)]
    assert begin == ([(6, 3, 2), (2,)] if rule else [(6, 3, 2), (3, 2)])


def test_a_worker_that_comes_later_is_sent_a_segment_as_one() -> None:
    machine = through(4)
    machine.step(segment(0, 4))
    machine.step(gone(2))
    opened = only(OpenEpoch, machine.step(came(1, 3)))
    assert opened == [OpenEpoch(epoch=Epoch(4), mixed=False, after=Epoch(0))]


@pytest.mark.parametrize("rule", [True, False])
def test_c18_a_segment_waits_for_a_worker_that_was_sent_some_of_its_epochs(rule: bool) -> None:
    """Else the worker would be sent an epoch that follows on another than it stands at."""
    machine = through(8, rule)
    machine.step(gone(2))
    opened = only(OpenEpoch, machine.step(came(1, 3)))
    opened += only(OpenEpoch, machine.step(segment(0, 8)))
    assert horizon(machine) == 0
    opened += only(OpenEpoch, machine.step(finished(3, 1)))
    assert [each.epoch for each in opened] == ([1, 2, 3, 4, 5] if rule else [1, 2, 3, 4, 8])
    follows = all(each.after == before.epoch for before, each in pairwise(opened))
    assert follows is rule


def rewritten(as_of: int, *segments: SegmentPublished) -> SegmentsRewritten:
    return SegmentsRewritten(as_of=Epoch(as_of), segments=segments)


def test_rewritten_segments_wait_together_until_no_worker_stands_before_their_epoch() -> None:
    for finished_, sent, is_taken in [(4, 5, False), (2, 2, False), (1, 9, False), (6, 9, True), (0, 0, True)]:
        known = epochs(2, 4, 5, 6, 7)
        known.compacted(rewritten(6, segment(0, 2, rows=1), segment(2, 4, rows=2)))
        known.adopt_rewritten([(Epoch(9), Epoch(9)), (Epoch(finished_), Epoch(sent))])
        assert known.between(Epoch(0), Epoch(9)) == [2, 4, 5, 6, 7]
        assert [known[Epoch(end)].rows for end in (2, 4)] == ([{CHANNEL: 1}, {CHANNEL: 2}] if is_taken else [{}, {}])
        assert (known.as_of, known.first_waiting) == ((6, None) if is_taken else (0, 5))


def test_epochs_that_are_given_anew_say_as_of_when_segments_were_rewritten() -> None:
    known = epochs(2, 3)
    known.replace([EpochPublished(epoch=Epoch(2), rows={}, after=Epoch(0), rewritten=Epoch(3))])
    assert known.as_of == 3


@pytest.mark.parametrize("rule", [True, False])
def test_c19_rewritten_segments_wait_for_a_worker_that_has_read_them_as_they_were(rule: bool) -> None:
    """Else it would miss the rows that later epochs take back."""
    machine = coordinator(*BOTH, rules=Rules() if rule else Rules(coordinator_rewritten_for_all=False))
    for epoch in range(1, 9):
        for event in (published(epoch), finished(1, epoch), finished(2, epoch)):
            machine.step(event)
    machine.step(gone(2))
    machine.step(came(1, 3))
    machine.step(rewritten(8, SegmentPublished(epoch=Epoch(1), after=Epoch(0), rows={})))
    assert horizon(machine) == 0
    opened = only(OpenEpoch, machine.step(finished(3, 1)))
    assert [(each.epoch, each.as_of) for each in opened] == [(5, 0 if rule else 8)]
    for epoch in range(2, 9):
        machine.step(finished(3, epoch))
    (last,) = {each.as_of for each in only(OpenEpoch, machine.step(published(9)))}
    assert last == 8


def test_nothing_waits_when_epochs_are_given_anew() -> None:
    """What waits may lack the rows of an index that has been added since."""
    known = epochs(2, 3)
    known.compacted(segment(0, 2))
    known.compacted(rewritten(3, segment(0, 2)))
    known.replace([EpochPublished(epoch=Epoch(2), rows={CHANNEL: 4}, after=Epoch(0), rewritten=Epoch(3))])
    known.adopt([])
    known.adopt_rewritten([])
    assert (known[Epoch(2)].rows, known.as_of, known.has_waiting) == ({CHANNEL: 4}, 3, False)


def test_what_the_lake_got_since_the_epochs_were_read_waits_on() -> None:
    since: list[Compacted] = [segment(0, 2), rewritten(4, segment(0, 2, rows=1))]
    known = epochs(1, 2, 3, 4)
    for event in since:
        known.compacted(event)
    known.replace([EpochPublished(epoch=Epoch(epoch), rows={}) for epoch in (1, 2, 3)], since)
    assert (known.between(Epoch(0), Epoch(9)), known.as_of, known.has_waiting) == ([1, 2, 3, 4], 0, True)
    known.adopt([])
    known.adopt_rewritten([])
    assert (known.between(Epoch(0), Epoch(9)), known.as_of, known[Epoch(2)].rows) == ([2, 3, 4], 4, {CHANNEL: 1})
