"""Calls of a stateful map's function for one epoch of each key at a time (``plan/row_order.py``).

A batch may have rows of many epochs. The first call gets the first epoch that each key has in it, the next call the
second one of those keys that have two, and so on. So a batch takes as many calls as the key with the most epochs has.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.engine.operators.map_calls import Given, GoodCalls, Made
from upriver.engine.operators.map_rows import RowEpochs
from upriver.state.vectors import Positions, run_lengths, run_starts, spread, true_at


@dataclass(frozen=True, slots=True)
class DatedCalls:
    """The result of a batch's calls. epochs: of each row that was made. sequence: its number among those of its key in
    this epoch, from 0 on."""

    found: GoodCalls
    epochs: RowEpochs
    sequence: Positions


def called_by_epoch(call: Callable[[Given], GoodCalls], given: Given, epochs: RowEpochs) -> DatedCalls:
    """epochs: of each row, ascending within each key."""
    owners = np.repeat(np.arange(given.keys.num_rows), np.diff(given.bounds))
    starts = _starts(owners, epochs)
    if len(starts) == given.keys.num_rows:
        one = call(given)
        return DatedCalls(one, epochs[starts][one.made.owners], _numbers(one.made.owners))
    lengths = run_lengths(starts, len(epochs))
    first = run_starts(owners[starts])
    counts = run_lengths(first, len(starts))
    rounds: list[DatedCalls] = []
    ended: list[tuple[Positions, Made]] = []
    active, states, known = np.arange(given.keys.num_rows), given.states, given.known
    for number in range(int(counts.max())):
        runs = first[active] + number
        rows = spread(starts[runs], lengths[runs])
        bounds = np.concatenate([[0], np.cumsum(lengths[runs])])
        keys = given.keys.take(pa.array(active))
        one = call(Given(given.rows.take(pa.array(rows)), bounds, keys, states, known))
        made = one.made
        owned = Made(made.rows, active[made.owners], made.states, made.kept)
        rounds.append(
            DatedCalls(
                GoodCalls(owned, rows[one.bad], one.errors), epochs[starts[runs]][made.owners], _numbers(made.owners)
            )
        )
        stays = counts[active] > number + 1
        ended.append((active[~stays], Made(made.rows.slice(0, 0), active[:0], *_filtered(made, ~stays))))
        (states, known), active = _filtered(made, stays), active[stays]
    return _joined(rounds, ended)


def _filtered(made: Made, mask: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    return made.states.filter(pa.array(mask)), made.kept[mask]


def _joined(rounds: list[DatedCalls], ended: list[tuple[Positions, Made]]) -> DatedCalls:
    in_order = np.argsort(np.concatenate([keys for keys, _ in ended]))
    made = Made(
        pa.concat_batches([each.found.made.rows for each in rounds]),
        np.concatenate([each.found.made.owners for each in rounds]),
        pa.concat_batches([last.states for _, last in ended]).take(pa.array(in_order)),
        np.concatenate([last.kept for _, last in ended])[in_order],
    )
    bad = np.concatenate([each.found.bad for each in rounds])
    errors = [error for each in rounds for error in each.found.errors]
    by_place = np.argsort(bad)
    found = GoodCalls(made, bad[by_place], tuple(errors[place] for place in by_place.tolist()))
    return DatedCalls(
        found, np.concatenate([each.epochs for each in rounds]), np.concatenate([each.sequence for each in rounds])
    )


def _starts(owners: Positions, epochs: RowEpochs) -> Positions:
    """Where the rows of each key's epochs begin."""
    begins = np.ones(len(owners), np.bool_)
    begins[1:] = (owners[1:] != owners[:-1]) | (epochs[1:] != epochs[:-1])
    return true_at(begins)


def _numbers(owners: Positions) -> Positions:
    """The number of each row among those of its owner, from 0 on."""
    order = np.argsort(owners, kind="stable")
    starts = run_starts(owners[order])
    numbers = np.empty(len(owners), np.int64)
    numbers[order] = np.arange(len(owners)) - np.repeat(starts, run_lengths(starts, len(owners)))
    return numbers
