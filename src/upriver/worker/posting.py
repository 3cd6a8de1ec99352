"""A worker's boards: rows of keys that were looked up lately, for clients on its machine; rules B1 to B5.

``docs/design/boards.md``. What is on a board is what a lookup would be answered at once, as of the same epoch.
"""

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.plan.graph import DataflowPlan
from upriver.protocol.strategies import maps_of
from upriver.protocol.worker_events import BoardGiven, LookupAsked
from upriver.state.board import Board
from upriver.state.columns import taken
from upriver.state.vectors import Hashes, is_any_twice, true_at
from upriver.worker.following import Following
from upriver.worker.share import Share, Standing
from upriver.worker.standing import are_ahead, is_between_epochs, that_stay

ROWS_MAX = 8_192
"""Rows that are put on a board at a time, which takes a millisecond or two; those of a larger lookup are not."""


def board_given(phase: Following, event: BoardGiven) -> None:
    """There is memory for a view's board. A cone has none: who does not keep rows by key cannot tell which change."""
    board = event.board
    plan = next((plan for plan in phase.assignment.plans if plan.name == event.view), None)
    if plan is None or plan.is_cone or not _is_for(board, plan):
        board.close()
        return
    share = phase.shares[event.view]
    if share.board is not None:
        share.board.close()
    share.board, share.posted_by = board, None


def _is_for(board: Board, plan: DataflowPlan) -> bool:
    return plan.schema.equals(board.layout.schema) and plan.key == board.layout.key


def note_asked(share: Share, hash64: Hashes) -> None:
    """These keys are to be put up when they are asked for the next time and are here."""
    if share.board is not None:
        share.board.asked_again(hash64)


def put_on_board(phase: Following, share: Share, asked: LookupAsked, rows: pa.RecordBatch) -> None:
    """A lookup was answered at once: others may find its rows without asking, if they are as of an epoch's end. Keys
    are put up that were asked for before. (Those that had to be filled are when they are read again: where many are
    missing, most never are.)"""
    board = share.board
    if board is None or not 0 < rows.num_rows <= ROWS_MAX:
        return
    again = board.asked_again(asked.hash64)
    if not again.any() or not _are_as_of(board.epoch, phase, share, asked.hash64):
        return
    keys = rows.select(board.layout.key).columns
    if len(keys[0]) == len(asked.hash64) and all(map(pa.Array.equals, keys, asked.keys.columns)):
        hashes = asked.hash64
    else:
        hashes = hash64(keys, rows.num_rows)
        again = np.isin(hashes, asked.hash64[again])
    if is_any_twice(hashes):  # a key that has several rows, or that was asked for twice
        _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        is_alone = np.zeros(len(hashes), np.bool_)
        is_alone[first[counts == 1]] = True
        again &= is_alone
    if not again.all():
        hashes, rows = hashes[again], taken(rows, true_at(again))
    board.put(hashes, rows)


def _are_as_of(epoch: Epoch, phase: Following, share: Share, hash64: Hashes) -> bool:
    """Whether the rows of these keys are as of the end of this epoch, which their worker reflects."""
    if epoch != phase.reflected:
        return False
    if not phase.rules.b3_as_of_an_epochs_end:  # B3
        return True
    return is_between_epochs(phase) and not are_ahead(phase, share, hash64)


def tend_boards(phase: Following) -> None:
    """After each step: keys that do not stay are taken down, and boards are as of the epoch that is reflected."""
    for share in phase.shares.values():
        if share.board is not None:
            _tend(phase, share, share.board)


def _tend(phase: Following, share: Share, board: Board) -> None:
    by: Standing = maps_of(share.migrator.phase), bool(phase.peers)
    if by != share.posted_by:
        share.posted_by = by
        if phase.rules.b2_moving_keys_are_taken_down:  # B2
            keys = board.keys
            board.take_down(keys[~that_stay(phase, share, keys)])
    if board.epoch != phase.reflected or not board.is_in_use:
        board.turn(phase.reflected)


def close_boards(phase: Following) -> None:
    """What is kept here is no more, or not for certain: whoever reads boards is to ask."""
    for share in phase.shares.values():
        if share.board is not None and phase.rules.b4_closed_with_its_share:  # B4
            share.board.close()
