"""Through a worker's distributors: rows, questions and state go in, and what they want comes out."""

from upriver.migration.actions import Leave, ReportGone, ReportSettled, Send
from upriver.migration.events import Event, RowsArrived
from upriver.migration.messages import Acquire
from upriver.protocol.messages import Moved, PeerLeft, Settled
from upriver.protocol.outcomes import Applied, AskedHere, Copied, Gave, LeftBehind, LeftOut, Outcome, Took, Uprooted
from upriver.protocol.peers import ForRegion, Hot, Question
from upriver.protocol.strategies import left_to_give, slices_given
from upriver.protocol.worker_events import SetRowsAside
from upriver.worker.copying import write_chunk
from upriver.worker.following import NOTHING_TOLD, Following, Told
from upriver.worker.lookups import answer_together, asked_here, no_longer_waiting


def route(phase: Following, region: str, event: Event) -> None:
    """Give a region's distributor an event, and see to all that follows from it."""
    carry_out(phase, region, phase.shares[region].step(event))


def carry_out(phase: Following, region: str, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        match outcome:
            case Applied(epoch, rows):
                if epoch <= phase.applied:
                    phase.late[epoch, region] += rows
                else:
                    phase.counts[epoch][region] += rows
            case LeftOut(epoch, aside):
                if phase.rules.w10_set_aside_at_once:  # W10
                    phase.actions.append(SetRowsAside(epoch=epoch, aside=aside))
            case LeftBehind(to=peer, keys=keys, shown=shown):
                phase.tell(peer, Hot(region=region, keys=keys, shown=shown))
            case Uprooted():
                phase.uprooted = True
            case AskedHere(question):
                asked_here(phase, region, question)
            case Gave(keys):
                phase.given += keys
            case Took(keys):
                phase.taken += keys
            case Copied(chunk):
                write_chunk(phase, region, chunk)
            case Send(to=peer, message=message):
                phase.loads_out += isinstance(message, Acquire)
                phase.tell(peer, ForRegion(region=region, message=message, begun=phase.begun))
            case ReportSettled(version=version, kept=kept):
                tell_progress(phase, region)
                phase.say(Settled(region=region, version=version, kept=kept))
            case ReportGone(peer=peer):
                phase.peers.pop(peer, None)
                phase.left.add(peer)
                phase.say(PeerLeft(region=region, peer=peer))
            case Leave():
                phase.has_left = True  # the coordinator hears it from those who stay


def ask(phase: Following, region: str, question: Question) -> None:
    """Send a question to where its keys are. One of no keys belongs nowhere, and is answered here."""
    if len(question):
        route(phase, region, RowsArrived(rows=question))
    else:
        asked_here(phase, region, question)


def ask_again(phase: Following) -> None:
    """Answer the questions that have nothing to wait for any more, or route them."""
    for waiting in answer_together(phase, no_longer_waiting(phase)):
        ask(phase, waiting.view, waiting.question)


def tell_progress(phase: Following, region: str) -> None:
    """Tell the coordinator how far a region's migration is, if that has changed by a slice or a phase."""
    share = phase.shares[region]
    keys, vnodes = left_to_give(share.migrator.phase)
    name = type(share.migrator.phase).__name__
    before = phase.told.get(region, NOTHING_TOLD)
    if (before.phase, before.vnodes_left) == (name, vnodes):
        return
    gone = slices_given(share.migrator.phase, phase.me)
    phase.told[region] = Told(name, vnodes, gone)
    here = max(1, len(phase.reads))
    travelled = share.travelled
    phase.say(
        Moved(
            region=region,
            phase=name,
            keys=travelled.keys,
            bytes=travelled.bytes,
            keys_left=keys + vnodes * share.region.stats()["keys"] // here,
            vnodes_left=vnodes,
            gone=tuple(sorted(gone - before.gone)),
            forwarded=travelled.forwarded,
            bounced=travelled.bounced,
        )
    )
