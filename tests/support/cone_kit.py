"""A cone alone, without workers: a small lake answers what it reads, and a full view tells what is right.

Nothing happens by itself: what the cone has asked for is read when a test says so.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from sql_kit import local_plan
from state_kit import Row, plain_rows

from simulator.dataflow_world import DataflowWorld
from simulator.tables import ALL_VIEWS
from simulator.tables import TABLES as ALL_TABLES
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.partial.cone import Cone, ConeReads
from upriver.partial.cone_state import ConeShape
from upriver.partial.cone_tasks import Reads
from upriver.partial.partial_region import ANSWER_ROWS_MAX, KeysToRead
from upriver.partial.rules import ALL_RULES, UpqueryRules
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan
from upriver.plan.provenance import lake_edges

TABLES = MappingProxyType({table.name: table for table in ALL_TABLES})
# ruff: noqa: E501  queries are easier to read on one line
_BY_PAGE = """
in a row | SELECT o.page, count(*) AS n, max(t.seq) AS last FROM trades t JOIN visits v ON t.qty = v.ms JOIN offers o ON v.site = o.site GROUP BY o.page
extremes | SELECT o.page, min(t.seq) AS first, max(o.qty) AS most FROM offers o JOIN trades t ON o.sym = t.sym GROUP BY o.page
lonely | SELECT v.page, v.seq FROM visits v LEFT ANTI JOIN offers o ON v.ms = o.qty
itself | SELECT a.page, count(*) AS n, max(b.seq) AS last FROM visits a JOIN visits b ON a.ms = b.ms GROUP BY a.page
latest trades | SELECT page, seq, nth FROM (SELECT v.page, t.seq, row_number() OVER (PARTITION BY v.page ORDER BY t.seq DESC, v.seq) AS nth FROM trades t JOIN visits v ON t.qty = v.ms) WHERE nth <= 2
neighbours | SELECT v.page, t.seq, lag(t.seq) OVER (PARTITION BY v.page ORDER BY t.seq, v.seq) AS before, count(*) OVER (PARTITION BY v.page) AS n FROM trades t JOIN visits v ON t.qty = v.ms
either | SELECT page, count(*) AS n, min(seq) AS first FROM (SELECT v.page, t.seq FROM trades t JOIN visits v ON t.qty = v.ms UNION ALL SELECT o.page, t.seq FROM offers o JOIN trades t ON o.sym = t.sym) GROUP BY page
either in one | SELECT page, count(*) AS n FROM (SELECT v.page, v.ms FROM visits v LEFT ANTI JOIN trades t ON v.ms = t.qty UNION SELECT v.page, v.ms FROM trades t JOIN visits v ON t.qty = v.ms) GROUP BY page
numbers | SELECT v.page, count(*) AS n, sum(CAST(t.sym AS INT)) AS total FROM trades t JOIN visits v ON t.qty = v.ms GROUP BY v.page
numbers of offers | SELECT o.page, count(*) AS n, sum(t.number) AS total FROM (SELECT v.site, CAST(t.sym AS INT) AS number FROM trades t JOIN visits v ON t.qty = v.ms) t JOIN offers o ON t.site = o.site GROUP BY o.page
quotients | SELECT page, max(q) AS most FROM (SELECT v.page, 12 / coalesce(t.qty, 0) AS q FROM visits v LEFT JOIN trades t ON v.ms = t.qty WHERE v.ms > 0) GROUP BY page
"""
_SIMULATED = ("fans", "hits", "touched", "misses", "supply", "deals", "matches")
SQL: Mapping[str, tuple[str, str]] = MappingProxyType(
    {view.name: (view.sql, view.key[0]) for view in ALL_VIEWS if view.name in _SIMULATED}
    | {name: (sql, "page") for name, sql in (line.split(" | ") for line in _BY_PAGE.strip().splitlines())}
)
"""Views whose keys are traced over every exchange edge, and the column by which each is looked up."""
WITH_BAD_ROWS = frozenset({"numbers", "numbers of offers", "quotients"})
"""A symbol that is no number makes a trade bad, and so does a visit without a trade."""
EVALUATOR = Evaluator()
Epochs = Mapping[str, pa.RecordBatch]


@cache
def planned(view: str) -> DataflowPlan:
    """A partial one."""
    sql, key = SQL[view]
    plan = local_plan(sql, key, *ALL_TABLES)
    assert why_full(plan, wanted=True, sets_aside=()) is None
    return DataflowPlan(plan.name, plan.sql, plan.key, plan.schema, plan.regions, full_because=None)


def visit(page: str | None, ms: int | None, site: int | None = None) -> tuple[str, dict[str, Any]]:
    return "visits", {"page": page, "ms": ms, "site": site}


def trade(sym: str | None, qty: int | None) -> tuple[str, dict[str, Any]]:
    return "trades", {"sym": sym, "qty": qty}


def offer(
    site: int | None, page: str | None, sym: str | None = None, qty: int | None = None, gone: bool | None = None
) -> tuple[str, dict[str, Any]]:
    return "offers", {"site": site, "page": page, "sym": sym, "qty": qty, "gone": gone}


def hashed(*keys: str | None) -> Hashes:
    """hash64, ascending."""
    return np.sort(hash64([pa.array(keys, pa.string())], len(keys)))


class Lake:
    """Epochs in memory."""

    def __init__(self, plan: DataflowPlan) -> None:
        self.epochs: list[dict[str, pa.RecordBatch]] = []
        """Of each, the rows by table."""
        self._edges = {edge.channel: edge for edge in lake_edges(plan)}
        self._rows = 0

    def publish(self, *rows: tuple[str, Mapping[str, Any]]) -> dict[str, pa.RecordBatch]:
        """One more epoch with these rows, each of some table."""
        by_table: dict[str, list[dict[str, Any]]] = {}
        for table, row in rows:
            by_table.setdefault(table, []).append({**row, "seq": self._rows})
            self._rows += 1
        epoch = {
            table: pa.RecordBatch.from_pylist(found, schema=TABLES[table].schema) for table, found in by_table.items()
        }
        self.epochs.append(epoch)
        return epoch

    def rows(self, table: str, after: int, through: int) -> pa.RecordBatch:
        """Of a table, in order."""
        epochs = [epoch[table] for epoch in self.epochs[after:through] if table in epoch]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], schema=TABLES[table].schema), *epochs])

    def answer(self, reads: Reads) -> list[Batch]:
        return [self._read(read) for read in reads]

    def _read(self, read: KeysToRead) -> Batch:
        edge = self._edges[read.channel]
        rows = self.rows(edge.table, read.after, read.through)
        hashes = hash64([rows.column(column) for column in edge.index], rows.num_rows)
        mine = np.flatnonzero(np.isin(hashes, read.keys))
        mine = mine[np.argsort(hashes[mine], kind="stable")]
        return Batch(rows.take(pa.array(mine)), hashes[mine])


class LoneCone:
    """A cone of a view and its lake."""

    def __init__(self, view: str, rules: UpqueryRules = ALL_RULES) -> None:
        plan = planned(view)
        self.plan = plan
        self.lake = Lake(plan)
        self.cone = Cone(plan, partial(Region.build, plan, evaluator=EVALUATOR), rules, Epoch(0))
        self.unread: list[ConeReads] = []
        """What was asked for and is not read yet."""
        self.rows_max = ANSWER_ROWS_MAX
        """Rows that are taken in at a time."""

    @property
    def published(self) -> Epoch:
        return Epoch(len(self.lake.epochs))

    @property
    def present(self) -> list[int]:
        present: list[int] = self.cone.keys_of(0, 1).tolist()
        return present

    @property
    def shown(self) -> list[int]:
        """The present keys that a lookup may have now."""
        keys = np.array(self.present, np.uint64)
        return [*map(int, keys[self.cone.present(keys)])]

    @property
    def resting(self) -> int:
        return self.cone.stats()["resting"]

    def publish(self, *rows: tuple[str, Mapping[str, Any]]) -> None:
        self.lake.publish(*rows)

    @property
    def is_at_work(self) -> bool:
        """Whether a task waits to go on."""
        return bool(self.unread or self.cone.unfilled)

    @property
    def reads(self) -> Reads:
        """Everything that was asked for and is not read yet."""
        return tuple(read for asked in self.unread for read in asked.reads)

    def step(self) -> bool:
        """Read what was asked for first; or take rows in; or let the next tasks begin. Whether there was anything."""
        if not self.is_at_work:
            self.begin()
            return bool(self.unread)
        self.go_on()
        return True

    def begin(self) -> None:
        """Let the tasks begin that may begin, beside those under way."""
        self.unread += self.cone.work(self.published)

    def overtake(self) -> None:
        """What is being read takes long."""
        for asked in self.unread:
            self.cone.overtake(asked.task)

    def go_on(self, place: int = 0) -> None:
        """Read what was asked for at this place of those that are not read; take rows in if there is none."""
        if self.unread:
            asked = self.unread.pop(place % len(self.unread))
            self.unread += self.cone.proceed(asked.task, self.lake.answer(asked.reads), self.rows_max)
        else:
            assert self.cone.unfilled, "no task is under way"
            self.unread += self.cone.take_in(self.rows_max)

    def run(self) -> None:
        """All that is to be done is done."""
        while self.step():
            pass

    def finish(self) -> None:
        """What is under way is done."""
        while self.is_at_work:
            self.step()

    def want(self, *keys: str | None) -> None:
        self.cone.want(hashed(*keys))

    def fill(self, *keys: str | None) -> None:
        self.want(*keys)
        self.run()

    def evict(self, *keys: str | None) -> int:
        return self.cone.evict(hashed(*keys))

    def drop_forgotten(self, keys_max: int = 2) -> None:
        """The memory of all that is forgotten is given back."""
        while self.cone.has_leftovers:
            assert 0 < self.cone.drop_forgotten(keys_max) <= keys_max
        assert self.cone.drop_forgotten(keys_max) == 0

    def look_up(self, *keys: str) -> list[Row]:
        """The view's rows of these keys, which are present, sorted."""
        hashes = hash64([pa.array(keys, pa.string())], len(keys))
        assert not self.cone.lacks(hashes)
        asked = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=list(self.plan.key))
        return sorted(plain_rows(self.cone.lookup(hashes, asked)))


class ComparedCone(LoneCone):
    """A cone, and what a full view of the same has as of each epoch."""

    def __init__(self, view: str, rules: UpqueryRules = ALL_RULES) -> None:
        super().__init__(view, rules)
        self._shape = ConeShape.of(self.plan)
        self._full = DataflowWorld(self.plan, TABLES, EVALUATOR, Random(0), workers=1, moves_odds=0.0)
        self._views: list[dict[int, list[Row]]] = [{}]
        """As of each epoch, the rows of each key."""

    def publish(self, *rows: tuple[str, Mapping[str, Any]]) -> None:
        self._full.run_epoch(self.lake.publish(*rows))
        self._views.append(self._by_key(self._full.scan()))

    def check(self) -> None:
        """No task is under way: the kept keys are right, and just what they rest on is kept."""
        assert not self.is_at_work
        self.check_rows()
        assert self.resting == self._rested_on()

    def check_rows(self) -> None:
        """At any moment: the kept keys are right, except those that the rest of an epoch may change."""
        view, shown = self._views[self.cone.applied], self.shown
        kept = self._by_key(self.cone.scan())
        assert kept.keys() <= set(self.present)
        assert {key: kept[key] for key in shown if key in kept} == {key: view[key] for key in shown if key in view}

    def expected(self, *keys: str) -> list[Row]:
        """What a lookup of these keys is to give."""
        view = self._views[self.cone.applied]
        return sorted(row for key in hashed(*keys).tolist() for row in view.get(key, []))

    def _by_key(self, rows: pa.Table) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        hashes = hash64([rows.column(column).combine_chunks() for column in self.plan.key], rows.num_rows)
        for key, row in zip(hashes.tolist(), plain_rows(rows), strict=True):
            found.setdefault(key, []).append(row)
        return {key: sorted(of_key, key=repr) for key, of_key in found.items()}

    def _rested_on(self) -> int:
        """How many keys of all regions before the last there are that present ones rest on."""
        kept: dict[str, set[int]] = {region.name: set() for region in self._shape.regions}
        kept[self._shape.top] = set(self.present)
        for region in reversed(self._shape.regions):
            for edge in self._shape.into(region.name):
                for trace in edge.traces:
                    rows = self.lake.rows(trace.table, 0, self.cone.applied)
                    consumers, producers = _hashes(rows, trace.consumer_key), _hashes(rows, trace.producer_key)
                    pairs = zip(consumers, producers, strict=True)
                    kept[edge.producer] |= {producer for consumer, producer in pairs if consumer in kept[region.name]}
        return sum(len(keys) for name, keys in kept.items() if name != self._shape.top)


def _hashes(rows: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    hashes: list[int] = hash64([rows.column(column) for column in columns], rows.num_rows).tolist()
    return hashes
