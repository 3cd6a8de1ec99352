"""An event of each kind that a share may see."""

from machines_kit import (
    ALL_MINE,
    HALVES,
    announce,
    asked,
    asked_together,
    assign,
    meet,
    move,
    opened,
    over,
    read,
    rows,
    rows_from,
    take,
)

from upriver.errors import LakeError
from upriver.ids import Epoch, FeedId, FlowId, SnapshotId, WorkerId
from upriver.protocol import messages, worker_events
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure
from upriver.state.vectors import NO_KEYS

OF_EACH_KIND: list[worker_events.ShareEvent] = [
    assign(),
    opened(1),
    messages.BeginStage(epoch=Epoch(1), stage=0),
    over(1),
    messages.ReadVnodes(vnodes=()),
    meet(0, 1),
    announce(ALL_MINE, HALVES),
    messages.CloseInput(flows=(FlowId(1),), peers=()),
    messages.PauseEpochs(pause=1),
    messages.ContinueEpochs(),
    take(1, at=1),
    messages.DropSnapshot(snapshot=SnapshotId(1)),
    messages.Retire(),
    rows(1, "a"),
    read(1, 0),
    asked("a"),
    asked_together(("a",)),
    worker_events.LookupGivenUp(ticket=1),
    worker_events.PeersMet(meeting=1),
    rows_from(1, 1, "a"),
    worker_events.PeerLost(why="gone"),
    move(),
    worker_events.KeysRead(generation=0, region="v", number=1, rows=(), through=Epoch(0)),
    worker_events.ReadTakesLong(generation=0, region="v", number=1),
    worker_events.KeysUnread(generation=0, region="v", number=1, error=LakeError("torn")),
    worker_events.RowsFetched(generation=0, view="v", task=1, rows=()),
    worker_events.RowsUnfetched(generation=0, view="v", task=1, error=LakeError("torn")),
    messages.FailView(view="v", failure=ViewFailure(kind="RowError", error="overflow")),
    worker_events.TimeToEvict(keys_max=1),
    messages.Evict(eviction=1, view="v", keys=None),
    worker_events.StateRead(region="v", chunk=StateChunk(NO_KEYS, ())),
    worker_events.StateUnread(error="torn"),
    worker_events.AllStateRead(),
    messages.TakeCheckpoint(checkpoint=1, at=Epoch(1), whole=True),
    worker_events.TimeToCopy(keys_max=1),
    worker_events.TimeToSettle(rows_max=1),
    worker_events.StateWritten(checkpoint=1, files=()),
    worker_events.StateNotWritten(checkpoint=1, error="the disk is full"),
    messages.TakeChanges(taking=1, at=Epoch(1), begins=()),
    worker_events.ChangesStored(taking=1, parts=()),
    worker_events.ChangesNotStored(taking=1, error="the disk is full"),
    messages.ChangesLogged(through={}),
    messages.KeepCheckpoint(checkpoint=1),
    messages.DropCheckpoint(checkpoint=1),
    messages.Resume(maps={}, reads=(), at=Epoch(0), serve_from=Epoch(0), generation=1),
    messages.Follow(feed=FeedId(1), owner=WorkerId(1), vnodes=()),
    messages.Unfollow(feed=FeedId(1), vnodes=()),
    worker_events.TimeToFeed(keys_max=1),
    worker_events.TimeToFill(),
    worker_events.TimeToTakeIn(rows_max=1),
    worker_events.TimeToAnswer(rows_max=1),
]


def kind(event: object) -> str:
    return type(event).__name__
