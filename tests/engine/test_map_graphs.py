"""Stateful maps that feed each other, on several workers, wherever keys move: each gets the rows of a key in the order
that ``plan/row_order.py`` says, and so gives what one process gives that follows the order by the letter.

The function's output depends on all rows that its key has had, and on their order.
"""

import pickle
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_kit import rows_of
from state_kit import MANY, Row

from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.engine.stateful import MapInputs, Readable, stateful_map_op
from upriver.hashing import hash64
from upriver.plan.plan import Per, StatefulMapOp, TableSpec
from upriver.plan.source import Source
from upriver.sql.views import MapRelation, compiled, mapped_rows, mapped_view

EVENTS = TableSpec(
    "events", pa.schema([("k", pa.string()), ("g", pa.int8()), ("at", pa.int64())]), ("k",), order_by=("at",)
)
CLICKS = TableSpec("clicks", pa.schema([("k", pa.string()), ("h", pa.int8())]), ("h",))
USERS = TableSpec("users", pa.schema([("u", pa.int8()), ("k", pa.string())]), ("u",), order_by=(), primary_key=("u",))
TABLES = {table.name: table for table in (EVENTS, CLICKS, USERS)}
SUMS = "SELECT g AS sg, count(*) AS c, sum(at) AS total FROM events GROUP BY g"
VIEWS = {"sums": SUMS, "pairs": "SELECT e.k, e.at AS pat, c.h AS ph FROM events AS e JOIN clicks AS c ON e.k = c.k"}

TEXTS = st.sampled_from(["a", "b", "c", "", None])
BYTES = st.sampled_from([0, 1, 2, None])
EPOCH = st.fixed_dictionaries(
    {},
    optional={
        "events": st.lists(st.tuples(TEXTS, BYTES, st.integers(0, 9)), min_size=1, max_size=8),
        "clicks": st.lists(st.tuples(TEXTS, BYTES), min_size=1, max_size=6),
        "users": st.lists(st.tuples(BYTES, TEXTS), min_size=1, max_size=3),
    },
)

# The function -----------------------------------------------------------------------------------------------------

STATE = pa.schema([("n", pa.int32()), ("crc", pa.int64())])
FORGETS_AFTER = 4


def step(row: Row, state: Row | None) -> tuple[list[Row], Row | None]:
    """Gives none to two rows, each with a checksum of the history of the key since the function has last forgotten."""
    n, crc = (0, 0) if state is None else state
    n, crc = n + 1, zlib.crc32(repr((crc, *row)).encode())
    return [(crc % 3, n, crc + copy) for copy in range(crc % 3)], None if n == FORGETS_AFTER else (n, crc)


def by_row(key: Any, row: Any, state: Any) -> Any:
    return step(tuple(row), None if state is None else tuple(state))


def by_key(key: Any, rows: pa.RecordBatch, state: Any) -> Any:
    kept, made = None if state is None else tuple(state), list[Row]()
    for row in rows_of(rows):
        more, kept = step(row, kept)
        made += more
    return made, kept


def by_batch(keys: Any, rows: pa.RecordBatch, states: pa.RecordBatch) -> Any:
    kept: list[Row | None] = [None if state[0] is None else state for state in rows_of(states)]
    made, owners = list[Row](), list[int]()
    for key, row in zip(keys.tolist(), rows_of(rows), strict=True):
        more, kept[key] = step(row, kept[key])
        made += more
        owners += [key] * len(more)
    columns = [pa.array([row[place] for row in made], type) for place, type in enumerate(GIVES)]
    rest = [
        pa.array([None if state is None else state[place] for state in kept], STATE.types[place]) for place in (0, 1)
    ]
    return np.array(owners, np.int64), columns, pa.RecordBatch.from_arrays(rest, schema=STATE)


GIVES = (pa.int8(), pa.int32(), pa.int64())


@dataclass(frozen=True)
class Named:
    """Its rows as a batch with the columns of one map."""

    schema: pa.Schema

    def __call__(self, keys: Any, rows: Any, states: Any) -> Any:
        owners, columns, kept = by_batch(keys, rows, states)
        return owners, pa.RecordBatch.from_arrays(columns, schema=self.schema), kept


# Graphs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Map:
    """sources: by name, with the columns of the key."""

    name: str
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    per: Per
    told: bool

    @property
    def gives(self) -> pa.Schema:
        return pa.schema(list(zip((f"to_{self.name}", f"n_{self.name}", f"crc_{self.name}"), GIVES, strict=True)))


KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "events": (("k",), ("g",), ("k", "g")),
    "clicks": (("k",), ("h",), ("k", "h")),
    "users": (("k",), ("u",), ("k", "u")),
    "sums": (("sg",),),
    "pairs": (("k",), ("ph",), ("k", "ph")),
}
"""By which columns the rows of a source may be taken: texts, bytes, or both."""


@st.composite
def graphs(draw: st.DrawFn) -> list[Map]:
    found: list[Map] = []
    keys = dict(KEYS)
    for number in range(draw(st.integers(1, 4))):
        name = f"m{number}"
        told = draw(st.booleans())
        width = draw(st.sampled_from(["text", "byte", "both"]))
        fits = {one: [key for key in ways if _width(one, key, found) == width] for one, ways in keys.items()}
        names = [one for one, ways in fits.items() if ways]
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3 if told else 1, unique=True))
        if found and any(f"m{number - 1}" == one for one in names) and draw(st.booleans()):
            chosen[0] = f"m{number - 1}"
            chosen = list(dict.fromkeys(chosen))
        sources = tuple((one, draw(st.sampled_from(fits[one]))) for one in chosen)
        made = Map(name, sources, draw(st.sampled_from(list(Per))), told)
        found.append(made)
        of = sources[0][1]
        to = f"to_{name}"
        keys[name] = (of, (to,), *(((of[0], to),) if len(of) == 1 and width == "text" else ()))
    return found


def _width(name: str, key: tuple[str, ...], _found: Sequence[Map]) -> str:
    texts = [column == "k" for column in key]
    return "both" if len(key) == 2 else "text" if texts[0] else "byte"


class Declared:
    """The maps of a graph as an app declares them."""

    def __init__(self, graph: Sequence[Map]) -> None:
        analyser = SharedAnalyser(TABLES)
        self.readables = {name: Readable.of_table(table) for name, table in TABLES.items()}
        self.rows = {name: MapRelation.of_table(table) for name, table in TABLES.items()}
        for name, sql in VIEWS.items():
            view = compiled(Source(name, sql), analyser.analysed(name, sql, {}), TABLES, analyser)
            self.readables[name] = Readable("the view", name, view.schema, changes=True)
            self.rows[name] = MapRelation(view.relation)
        self.ops: dict[str, StatefulMapOp] = {}
        for each in graph:
            inputs = MapInputs(tuple((self.readables[one], key) for one, key in each.sources), each.told)
            function = {Per.ROW: by_row, Per.KEY: by_key, Per.BATCH: Named(each.gives)}[each.per]
            op = stateful_map_op(each.name, inputs, pickle.dumps(function), each.gives, STATE, per=each.per)
            self.ops[each.name] = op
            self.rows[each.name] = mapped_rows(op, [self.rows[one] for one, _ in each.sources])
            self.readables[each.name] = Readable("the stateful map", each.name, op.output, upstream=op.key)


# The oracle -----------------------------------------------------------------------------------------------------------


class Oracle:
    """One process that follows the order by the letter."""

    def __init__(self, graph: Sequence[Map], declared: Declared) -> None:
        self._graph, self._declared = graph, declared
        self._states: dict[tuple[str, Row], Row | None] = {}
        self._seen: dict[str, list[Row]] = {name: [] for name in TABLES}
        self._before: dict[str, list[Row]] = {name: [] for name in ("sums", "pairs", "users")}
        self.made: dict[str, dict[Row, list[Row]]] = {each.name: {} for each in graph}

    def run(self, epochs: Sequence[Mapping[str, list[Row]]]) -> None:
        """Some epochs. Changes are those of all together, and come with the last."""
        for place, rows in enumerate(epochs):
            for name, new in rows.items():
                self._seen[name] += new
            changes = self._changed() if place + 1 == len(epochs) else {}
            self._run_epoch(rows, changes)

    def _changed(self) -> dict[str, list[tuple[Row, int]]]:
        now = {
            "sums": [
                (g, len(of), sum(row[2] for row in of))
                for g in dict.fromkeys(row[1] for row in self._seen["events"])
                for of in [[row for row in self._seen["events"] if row[1] == g]]
            ],
            "pairs": [
                (e[0], e[2], c[1])
                for e in self._seen["events"]
                for c in self._seen["clicks"]
                if e[0] == c[0] is not None
            ],
            "users": list({row[0]: row for row in self._seen["users"]}.values()),
        }
        found = {}
        for name, rows in now.items():
            net = Counter(rows)
            net.subtract(Counter(self._before[name]))
            found[name] = [(row, weight) for row, weight in net.items() if weight]
            self._before[name] = rows
        return found

    def _run_epoch(self, rows: Mapping[str, list[Row]], changes: Mapping[str, list[tuple[Row, int]]]) -> None:
        given: dict[str, list[Row]] = {
            "events": sorted(rows.get("events", []), key=lambda row: row[2]),
            "clicks": list(rows.get("clicks", [])),
        }
        for each in self._graph:
            op = self._declared.ops[each.name]
            taken: dict[Row, list[Row]] = {}
            for name, key in each.sources:
                names = self._declared.readables[name].schema.names
                if name in given:
                    for row in given[name]:
                        of = tuple(row[names.index(column)] for column in key)
                        taken.setdefault(of, []).append(self._told(each, op, name, names, row, "insert"))
                else:
                    by_key: dict[Row, list[tuple[Row, int]]] = {}
                    for row, weight in changes.get(name, []):
                        by_key.setdefault(tuple(row[names.index(one)] for one in key), []).append((row, weight))
                    for of, net in by_key.items():
                        for row, kind in in_kinds(net):
                            taken.setdefault(of, []).append(self._told(each, op, name, names, row, kind))
            made: list[tuple[Row, Row]] = []
            for of, rows_of_key in taken.items():
                for row in rows_of_key:
                    more, self._states[each.name, of] = step(row, self._states.get((each.name, of)))
                    made += [(of, new) for new in more]
            for of, new in made:
                self.made[each.name].setdefault(of, []).append(new)
            hashes = {of: hash_of(op, of) for of, _ in made}
            given[each.name] = [(*of, *new) for of, new in sorted(made, key=lambda one: hashes[one[0]])]

    def _told(self, each: Map, op: StatefulMapOp, name: str, names: Sequence[str], row: Row, kind: str) -> Row:
        changes = self._declared.readables[name].changes
        if not each.told:
            return (kind, *row) if changes else row
        columns = list(
            dict.fromkeys(one for source, _ in each.sources for one in self._declared.readables[source].schema.names)
        )
        of = dict(zip(names, row, strict=True))
        return (name, kind, *(of.get(column) for column in columns))


def in_kinds(net: Sequence[tuple[Row, int]]) -> list[tuple[Row, str]]:
    """Deletions, pairs, insertions, each by their values."""
    in_order = sorted(net, key=lambda one: [(value is not None, value) for value in one[0]])
    gone = [row for row, weight in in_order for _ in range(-weight)]
    come = [row for row, weight in in_order for _ in range(weight)]
    pairs = min(len(gone), len(come))
    both = [
        each
        for pair in zip(gone, come, strict=False)
        for each in zip(pair, ("update_preimage", "update_postimage"), strict=True)
    ]
    return [*((row, "delete") for row in gone[pairs:]), *both, *((row, "insert") for row in come[pairs:])]


def hash_of(op: StatefulMapOp, key: Row) -> int:
    columns = [pa.array([value], field.type) for value, field in zip(key, op.output, strict=False)]
    return int(hash64(columns)[0])


# The test -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


@MANY
@given(
    graph=graphs(),
    spans=st.lists(st.lists(EPOCH, min_size=1, max_size=3), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_a_graph_gives_what_one_process_gives(
    graph: list[Map], spans: list[list[dict[str, list[Row]]]], seed: int, evaluator: Evaluator
) -> None:
    declared = Declared(graph)
    oracle = Oracle(graph, declared)
    for span in spans:
        oracle.run(span)
    for each in graph:
        plan = mapped_view(each.name, declared.rows[each.name], TABLES)
        world = DataflowWorld(plan, TABLES, evaluator, Random(seed))
        for span in spans:
            world.run_span(
                [{name: as_batch(rows, TABLES[name].schema) for name, rows in epoch.items()} for epoch in span]
            )
        found: dict[Row, list[Row]] = {}
        width = len(declared.ops[each.name].key)
        for row in rows_of(world.scan()):
            found.setdefault(row[:width], []).append(row[width:])
        assert found == oracle.made[each.name]


def as_batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
