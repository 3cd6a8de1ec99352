"""Boards of simulated workers, and what somebody finds on them who does not ask."""

from functools import partial
from random import Random

from simulator.clients import lookup_of
from simulator.oracle import Oracle
from simulator.process import Process
from upriver.ids import BEGINNING, MapVersion
from upriver.plan.graph import DataflowPlan
from upriver.protocol.worker_events import Answer, BoardGiven, LookupAsked
from upriver.state.board import Board
from upriver.state.board_layout import BoardLayout
from upriver.state.board_reader import BoardReader

BOARD_BYTES = 16_384
"""Few places, and soon full of rows."""
FOR_EVER = 1.0
"""Time stands still here: what a lease is good for, tests/test_fencing.py shows."""


def board_for(process: Process, plan: DataflowPlan) -> BoardGiven | None:
    """Memory for a view's board, which the process is to be given; ``None`` if its rows are of no type for one."""
    layout = BoardLayout.of(plan.schema, plan.key, BOARD_BYTES)
    if layout is None:
        return None
    memory = bytearray(layout.nbytes)
    board = Board(layout, memory, bytes(16))
    board.good_until(FOR_EVER)
    process.boards[plan.name] = board, BoardReader(layout, memory, partial(float, 0))
    return BoardGiven(view=plan.name, board=board)


def found_on_board(process: Process, lookup: LookupAsked) -> Answer | None:
    """What somebody finds there who looks for these keys."""
    _, reader = process.boards[lookup.view]
    found = reader.find(lookup.hash64)
    if found is None:
        return None
    raw, epoch = found
    rows = reader.layout.rows(raw)
    if not rows.select(reader.layout.key).equals(lookup.keys):
        return None
    version = process.versions.get(lookup.view, MapVersion(0))
    return Answer(ticket=lookup.ticket, parts=(rows,), epoch=epoch, version=version, relayed=False, held_up=False)


def drawn_from_board(
    ticket: int, process: Process, plan: DataflowPlan, oracle: Oracle, lots: Random
) -> LookupAsked | None:
    """For one or two of the keys that are on a board; ``None`` if there are none."""
    if plan.name not in process.boards:
        return None
    board, _ = process.boards[plan.name]
    there = set(board.keys.tolist())
    candidates = [key for key, hash64 in oracle.hashes[plan.name].items() if hash64 in there]
    if not candidates:
        return None
    keys = {key: oracle.hashes[plan.name][key] for key in lots.sample(candidates, min(len(candidates), 2))}
    return lookup_of(ticket, plan, keys, plan.name, BEGINNING, True)


def drawn_board(process: Process, plan: DataflowPlan, share: float, lots: Random) -> BoardGiven | None:
    """Now and then, memory for a board that the process has not, or another one."""
    wanted = share if plan.name not in process.boards else share / 10
    return board_for(process, plan) if lots.random() < wanted else None
