"""What clients of a simulated cluster ask for."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa

from simulator.drawing import apart_of
from simulator.oracle import Oracle
from simulator.process import Process
from simulator.tables import Key
from upriver.ids import Epoch, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import EvictWanted, RescaleWanted
from upriver.protocol.lookups import LookupTerms
from upriver.protocol.strategies import Strategy
from upriver.protocol.worker_events import Answer, AnswerTogether, LookupAsked, LookupsAsked, RowsRead

KEYS_ASKED_MAX = 4
OWN_KEYS_SHARE, NEXT_KEY_SHARE, KNOWN_VIEWS_SHARE, TOGETHER_SHARE = 0.6, 0.5, 0.97, 0.5
WORKERS_WANTED_MAX = 5
MOVES_SHARE, NONSENSE_SHARE, FIXED_PACE_SHARE = 0.3, 0.05, 0.3
EVERYTHING_SHARE = 0.1  # of the evictions
MOVES_MAX = 6  # vnodes that a wish names


def drawn_view(plans: Sequence[DataflowPlan], rng: Random) -> str:
    """The name of a view, now and then of one that is not there."""
    return rng.choice(plans).name if rng.random() < KNOWN_VIEWS_SHARE else "typo"


LOOKUP_S = 10.0
"""Seconds that a lookup may take; no simulated worker looks at them."""


def drawn_lookup(
    ticket: int,
    process: Process,
    reader: Process,
    plan: DataflowPlan,
    oracle: Oracle,
    published: Epoch,
    rng: Random,
) -> LookupAsked:
    """Mostly for keys that the process was to read, or that the reader is about to read; sometimes for any, for a later
    epoch, or for a view that is not there.
    """
    hashes = oracle.hashes[plan.name]
    part = process.part_of(plan.name)
    vnodes = () if part is None else part.assigned.reads
    own = oracle.keys_in(plan.name, vnodes)
    candidates = own if own and rng.random() < OWN_KEYS_SHARE else list(hashes)
    keys = rng.sample(candidates, min(len(candidates), rng.randint(1, KEYS_ASKED_MAX)))
    if rng.random() < NEXT_KEY_SHARE:
        keys[:1] = _next_key(reader, plan) or keys[:1]
    at_least = Epoch(rng.choice((0, 0, published, published, published + rng.randint(1, 3))))
    together = apart_of(rng).random() < TOGETHER_SHARE
    return lookup_of(ticket, plan, {key: hashes[key] for key in keys}, drawn_view([plan], rng), at_least, together)


def drawn_workers(vnodes: int, rng: Random) -> int:
    """How many workers a user wants."""
    return rng.randint(1, min(WORKERS_WANTED_MAX, vnodes))


def short_keys(lookup: LookupAsked) -> str:
    """What a lookup asks for, in words."""
    return f"{lookup.view} {[tuple(row.values()) for row in lookup.keys.to_pylist()]}"


def lookup_of(
    ticket: int, plan: DataflowPlan, keys: Mapping[Key, int], view: str, at_least: Epoch, together: bool
) -> LookupAsked:
    """A lookup of these keys of a plan, each with its hash64, under the name ``view``."""
    columns = zip(plan.key, zip(*keys, strict=True), strict=True)
    return LookupAsked(
        ticket=ticket,
        view=view,
        keys=pa.record_batch({name: pa.array(list(values), plan.schema.field(name).type) for name, values in columns}),
        hash64=np.array(list(keys.values()), np.uint64),
        at_least=at_least,
        together=together,
    )


def as_clients_ask(lookup: LookupAsked) -> LookupsAsked:
    """The lookup as the only one of a request."""
    terms = LookupTerms(1, lookup.keys.num_rows, lookup.at_least, lookup.together, LOOKUP_S)
    return LookupsAsked(ticket=lookup.ticket, view=lookup.view, keys=lookup.keys, hash64=lookup.hash64, lookups=[terms])


def answers_apart(together: AnswerTogether) -> Iterator[Answer]:
    """The answer to each lookup."""
    bounds = pairwise([0, *together.ends.tolist()])
    for ticket, (start, stop) in zip(together.tickets, bounds, strict=True):
        yield Answer(
            ticket=ticket,
            parts=(together.rows.slice(start, stop - start),),
            epoch=together.epoch,
            version=together.version,
            relayed=False,
            held_up=False,
        )


def _next_key(reader: Process, plan: DataflowPlan) -> list[Key]:
    """The key that is to be read next: the likeliest to be seen without an epoch's rows."""
    part = reader.part_of(plan.name)
    for event in () if part is None else part.unread:
        if isinstance(event, RowsRead) and len(event.batch) and set(plan.key) <= set(event.batch.rows.schema.names):
            return [tuple(event.batch.rows.column(column)[0].as_py() for column in plan.key)]
    return []


def drawn_eviction(ticket: int, plan: DataflowPlan, oracle: Oracle, keys_max: int, rng: Random) -> EvictWanted:
    """Of some keys, or of all that are kept."""
    hashes = list(oracle.hashes[plan.name].values())
    everything = rng.random() < EVERYTHING_SHARE
    keys = None if everything else tuple(rng.sample(hashes, min(len(hashes), keys_max)))
    return EvictWanted(ticket=ticket, view=plan.name, keys=keys)


def drawn_rescale(
    ticket: int, workers: Collection[WorkerId], vnodes: int, strategies: Sequence[Strategy], rng: Random
) -> RescaleWanted:
    """So many workers, or some vnodes elsewhere; now and then what cannot be. workers: those that there are."""
    moves: dict[VnodeId, WorkerId] | None = None
    count: int | None = rng.randint(1, WORKERS_WANTED_MAX)
    if rng.random() < NONSENSE_SHARE:
        count = rng.choice((0, vnodes + 1))
    elif rng.random() < MOVES_SHARE:
        moving = rng.sample(range(vnodes), min(vnodes, rng.randint(1, MOVES_MAX)))
        there = [*sorted(workers), *([WorkerId(99)] if rng.random() < NONSENSE_SHARE else [])]
        moves, count = {VnodeId(vnode): rng.choice(there) for vnode in moving}, None
    keys_max = rng.randint(1, 3) if rng.random() < FIXED_PACE_SHARE else None
    return RescaleWanted(ticket=ticket, workers=count, moves=moves, strategy=rng.choice(strategies), keys_max=keys_max)
