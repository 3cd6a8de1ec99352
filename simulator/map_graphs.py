"""Graphs of stateful maps over the cluster's tables and views, and what they give if one process follows the order of
``plan/row_order.py`` by the letter.

The function's output depends on all rows that its key has had, and on their order. That of a map that sets rows aside
fails on some of them.
"""

import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from simulator.lake import current
from simulator.shared_analyser import SharedAnalyser
from simulator.tables import CLOCKED, OFFERS, TABLES, VIEWS, Key
from upriver.engine.stateful import MapInputs, Readable, stateful_map_op
from upriver.hashing import hash64
from upriver.plan.plan import DataflowPlan, Keep, Per, TableSpec
from upriver.plan.planning import plan_together
from upriver.plan.source import Source
from upriver.sql.views import CompiledView, MapRelation, compiled, declared_view, mapped_rows, mapped_view

Row = tuple[Any, ...]

MAPS_MAX = 5
SOURCES_MAX = 3
FORGETS_AFTER = 4
"""Rows of a key after which the function drops its state."""
FAILS_EVERY = 6
"""A picky function fails on about one row in so many."""
SPECS = {table.name: table for table in TABLES}
READ_VIEWS = {
    "volumes": VIEWS[0].sql,
    "fans": "SELECT v.page, count(*) AS n FROM trades t JOIN visits v ON t.qty = v.ms GROUP BY v.page",
    "offered": "SELECT page, site, sym, qty FROM offers WHERE qty > 2",
    "fresh": CLOCKED[0].sql,
}
"""Views that maps read by their changes."""
CHANGING = (*READ_VIEWS, OFFERS.name)

KEYS: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "trades": {"text": (("sym",),), "number": (("qty",),), "both": (("sym", "qty"),)},
    "visits": {"text": (("page",),), "number": (("ms",),), "both": (("page", "ms"),)},
    "offers": {"text": (("sym",), ("page",)), "number": (("qty",),), "both": (("page", "qty"), ("sym", "qty"))},
    "volumes": {"text": (("sym",),), "number": (("n",), ("qty",)), "both": (("sym", "n"),)},
    "fans": {"text": (("page",),), "number": (("n",),)},
    "offered": {"text": (("sym",), ("page",)), "number": (("qty",),), "both": (("page", "qty"),)},
    "fresh": {"text": (("sym",),), "number": (("qty",),), "both": (("sym", "qty"),)},
}
"""By source and by the types of the columns, the keys by which its rows may be taken."""

# The function ---------------------------------------------------------------------------------------------------------

STATE = pa.schema([("n", pa.int32()), ("crc", pa.int64())])
GIVES = (pa.int64(), pa.int32(), pa.int64())


def step(row: Row, state: Row | None) -> tuple[list[Row], Row | None]:
    """Gives none to two rows, each with a checksum of the history of the key since the function has last forgotten."""
    n, crc = (0, 0) if state is None else state
    n, crc = n + 1, zlib.crc32(repr((crc, *row)).encode())
    return [(crc % 7, n, crc + copy) for copy in range(crc % 3)], None if n == FORGETS_AFTER else (n, crc)


def picky_step(row: Row, state: Row | None) -> tuple[list[Row], Row | None]:
    """The same; raises ValueError for some rows, behind some states."""
    if zlib.crc32(repr((row, state)).encode()) % FAILS_EVERY == 0:
        raise ValueError("such a row")
    return step(row, state)


Step = Callable[[Row, Row | None], tuple[list[Row], Row | None]]


def by_row(step: Step, _key: Any, row: Any, state: Any) -> tuple[list[Row], Row | None]:
    return step(tuple(row), None if state is None else tuple(state))


def by_key(step: Step, _key: Any, rows: pa.RecordBatch, state: Any) -> tuple[list[Row], Row | None]:
    kept, made = None if state is None else tuple(state), list[Row]()
    for row in _rows_in(rows):
        more, kept = step(row, kept)
        made += more
    return made, kept


def by_batch(
    step: Step, schema: pa.Schema, keys: Any, rows: pa.RecordBatch, states: pa.RecordBatch
) -> tuple[Any, Any, Any]:
    """schema: of the rows that it gives."""
    kept: list[Row | None] = [None if state[0] is None else state for state in _rows_in(states)]
    made, owners = list[Row](), list[int]()
    for key, row in zip(keys.tolist(), _rows_in(rows), strict=True):
        more, kept[key] = step(row, kept[key])
        made += more
        owners += [key] * len(more)
    none = (None,) * len(STATE)
    return np.array(owners, np.int64), _batch(made, schema), _batch([one or none for one in kept], STATE)


def _rows_in(rows: pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], column.type) for place, column in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Graphs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphMap:
    """sources: by name, with the columns of the key. tells_source, sets_aside: as of ``StatefulMapOp``."""

    name: str
    sources: tuple[tuple[str, tuple[str, ...]], ...]
    per: Per
    tells_source: bool
    sets_aside: bool = False

    @property
    def step(self) -> Step:
        """What the function does for each row."""
        return picky_step if self.sets_aside else step

    @property
    def gives(self) -> pa.Schema:
        """The columns that the function gives. No two maps have the same."""
        return pa.schema(list(zip((f"to_{self.name}", f"n_{self.name}", f"crc_{self.name}"), GIVES, strict=True)))


def drawn_graph(rng: Random, maps_max: int = MAPS_MAX, *, may_change: bool = True) -> list[GraphMap]:
    """may_change: whether maps also read views and upsert tables, by their changes."""
    keys = {name: dict(ways) for name, ways in KEYS.items() if may_change or name not in CHANGING}
    found: list[GraphMap] = []
    for number in range(rng.randint(1, maps_max)):
        name, tells, width = f"m{number}", rng.random() < 0.5, rng.choice(["text", "number", "both"])
        possible = [one for one, ways in keys.items() if width in ways]
        chosen = rng.sample(possible, rng.randint(1, min(SOURCES_MAX, len(possible)) if tells else 1))
        of_maps = [one.name for one in found if width in keys[one.name]]
        if of_maps and rng.random() < 0.7:
            chosen = list(dict.fromkeys([rng.choice(of_maps), *chosen[1:]]))
        sources = tuple((one, rng.choice(keys[one][width])) for one in chosen)
        found.append(GraphMap(name, sources, rng.choice(list(Per)), tells, sets_aside=rng.random() < 0.4))
        keys[name] = _keys_of(name, width, sources[0][1])
    return found


def _keys_of(name: str, width: str, key: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    to = f"to_{name}"
    match width:
        case "text":
            return {"text": (key,), "number": ((to,),), "both": ((*key, to),)}
        case "number":
            return {"number": (key, (to,))}
        case _:
            return {"text": (key[:1],), "number": (key[1:], (to,)), "both": (key, (key[0], to))}


class DeclaredGraph:
    """The maps of a graph as an app declares them, and a view of each."""

    def __init__(self, graph: Sequence[GraphMap]) -> None:
        self.maps = tuple(graph)
        self._analyser = SharedAnalyser(SPECS)
        self.readables = {name: Readable.of_table(table) for name, table in SPECS.items()}
        self._rows = {name: MapRelation.of_table(table) for name, table in SPECS.items()}
        for name, sql in READ_VIEWS.items():
            view = compiled(Source(name, sql), self._analyser.analysed(name, sql, {}), SPECS, self._analyser)
            self.readables[name] = Readable("the view", name, view.schema, changes=True)
            self._rows[name] = MapRelation(view.relation)
        self.keys: dict[str, pa.Schema] = {}
        """By map, the columns of its key."""
        for each in graph:
            inputs = MapInputs(tuple((self.readables[one], key) for one, key in each.sources), each.tells_source)
            function = {
                Per.ROW: partial(by_row, each.step),
                Per.KEY: partial(by_key, each.step),
                Per.BATCH: partial(by_batch, each.step, each.gives),
            }[each.per]
            policy = "set_aside" if each.sets_aside else "fail"
            op = stateful_map_op(
                each.name, inputs, pickle.dumps(function), each.gives, STATE, per=each.per, on_bad_row=policy
            )
            self._rows[each.name] = mapped_rows(op, [self._rows[one] for one, _ in each.sources])
            self.readables[each.name] = Readable("the stateful map", each.name, op.output, upstream=op.key)
            self.keys[each.name] = pa.schema(list(op.output)[: len(op.key)])

    def plans(self, keep: Mapping[str, Keep] = MappingProxyType({})) -> tuple[DataflowPlan, ...]:
        """Of all maps. keep: by map, the rows that stay, if not all do."""
        return tuple(mapped_view(each.name, self._rows[each.name], SPECS, keep.get(each.name)) for each in self.maps)

    def together(self, keep: Mapping[str, Keep] = MappingProxyType({}), *views: str) -> tuple[DataflowPlan, ...]:
        """Of all maps as an app runs them, in flows: each is computed once, and feeds what reads it. keep: as for
        ``plans``. views: of these maps there is a view in SQL, too, named ``of_`` and the map."""
        of = [self._view(f"of_{each}", each) for each in views]
        relations = {name: rows.relation for name, rows in self._rows.items()}
        relations |= {plan.name: view.relation for view, plan in of}
        return plan_together([*self.plans(keep), *(plan for _, plan in of)], relations, SPECS)

    def view(self, name: str, of: str) -> DataflowPlan:
        """A view in SQL of what a map gives, by numbers in its rows. of: the map."""
        return self._view(name, of)[1]

    def _view(self, name: str, of: str) -> tuple[CompiledView, DataflowPlan]:
        sql = f"SELECT to_{of}, count(*) AS rows, max(crc_{of}) AS most FROM {of} GROUP BY to_{of}"
        known = SharedAnalyser({**SPECS, of: TableSpec(of, self.readables[of].schema, ())})
        analysed = known.analysed(name, sql, {})
        return declared_view(Source(name, sql), analysed, f"to_{of}", SPECS, known, {of: self._rows[of]})


# The oracle -----------------------------------------------------------------------------------------------------------


@dataclass
class OneProcess:
    """What the maps give. made: by map and key, all rows in order, without their key. set_aside: by map, the rows on
    which its function fails."""

    graph: DeclaredGraph
    database: duckdb.DuckDBPyConnection = field(default_factory=lambda: duckdb.connect(config={"threads": 1}))
    made: dict[str, dict[Key, list[Row]]] = field(default_factory=dict)
    set_aside: dict[str, list[Row]] = field(default_factory=dict)
    _states: dict[tuple[str, Key], Row | None] = field(default_factory=dict)
    _before: dict[str, Counter[Row]] = field(default_factory=dict)
    _seen: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)

    def run(self, epochs: Sequence[Mapping[str, pa.RecordBatch]], clock: int) -> None:
        """Some epochs, with their rows by table. Changes are those of all together, and come with the last. clock: its
        instant, in microseconds since 1970."""
        for place, rows in enumerate(epochs):
            for name, batch in rows.items():
                self._seen.setdefault(name, []).append(batch)
            given = {name: _rows_in(batch) for name, batch in rows.items() if not SPECS[name].primary_key}
            self._run_epoch(given, self._changed(clock) if place + 1 == len(epochs) else {})

    def _changed(self, clock: int) -> dict[str, list[tuple[Row, int]]]:
        """The net changes of what maps read by its changes, each with its weight."""
        tables = {name: pa.Table.from_batches(self._seen.get(name, []), spec.schema) for name, spec in SPECS.items()}
        tables = {name: current(SPECS[name], rows) for name, rows in tables.items()}
        for name, rows in tables.items():
            self.database.register(name, rows)
        changes = {}
        for name in {one for each in self.graph.maps for one, _ in each.sources}.intersection(CHANGING):
            sql = READ_VIEWS.get(name, f"SELECT * FROM {name}").replace("unix_timestamp()", str(clock // 1_000_000))
            now = Counter(map(tuple, self.database.execute(sql).fetchall()))
            net = Counter(now)
            net.subtract(self._before.get(name, Counter()))
            changes[name], self._before[name] = [(row, weight) for row, weight in net.items() if weight], now
        for name in tables:
            self.database.unregister(name)
        return changes

    def _run_epoch(self, given: dict[str, list[Row]], changes: Mapping[str, list[tuple[Row, int]]]) -> None:
        for each in self.graph.maps:
            made: list[tuple[Key, Row]] = []
            for of, rows in self._taken(each, given, changes).items():
                for fail_together in [[row] for row in rows] if each.per is Per.ROW else [rows]:
                    made += [(of, new) for new in self._called(each, of, fail_together)]
            of_map = self.made.setdefault(each.name, {})
            for of, new in made:
                of_map.setdefault(of, []).append(new)
            hashes = {of: _hash_of(of, self.graph.keys[each.name]) for of, _ in made}
            given[each.name] = [(*of, *new) for of, new in sorted(made, key=lambda one: hashes[one[0]])]

    def _called(self, each: GraphMap, of: Key, rows: Sequence[Row]) -> list[Row]:
        """What the function gives for rows of one key; nothing, if it fails on one of them and they are set aside."""
        state, made = self._states.get((each.name, of)), list[Row]()
        try:
            for row in rows:
                more, state = each.step(row, state)
                made += more
        except ValueError:
            self.set_aside.setdefault(each.name, []).extend(rows)
            return []
        self._states[each.name, of] = state
        return made

    def _taken(
        self, each: GraphMap, given: Mapping[str, list[Row]], changes: Mapping[str, list[tuple[Row, int]]]
    ) -> dict[Key, list[Row]]:
        """The rows that the function gets, by key."""
        taken: dict[Key, list[Row]] = {}
        for name, key in each.sources:
            names = self.graph.readables[name].schema.names
            places = [names.index(column) for column in key]
            if name in CHANGING:
                by_key: dict[Key, list[tuple[Row, int]]] = {}
                for row, weight in changes.get(name, []):
                    by_key.setdefault(tuple(row[place] for place in places), []).append((row, weight))
                for of, net in by_key.items():
                    taken.setdefault(of, []).extend(self._told(each, name, row, kind) for row, kind in _in_kinds(net))
            else:
                for row in given.get(name, []):
                    of = tuple(row[place] for place in places)
                    taken.setdefault(of, []).append(self._told(each, name, row, "insert"))
        return taken

    def _told(self, each: GraphMap, name: str, row: Row, kind: str) -> Row:
        """A row as the function gets it."""
        if not each.tells_source:
            return (kind, *row) if name in CHANGING else row
        schemas = (self.graph.readables[source].schema for source, _ in each.sources)
        columns = dict.fromkeys(column for schema in schemas for column in schema.names)
        of = dict(zip(self.graph.readables[name].schema.names, row, strict=True))
        return (name, kind, *(of.get(column) for column in columns))


def _in_kinds(net: Sequence[tuple[Row, int]]) -> list[tuple[Row, str]]:
    """Deletions, pairs, insertions, each by their values."""
    in_order = sorted(net, key=lambda one: [(value is not None, value) for value in one[0]])
    gone = [row for row, weight in in_order for _ in range(-weight)]
    come = [row for row, weight in in_order for _ in range(weight)]
    pairs = min(len(gone), len(come))
    both = [
        one
        for before, after in zip(gone, come, strict=False)
        for one in ((before, "update_preimage"), (after, "update_postimage"))
    ]
    return [*((row, "delete") for row in gone[pairs:]), *both, *((row, "insert") for row in come[pairs:])]


def _hash_of(key: Key, schema: pa.Schema) -> int:
    return int(hash64([pa.array([value], column.type) for value, column in zip(key, schema, strict=True)])[0])
