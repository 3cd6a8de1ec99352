"""Checkpoints and workers that standbys take over from; rule checkpoints.whole_after_losses of
docs/internals/checkpoints.md."""

import pytest
from checkpoints_kit import in_lake, want
from coordinator_kit import only
from standbys_kit import Group

from upriver.protocol.coordinator_events import CheckpointReady, PublishCheckpoint
from upriver.protocol.messages import CheckpointWritten, TakeCheckpoint


def written(group: Group, checkpoint: int) -> PublishCheckpoint:
    """All workers have written their parts."""
    requests = [group.says(worker, CheckpointWritten(checkpoint=checkpoint, files=())) for worker in group.workers]
    (request,) = only(PublishCheckpoint, requests[-1])
    return request


@pytest.mark.parametrize("in_lake_first", [True, False], ids=["it was published", "it is being published"])
def test_checkpoints_whole_after_losses_a_worker_lost_after_a_checkpoint_knew_what_has_changed_since(
    in_lake_first: bool,
) -> None:
    """The checkpoint is of what was before, be it whole."""
    group = Group()
    group.epoch()
    assert [ask.whole for ask in only(TakeCheckpoint, group.happens(want()))] == [True] * 3
    request = written(group, 1)
    if in_lake_first:
        group.happens(in_lake(request))
    group.epoch()
    group.lose(0)
    group.lease_over(1)
    assert group.workers == (1, 2)
    if not in_lake_first:
        assert only(CheckpointReady, group.happens(in_lake(request)))
    group.come(0)
    asked = only(TakeCheckpoint, group.happens(want()))
    assert {ask.whole for ask in asked} == {True}
    group.happens(in_lake(written(group, 2)))
    group.epoch()
    assert {ask.whole for ask in only(TakeCheckpoint, group.happens(want()))} == {False}
