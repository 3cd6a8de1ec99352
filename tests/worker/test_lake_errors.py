"""What becomes of what a worker cannot read of the lake: it is those keys' trouble, or a checkpoint's."""

from checkpoints_kit import checkpointing, found
from coordinator_kit import BOTH, came, gone, only, published, said
from copying_kit import A, state_read
from machines_kit import assign, reports, worker
from upquery_kit import HERE, Workers, present

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import CorruptFile
from upriver.ids import Epoch
from upriver.protocol.messages import Assign, HeldUp, Restored, Unrestored
from upriver.protocol.worker_events import AllStateRead, KeysUnread, ReadKeys, StateUnread

CHAIN = (Epoch(3), Epoch(1))


def test_an_upquery_that_cannot_be_read_fails_its_keys_and_the_next_lookup_tries_again() -> None:
    workers = Workers()
    workers.epoch(HERE)
    ticket = workers.look_up(0, HERE)
    asked = workers.upqueries[0].popleft()
    assert isinstance(asked, ReadKeys)
    unread = KeysUnread(
        generation=asked.generation, region=asked.region, number=asked.upquery.number, error=CorruptFile("run 7: torn")
    )
    workers.step(0, unread)
    assert isinstance(workers.refusals[ticket], CorruptFile)
    assert "view 'seen': run 7: torn" in str(workers.refusals[ticket])
    assert present(workers, 0)["unfillable"] == 1
    again = workers.look_up(0, HERE)
    workers.answer(0)
    assert workers.answers[again] == ({HERE: [1]}, 1)
    assert present(workers, 0)["unfillable"] == 0


def test_a_worker_that_cannot_restore_says_so_and_begins_with_what_it_is_told() -> None:
    machine = worker(assign(chain=CHAIN, start_at=Epoch(3)), state_read({A: [1, 3]}))
    assert reports(machine.step(StateUnread(error="torn"))) == [Unrestored(checkpoint=Epoch(3), error="torn")]
    machine.step(assign(chain=CHAIN[1:], start_at=Epoch(1)))
    machine.step(state_read({A: [1]}))
    assert reports(machine.step(AllStateRead())) == [Restored()]


def restarted() -> CoordinatorMachine:
    """Two workers that have begun with a chain of two checkpoints; the first one was lost and has come again."""
    known = [published(epoch) for epoch in range(1, 4)]
    both = [*BOTH, said(1, Restored()), said(2, Restored())]
    return checkpointing(*known, *both, gone(1), came(0, 3), checkpoints=(found(3, base=1), found(1)))


def test_checkpoints_damaged_is_skipped_the_worker_begins_with_an_older_checkpoint_and_then_with_nothing() -> None:
    machine = restarted()
    newest, *older = next(iter(machine.cluster)).chain or ()
    (assigned,) = only(Assign, machine.step(said(3, Unrestored(checkpoint=newest, error="torn"))))
    assert (assigned.chain, assigned.start_at) == (tuple(older), older[0])
    assert next(iter(machine.cluster)).has_lost_changes
    (assigned,) = only(Assign, machine.step(said(3, Unrestored(checkpoint=older[0], error="torn"))))
    assert (assigned.chain, assigned.start_at) == ((), 0)


def test_why_a_worker_is_held_up_is_known_until_it_goes_on() -> None:
    machine = checkpointing(*BOTH)
    machine.step(said(1, HeldUp(error="epoch 3: run 7: torn")))
    processes = machine.cluster.processes.values()
    assert [process.held_up for process in processes] == ["epoch 3: run 7: torn", None]
    machine.step(said(1, HeldUp(error=None)))
    assert [process.held_up for process in processes] == [None, None]
