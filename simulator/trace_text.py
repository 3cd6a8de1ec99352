"""What machines say, in a few words for a trace."""

from upriver.migration.messages import Acquire, Message, RowsSent
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    CaughtUp,
    ChangesLogged,
    DropFlow,
    DropSnapshot,
    EpochFinished,
    EpochOver,
    Follow,
    ForShare,
    FromShare,
    FromWorker,
    Meet,
    MigrationOrder,
    OfShare,
    OpenEpoch,
    ReadVnodes,
    Resume,
    RowsApplied,
    RowsSettled,
    SnapshotTaken,
    StageDone,
    Still,
    TakeChanges,
    TakeCheckpoint,
    TakeSnapshot,
    ToShare,
    ToWorker,
    Unfollow,
)
from upriver.protocol.peers import (
    BeginFeed,
    EndFeed,
    Envelope,
    Fed,
    FedThrough,
    ForRegion,
    PeerLookup,
    PeerLookupAnswered,
    PeerLookupGivenUp,
    PeerLookupRefused,
    Portion,
)
from upriver.protocol.worker_events import (
    AllStateRead,
    EpochRead,
    RowsRead,
    SealState,
    StateRead,
    StateUnread,
    WriteState,
)


def read_in_words(event: RowsRead | EpochRead | StateRead | AllStateRead | StateUnread) -> str:
    """What a process has read of the lake."""
    match event:
        case RowsRead():
            return f"{len(event.batch)} rows of {event.channel}, epoch {event.epoch}"
        case EpochRead():
            return f"the end of epoch {event.epoch}"
        case StateRead():
            return f"{len(event.chunk.keys)} keys of {event.region}"
        case StateUnread():
            return "a damaged checkpoint"
        case AllStateRead():
            return "the end of what was kept"


def short(message: ToShare | ToWorker | FromShare | FromWorker | Envelope | WriteState | SealState | None) -> str:
    """A message in a few words; ``None``: the end of a channel."""
    name = type(message).__name__
    match message:
        case None:
            return "is gone"
        case ForShare() | OfShare():
            return f"{short(message.message)} of flow {message.flow}"
        case DropFlow():
            return f"{name} {message.flow}"
        case Envelope():
            return _said(message)
        case OpenEpoch() | EpochFinished() | EpochOver():
            mixed = ", mixed" if isinstance(message, OpenEpoch) and message.mixed else ""
            return f"{name} {message.epoch}{mixed}"
        case BeginStage() | StageDone():
            return f"{name} {message.stage} of {message.epoch}"
        case RowsSettled():
            return f"{name} {message.epoch}: {dict(message.settled)}, sent {dict(message.sent)}"
        case RowsApplied():
            return f"{name} {message.epoch}: {dict(message.applied)}"
        case Assign():
            return f"{name} from {message.start_at}, generation {message.generation}"
        case Meet():
            return f"{name} {sorted(message.peers)} by {message.strategy}"
        case MigrationOrder():
            return f"{name} {message.region} {type(message.order).__name__} {message.order.version}"
        case ReadVnodes():
            return f"{name} {list(message.vnodes)}"
        case Still():
            return f"{name} {message.given} given, {message.taken} taken"
        case TakeSnapshot():
            return f"{name} {message.snapshot} of {message.view} at {message.at}"
        case TakeCheckpoint():
            return f"{name} {message.checkpoint} at {message.at}{', whole' if message.whole else ''}"
        case TakeChanges():
            return f"{name} {message.taking} at {message.at}, begins {list(message.begins)}"
        case ChangesLogged():
            return f"{name} {dict(message.through)}"
        case WriteState():
            return f"{message.region} {message.chunk.keys.tolist()} for checkpoint {message.checkpoint}"
        case Resume():
            return f"{name} at {message.at}, generation {message.generation}"
        case Follow() | Unfollow():
            return f"{name} {message.feed} {list(message.vnodes)}"
        case CaughtUp():
            return f"{name} {message.feed} through {message.epoch}"
        case SnapshotTaken() | DropSnapshot():
            return f"{name} {message.snapshot}"
    return name


def _said(envelope: Envelope) -> str:
    content, name = envelope.content, type(envelope.content).__name__
    match content:
        case ForRegion():
            return f"{content.region} {_to_region(content.message)}"
        case PeerLookupAnswered() | PeerLookupRefused() | PeerLookupGivenUp():
            return f"{name} {content.ticket}"
        case Fed():
            return f"{name} {content.feed} of {content.epoch}: {content.region} {content.keys.tolist()}"
        case FedThrough():
            return f"{name} {content.feed} through {content.epoch}"
        case BeginFeed() | EndFeed():
            return f"{name} {content.feed} {list(content.vnodes)}"
    return name


def _to_region(message: Message) -> str:
    name = f"{type(message).__name__} v{message.version}"
    match message:
        case RowsSent(rows=Portion() as portion):
            return f"{name}, {len(portion)} rows of epoch {portion.epoch}"
        case RowsSent(rows=PeerLookup() as question):
            return f"{name}, question {question.ticket} for {len(question)} keys"
        case Acquire():
            return f"{name} of {len(message.keys)} keys"
    vnode = getattr(message, "vnode", None)
    return name if vnode is None else f"{name} of {vnode}"
