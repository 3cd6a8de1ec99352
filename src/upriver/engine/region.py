"""Region: one worker's part of one region of a view, from its incoming edges to its outgoing edges or to lookups.

Rows of a lake edge flow through the operators as they come. Rows of an exchange edge are gathered until their stage
begins, and are then settled, some keys at a time: the region consolidates all rows of a key and passes them through in
one go. So an operator sees a retraction only after the row itself, or in the same batch. A key with very many rows can
be settled in parts, if the plan allows it: first all rows that take back what was there before, then those that come.
Output waits until it is drained, and is consolidated then.

The state of a key is what the operators and the view's store keep of it, and its gathered rows. Output is not state: a
row that has come out is sent from the worker that computed it, wherever the key moves.

Gate: the entry of a region, which handles the rows that the view cannot be computed from.

``RegionState``: what a worker keeps of one region, as the interface for moving, reading and feeding it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from upriver.engine.bad_rows import Flowing, SetAside, passed, row_filters
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.builders import operators_of
from upriver.engine.clock import BEFORE_ALL
from upriver.engine.function_calls import LOCAL, FunctionCaller
from upriver.engine.operators.aggregate import Aggregate
from upriver.engine.operators.clock_tests import ClockTests
from upriver.engine.operators.gather import Gather, hash_of_row
from upriver.engine.operators.operator import ExpressionEvaluator, Operator, Stateful, concatenated, consolidated
from upriver.engine.operators.rows import RecentRows, RowCounts, Rows
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.operators.view import CompactedViewStore, LongRead, Store, View
from upriver.engine.pending_changes import ChangedRows, PendingChanges
from upriver.errors import ProtocolError, RowError
from upriver.hashing import HASH64_MAX, Hashes, hash64
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan, ExchangeEdge, LakeEdge, Node, RegionPlan, SendEdge, StatefulMapOp, ViewStore
from upriver.plan.provenance import table_rows
from upriver.plan.routing import found_in, routings
from upriver.state.vectors import NO_KEYS, Mask, Positions, key_set
from upriver.vnodes import vnode_range

ALL_ROWS = 2**63 - 1
"""More rows than there can be."""

State = tuple[pa.RecordBatch, ...]
"""All that a region keeps of some keys."""


class RegionState(Protocol):
    """One region's state at one worker."""

    @property
    def gathered(self) -> int:
        """Rows that came over exchange edges and are not settled yet."""
        ...

    def left_out(self) -> Sequence[SetAside]:
        """The rows of tables that were set aside since the last call."""
        ...

    @property
    def waiting(self) -> int:
        """Gathered rows, plus those that a node failed on and that are to be tried again."""
        ...

    @property
    def unsettled(self) -> int:
        """Waiting rows, plus output that is not drained yet."""
        ...

    def due(self, clock: int) -> Hashes:
        """The keys, ascending and unique, that change when the clock gets to this instant."""
        ...

    def advance(self, clock: int) -> None:
        """The clock gets to this instant, in microseconds since 1970."""
        ...

    def show_due(self) -> None:
        """State was installed that may be as of an earlier clock than this region's: take it on."""
        ...

    def settle(self, rows_max: int) -> int: ...

    def drain(self, rows_max: int) -> Sequence[Outgoing]: ...

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch: ...

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]: ...

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead: ...

    def scan(self) -> pa.Table: ...

    def stats(self) -> Mapping[str, int]: ...

    def keys_of(self, vnode: int, vnodes: int) -> Hashes: ...

    def collect(self, keys: Hashes) -> State: ...

    def install(self, state: State) -> None: ...

    def drop(self, keys: Hashes) -> None: ...


class FullRegionState(RegionState, Protocol):
    """State as :class:`upriver.engine.region.Region` keeps it."""

    def apply(self, port: int, batch: Batch) -> None: ...

    def settle_first(self, rows_max: int) -> None: ...

    def try_again(self, keys: Hashes) -> None: ...

    def advance_keys(self, clock: int) -> Hashes: ...

    def raise_clock(self, keys: Hashes, clock: int) -> None: ...


FROM_SEVERAL_ROWS = (
    ". It is not set aside: only a row of a table can be, and the row that fails here combines several, by a join, an "
    "aggregate or the like"
)
"""Added to an error that rows may cause whose table sets bad rows aside, if no single row causes it."""


class Gate:
    """``operators``: those of the region's nodes. Stateful maps among them set rows aside if they must."""

    __slots__ = ("_aside", "_row_filters", "_sets_aside", "_tables", "operators")

    def __init__(
        self,
        view: DataflowPlan,
        region: RegionPlan,
        operators: Sequence[Operator],
        evaluator: ExpressionEvaluator,
        sets_aside: Collection[str],
    ) -> None:
        """operators: those of the region's nodes. sets_aside: the tables whose bad rows are set aside."""
        edges = [entry.edge for each in view.regions for entry in each.inputs]
        self._tables = {
            port: entry.edge.table for port, entry in enumerate(region.inputs) if isinstance(entry.edge, LakeEdge)
        }
        self._sets_aside = {edge.table for edge in edges if isinstance(edge, LakeEdge)}.intersection(sets_aside)
        self._row_filters = row_filters(view, region, operators, evaluator, self._sets_aside)
        self._aside: list[SetAside] = []
        come = {rows.number: rows.table for rows in table_rows(region) if rows.table in self._sets_aside}
        self.operators = tuple(
            self._filtering(view.name, node, operator, come)
            for operator, node in zip(operators, region.nodes, strict=True)
        )

    def _filtering(self, view: str, node: Node, operator: Operator, come: Mapping[int, str]) -> Operator:
        """The operator; of a stateful map, one that sets rows aside if it must. come: tables by the numbers of rows."""
        if not isinstance(operator, StatefulMap):
            return operator
        assert isinstance(node.op, StatefulMapOp)
        of_table = come.get(node.inputs[0]) if len(node.inputs) == 1 else None
        table = node.op.name if node.op.sets_aside else of_table
        # Which view's plan holds the map depends on what else reads it: a rejected row is of the map.
        return operator if table is None else _FilteringMap(operator, node.op.name or view, table, self._aside)

    def let_in(self, number: int, flowing: Flowing) -> None:
        """Keep bad rows out if a table's rows come into the region with this number. Add what nodes make of the good
        rows one by one. Raises RowError for a bad row that is not set aside."""
        if number in self._row_filters:
            aside = self._row_filters[number].keep_good(flowing)
            if aside is not None:
                self._aside.append(aside)

    def left_out(self) -> list[SetAside]:
        """The rows that the gate has kept out since the last call."""
        aside = self._aside.copy()
        self._aside.clear()
        return aside

    @contextmanager
    def naming(self, port: int | None) -> Iterator[None]:
        """Add to errors the table, if rows came in at the port of a lake edge, and why its rows were not set aside."""
        table = None if port is None else self._tables.get(port)
        try:
            yield
        except RowError as error:
            is_downstream = bool(self._sets_aside) if table is None else table in self._sets_aside
            where = "" if table is None else f"table {table!r}: "
            raise RowError(f"{where}{error}{FROM_SEVERAL_ROWS if is_downstream else ''}") from error


class _FilteringMap:
    """A stateful map as an operator that sets aside the rows on which the function fails: as rows of a table, or under
    the map's own name."""

    __slots__ = ("_aside", "_map", "_table", "_view")

    def __init__(self, operator: StatefulMap, view: str, table: str, aside: list[SetAside]) -> None:
        """view: whose rows the map makes. aside: where rows on which the function fails go."""
        self._map = operator
        self._view = view
        self._table = table
        self._aside = aside

    def begin(self, epoch: Epoch) -> None:
        self._map.begin(epoch)

    def apply(self, port: int, batch: Batch) -> Batch:
        return self.apply_together([batch])

    def apply_together(self, batches: Sequence[Batch | None]) -> Batch:
        made, bad, errors = self._map.apply_good(batches)
        if errors:
            self._aside.append(SetAside(self._view, self._table, bad, errors))
        return made


@dataclass(frozen=True, slots=True)
class Wiring:
    """What feeds what. nodes: for each node, the numbers of its inputs, as :class:`RegionPlan` counts them: the first
    node has the number ``ports``. kept, sent: the number of the rows that are kept, and of those that leave the
    region; ``None``: none are."""

    ports: int
    nodes: tuple[tuple[int, ...], ...]
    kept: int | None
    sent: int | None

    @classmethod
    def of(cls, region: RegionPlan) -> Self:
        """The wiring of a region."""
        kept = None if region.store is None else region.last
        sent = region.sent if region.store is None or region.leaves is not None else None
        return cls(len(region.inputs), tuple(node.inputs for node in region.nodes), kept, sent)


class RegionKeeper(Protocol):
    """Keeps something by key: an operator, the store of the view, or the rows that wait at a port."""

    @property
    def nbytes(self) -> int: ...

    @property
    def live_nbytes(self) -> int: ...

    def hashes_between(self, least: int, most: int) -> Hashes: ...

    def drop(self, keys: Hashes) -> None: ...


class KeptRows:
    """The store of a view, and its reader. parts: how many batches the store collects. pending: what the view's change
    log does not have yet; ``None`` if the view has no log."""

    __slots__ = ("key", "parts", "pending", "store", "view")

    def __init__(
        self, plan: ViewStore, source: pa.Schema, evaluator: ExpressionEvaluator, pending: PendingChanges | None
    ) -> None:
        """source: of the rows that will come."""
        self.pending, self.key = pending, plan.key
        self.store = CompactedViewStore(partial(_store_of, plan, source))
        self.view = View(self.store, plan.output, plan.having, evaluator)
        self.parts = len(self.store.collect(np.empty(0, np.uint64)))

    def apply(self, rows: Batch) -> None:
        """Take in a batch of changes."""
        if self.pending is not None:
            self.pending.note(rows.hash64, [rows.rows.column(name) for name in self.key], self.view.lookup)
        self.store.apply(rows)


class Region:
    """One worker's share of one region."""

    __slots__ = (
        "_clocked",
        "_gate",
        "_gathers",
        "_kept",
        "_maps",
        "_operators",
        "_outbox",
        "_sends",
        "_stateful",
        "_takes_parts",
        "_unsure",
        "_wiring",
    )

    def __init__(
        self,
        wiring: Wiring,
        gate: Gate,
        stateful: Sequence[Stateful],
        gathers: Mapping[int, Gather],
        unsure: Mapping[int, Sequence[Gather]],
        kept: KeptRows | None,
        sends: Sequence[SendEdge],
        *,
        takes_parts: bool,
    ) -> None:
        """stateful: the gate's operators that keep something. gathers: by port, one for each exchange edge.
        unsure: by number, in order, for each node that may be given rows which the rest of the epoch takes
        back: the rows of each of its inputs since it failed. They wait for the rest. Those of a join wait always: a
        join that has failed has kept a part of them. takes_parts: as :meth:`DataflowPlan.takes_parts`."""
        self._wiring = wiring
        self._gate = gate
        self._operators = gate.operators
        self._stateful = tuple(stateful)
        self._clocked = {
            number: operator
            for number, operator in enumerate(gate.operators, start=wiring.ports)
            if isinstance(operator, ClockTests)
        }
        """The nodes that depend on the clock, by number."""
        self._maps = {
            number: operator
            for number, operator in enumerate(gate.operators, start=wiring.ports)
            if isinstance(operator, StatefulMap | _FilteringMap)
        }
        """The stateful maps, by number."""
        self._gathers = dict(gathers)
        self._unsure = dict(unsure)
        self._kept = kept
        self._sends = tuple(sends)
        self._takes_parts = takes_parts
        self._outbox: list[Batch] = []
        """Output that is not drained yet."""

    @classmethod
    def build(
        cls,
        view: DataflowPlan,
        region: RegionPlan,
        evaluator: ExpressionEvaluator,
        sets_aside: Collection[str] = (),
        caller: FunctionCaller = LOCAL,
    ) -> Self:
        """An empty region of a view. sets_aside: the tables whose bad rows are left out; a bad row of another table is
        an error. caller: how the functions of stateful maps are called. Raises ProtocolError for a plan that
        contradicts itself."""
        source, store = (region.nodes or region.inputs)[-1].schema, region.store
        if store is not None and found_in(routings(region)[-1], store.key) != store.key:
            raise ProtocolError(f"region {region.name!r}: its key is not in {store.key} of what it keeps")
        evaluator.define(view.functions)
        operators = operators_of(region, evaluator, caller)
        return cls(
            Wiring.of(region),
            Gate(view, region, operators.all, evaluator, sets_aside),
            operators.stateful,
            {
                port: Gather(entry.schema)
                for port, entry in enumerate(region.inputs)
                if isinstance(entry.edge, ExchangeEdge)
            },
            {number: [Gather(schema) for schema in _sources_of(region, number)] for number in view.unsure(region)},
            None if store is None else KeptRows(store, source, evaluator, _pending(view, store, source)),
            view.sends(region.name),
            takes_parts=view.takes_parts(region),
        )

    # Rows -------------------------------------------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """What comes from now on comes of this epoch."""
        for operator in self._maps.values():
            operator.begin(epoch)
        if self.pending is not None:
            self.pending.begin(epoch)

    def apply(self, port: int, batch: Batch) -> None:
        """Take in rows of one input, in the order in which they came off the edge.

        Raises RowError if a row makes an operator fail and is not set aside. The region must not be used after that:
        its state may hold a part of the batch.
        """
        gather = self._gathers.get(port)
        if gather is None:
            with self._gate.naming(port):
                self._flow(port, batch)
        else:
            gather.add(batch)

    def due(self, clock: int) -> Hashes:
        return key_set(*(operator.due(clock) for operator in self._clocked.values()))

    def advance(self, clock: int) -> None:
        """The clock gets to this instant, unless it is past it. Raises RowError as ``apply``."""
        self.advance_keys(clock)

    def advance_keys(self, clock: int) -> Hashes:
        """As ``advance``; returns the keys whose rows have changed, ascending and unique."""
        changed: list[Hashes] = []
        for number, operator in self._clocked.items():
            made = operator.advance(clock)
            if len(made):
                changed.append(made.hash64)
                with self._gate.naming(None):
                    self._flow(number, made)
        return key_set(*changed)

    def show_due(self) -> None:
        self.advance(BEFORE_ALL)

    def raise_clock(self, keys: Hashes, clock: int) -> None:
        """Rows of these keys (ascending, unique) will come as of this instant. The region has no state of them yet."""
        for operator in self._clocked.values():
            operator.raise_clock(keys, clock)

    def left_out(self) -> list[SetAside]:
        """The rows of tables that were set aside since the last call: nothing here depends on them."""
        return self._gate.left_out()

    @property
    def gathered(self) -> int:
        """How many rows wait until they are settled."""
        return sum(gather.held for gather in self._gathers.values())

    @property
    def waiting(self) -> int:
        """How many rows wait until they are settled: gathered ones, and those that a node failed on."""
        return sum(gather.held for gather in self._waiting)

    @property
    def unsettled(self) -> int:
        """How many rows wait until they are settled or drained."""
        return self.waiting + sum(map(len, self._outbox))

    def settle(self, rows_max: int) -> int:
        """Take about so many waiting rows through the operators, always all rows of a key; returns how many gathered
        ones there were. All rows of the epoch must be here. Raises RowError as ``apply``."""
        before = self.gathered
        self._settle_through(self._hash_of_row(rows_max))
        return before - self.gathered

    def settle_in_parts(self, rows_max: int) -> tuple[int, Hashes]:
        """As :meth:`settle`, but of a key with more rows than that only a part, if the plan allows it. Returns how many
        gathered rows there were, and the keys of which others still wait. Do not show the state of these keys."""
        before, most = self.gathered, self._hash_of_row(rows_max)
        fewer = sum(gather.count(most - 1) for gather in self._gathers.values()) if most else 0
        of_key = sum(gather.count(most) for gather in self._gathers.values()) - fewer
        if of_key <= rows_max or not self._takes_parts:
            self._settle_through(most)
            return before - self.gathered, NO_KEYS
        if fewer:
            self._settle_through(most - 1)
        is_over = self._settle_part(most, max(1, rows_max - fewer))
        return before - self.gathered, NO_KEYS if is_over else np.array([most], np.uint64)

    def _settle_through(self, most: int) -> None:
        """Settle all keys whose hash is no higher."""
        for port, gather in self._gathers.items():
            self._settle_rows(port, gather.take(most))
        self._try_each_again(lambda gather: gather.take(most))

    def _settle_part(self, key: int, rows_max: int) -> bool:
        """Settle a part of the key, whose hash64 is the lowest of those that are gathered. Returns whether there was no
        other one. The port with the fewest rows is first: so a row of one side of a join meets few of the other."""
        waiting = {port: rows for port, gather in self._gathers.items() if (rows := gather.count(key))}
        ports = sorted(waiting, key=lambda port: (waiting[port], -port))
        going = next((port for port in ports if self._gathers[port].may_take_back(key)), None)
        if going is not None:
            self._settle_rows(going, self._gathers[going].take_back(key, rows_max))
        elif ports:
            self._settle_rows(ports[0], self._gathers[ports[0]].take_some(key, rows_max))
        if any(gather.count(key) for gather in self._gathers.values()):
            return False
        self._try_each_again(lambda gather: gather.take(key))
        return True

    def _settle_rows(self, port: int, rows: Batch | None) -> None:
        if rows is not None:
            with self._gate.naming(None):
                self._flow(port, consolidated(rows))

    def try_again(self, keys: Hashes) -> None:
        """Give the nodes that failed the rows of these keys (ascending, unique) again, but for those that cancel out.
        All rows of the keys must be here. Raises RowError as ``apply``."""
        self._try_each_again(lambda gather: gather.take_keys(keys))

    def _try_each_again(self, taken: Callable[[Gather], Batch | None]) -> None:
        for number, gathers in self._unsure.items():
            rows = [taken(gather) if gather.held else None for gather in gathers]
            with self._gate.naming(None):
                made = _applied_at_once(self._operators[number - self._wiring.ports], rows)
                if made is not None:
                    self._flow(number, made)

    def settle_first(self, rows_max: int) -> None:
        """Take at most so many of the gathered rows through the operators, in the order in which they came; the rows
        of a key may be cut apart. Only for rows that all came from regions of one worker: a row that is taken back has
        come before, then. At the end, the rows that a node failed on, all at once. Raises RowError as ``apply``."""
        for port, gather in self._gathers.items():
            rows = gather.take_first(rows_max)
            if rows is not None:
                self._settle_rows(port, rows)
                return
        self._try_each_again(lambda gather: gather.take(HASH64_MAX))

    def _hash_of_row(self, number: int) -> int:
        """About the hash of the waiting row of that number, in order of hashes; of any, if there are no more rows."""
        return HASH64_MAX if self.waiting <= number else hash_of_row(self._waiting, number)

    def drain(self, rows_max: int) -> list[Outgoing]:
        """About so many rows of the output that is not drained, consolidated."""
        drained = self._drawn(rows_max)
        if not drained:
            return []
        rows = consolidated(concatenated(drained))
        return [
            Outgoing(send.to, send.port, Batch(rows.rows, _hashed(rows, send.key), rows.weight))
            for send in self._sends
            if len(rows)
        ]

    def _drawn(self, rows_max: int) -> list[Batch]:
        """Take the first so many rows out of the outbox."""
        drawn: list[Batch] = []
        left = rows_max
        for place, batch in enumerate(self._outbox):
            if len(batch) > left:
                drawn.append(batch.slice(0, left))
                self._outbox = [batch.slice(left, len(batch)), *self._outbox[place + 1 :]]
                return drawn
            drawn.append(batch)
            left -= len(batch)
        self._outbox = []
        return drawn

    def _flow(self, source: int, batch: Batch) -> None:
        """Take rows of one input, or of a node, through the operators that they reach."""
        flowing: Flowing = {source: batch}
        self._gate.let_in(source, flowing)
        for number, (operator, inputs) in enumerate(
            zip(self._operators, self._wiring.nodes, strict=True), start=self._wiring.ports
        ):
            if number in flowing or self._is_put_off(number, inputs, flowing):
                continue
            try:
                made = passed(operator, inputs, flowing)
            except RowError:
                if number not in self._unsure:
                    raise
                self._put_off(number, inputs, flowing)
                continue
            if made is not None:
                flowing[number] = made
                self._gate.let_in(number, flowing)
        sent, kept = (
            None if number is None else flowing.get(number) for number in (self._wiring.sent, self._wiring.kept)
        )
        if sent is not None and len(sent):
            self._outbox.append(sent)
        if kept is not None and len(kept):
            assert self._kept is not None
            self._kept.apply(kept)

    def _is_put_off(self, number: int, inputs: Sequence[int], flowing: Flowing) -> bool:
        """Whether the node's rows wait: those of a map, or of several inputs; or the node has failed in this epoch, and
        they may take back others that wait."""
        gathers = self._unsure.get(number)
        if gathers is None or not (len(gathers) > 1 or gathers[0].held or number in self._maps):
            return False
        self._put_off(number, inputs, flowing)
        return True

    def _put_off(self, number: int, inputs: Sequence[int], flowing: Flowing) -> None:
        for source, gather in zip(inputs, self._unsure[number], strict=True):
            if source in flowing:
                gather.add(flowing[source])

    # Changes ----------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> PendingChanges | None:
        """What the view's change log does not have yet; ``None`` if the view has no log."""
        return None if self._kept is None else self._kept.pending

    def changes(self) -> ChangedRows:
        """The changes that the log does not have yet. Raises RowError if an output expression fails."""
        assert self._kept is not None
        assert self._kept.pending is not None
        return self._kept.pending.changes(self._kept.view.lookup)

    def all_inserted(self, version: Epoch) -> ChangedRows:
        """All rows, as inserts of this version: what a log begins with. Raises RowError as ``changes``."""
        assert self._kept is not None
        assert self._kept.pending is not None
        return self._kept.pending.all_inserted(self.scan(), self._kept.store.hashes_between(0, HASH64_MAX), version)

    # Reads ------------------------------------------------------------------------------------------------------------

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        """The view's rows of these keys, in the order in which the keys are first mentioned; a null matches a null.

        keys: one column for each column of the routing key, in its order. hash64: of the keys. Raises RowError if an
        output expression fails. Raises ManyMembers early, if there are more rows than ``rows_max`` and ``long_read``
        can read some at a time.
        """
        return self._view.lookup(hash64, keys.columns, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        """As :meth:`lookup`, for several lookups at once, and where the rows of each end. ends: where the keys of each
        end."""
        return self._view.lookup_each(hash64, keys.columns, ends, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        """The rows that :meth:`lookup` finds, read some at a time and unaffected by later changes."""
        return self._view.long_read(hash64, keys.columns)

    def scan(self) -> pa.Table:
        """All of the view's rows, sorted by hash64. Raises RowError if an output expression fails."""
        return self._view.scan()

    def stats(self) -> dict[str, int]:
        """rows, keys: of the view, before HAVING; 0 in a region that does not keep it. held: rows, groups and states
        that operators keep. gathered: rows that wait. bytes: of memory. live_bytes: the part of them that live entries
        use; compaction gives the rest back. Costs no more with size."""
        kept = None if self._kept is None else self._kept.store
        return {
            "rows": 0 if kept is None else kept.rows,
            "keys": 0 if kept is None else kept.keys,
            "held": sum(operator.held for operator in self._stateful),
            "gathered": self.gathered,
            "bytes": sum(keeper.nbytes for keeper in self._keepers),
            "live_bytes": sum(keeper.live_nbytes for keeper in self._keepers),
        }

    @property
    def _view(self) -> View:
        if self._kept is None:
            raise ProtocolError("a region in the midst of a dataflow has no view to read")
        return self._kept.view

    # Moves ------------------------------------------------------------------------------------------------------------

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """The hash64 of all keys of that vnode that have state here, ascending and unique. vnodes: the lake's."""
        least, most = vnode_range(vnode, vnodes)
        found = [keeper.hashes_between(least, most) for keeper in self._keepers]
        return key_set(*found)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """All state of the keys with these hash64 (ascending, unique), for :meth:`install` in another region of the
        same plan. The state stays here until :meth:`drop`. The number of batches and the schema of each depend on the
        plan only. Each batch has the key's hash64 as its first column."""
        state = [batch for operator in self._stateful for batch in operator.collect(keys)]
        if self._kept is not None:
            state += self._kept.store.collect(keys)
            state += () if self._kept.pending is None else self._kept.pending.collect(keys)
        return (*state, *(gather.collect(keys) for gather in self._waiting))

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Install what another region has collected, as if all rows of those keys had come here.

        Raises ProtocolError if there is state of them here already.
        """
        parts = iter(state)
        for operator in self._stateful:
            operator.install(list(islice(parts, operator.parts)))
        if self._kept is not None:
            self._kept.store.install(list(islice(parts, self._kept.parts)))
            if self._kept.pending is not None:
                self._kept.pending.install(list(islice(parts, PendingChanges.parts)))
        for gather in self._waiting:
            gather.install(next(parts))

    def drop(self, keys: Hashes) -> None:
        """Forget the keys with these hash64 (ascending, unique), as if they had never been."""
        for keeper in self._keepers:
            keeper.drop(keys)

    @property
    def _waiting(self) -> tuple[Gather, ...]:
        return (*self._gathers.values(), *(gather for gathers in self._unsure.values() for gather in gathers))

    @property
    def _keepers(self) -> tuple[RegionKeeper, ...]:
        kept: list[RegionKeeper] = [] if self._kept is None else [self._kept.store]
        if self._kept is not None and self._kept.pending is not None:
            kept.append(self._kept.pending)
        return (*self._stateful, *kept, *self._waiting)


def _sources_of(region: RegionPlan, number: int) -> list[pa.Schema]:
    """Of the rows that a node is given."""
    schemas = [*(entry.schema for entry in region.inputs), *(node.schema for node in region.nodes)]
    return [schemas[source] for source in region.nodes[number - len(region.inputs)].inputs]


def _applied_at_once(operator: Operator, rows: Sequence[Batch | None]) -> Batch | None:
    """What a node makes of the changes of its inputs, which are net; ``None`` for nothing. Of several inputs, all rows
    that go do so before any comes: so no row meets one that the epoch does not end with. A map gets all rows at once,
    in the order in which they came."""
    if isinstance(operator, StatefulMap | _FilteringMap):
        return operator.apply_together(rows) if any(rows) else None
    net = [None if each is None else consolidated(each) for each in rows]
    changes = [(place, batch) for place, batch in enumerate(net) if batch is not None]
    if len(net) > 1:
        gone = [(place, batch, _goes(batch)) for place, batch in changes]
        changes = [(place, batch.filtered(goes)) for place, batch, goes in gone]
        changes += [(place, batch.filtered(~goes)) for place, batch, goes in gone]
    made = [operator.apply(place, batch) for place, batch in changes if len(batch)]
    return consolidated(concatenated(made)) if made else None


def _goes(batch: Batch) -> Mask:
    return np.zeros(len(batch), np.bool_) if batch.weight is None else batch.weight < 0


def _hashed(rows: Batch, key: Sequence[str]) -> Hashes:
    return hash64([rows.rows.column(column) for column in key], len(rows))


def _pending(view: DataflowPlan, store: ViewStore, source: pa.Schema) -> PendingChanges | None:
    routing_key = pa.schema([source.field(name) for name in store.key])
    return PendingChanges(view.key, view.schema, routing_key) if view.logs_changes else None


def _store_of(plan: ViewStore, source: pa.Schema) -> Store:
    if plan.aggregate is None:
        if plan.keep is not None:
            return RecentRows(source, plan.key, plan.keep)
        return RowCounts(source, plan.key) if plan.retracts else Rows(source, plan.key)
    return Aggregate(plan.aggregate, source, plan.key)
