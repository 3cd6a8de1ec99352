"""Explains a dataflow in words a user can check: regions, routing keys, edges, indexes, partial or full and why.

Also decides which views can be partial (document 004, "Partial Eligibility"): keep only the keys that are looked up. A
missing key is filled by reading its rows from the lake. In a region that only lake edges feed, each input is indexed by
the routing key, so the lake finds them directly. Over an exchange edge they are found through the producer's keys, if
those can be traced (``provenance.py``).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import dedent
from typing import Any

from upriver.plan.clock import ClockOp
from upriver.plan.plan import (
    NOT_WANTED,
    WHOLE_PARTITION,
    AggregateOp,
    AggregatePlan,
    ConstantEdge,
    DataflowPlan,
    ExplodeOp,
    FilterOp,
    FunctionForm,
    Input,
    JoinOp,
    LakeEdge,
    LatestOp,
    Node,
    Op,
    Projection,
    ProjectOp,
    Ranking,
    RegionPlan,
    ReplicateOp,
    SaltOp,
    SetOperationOp,
    StatefulMapOp,
    TableSpec,
    TopKOp,
    UnionOp,
    ViewStore,
    WindowCall,
    WindowOp,
    is_in_one_place,
)
from upriver.plan.provenance import (
    KeyTrace,
    Origins,
    called,
    lake_edges,
    listed,
    origin,
    result,
    shown,
    spelled,
    traces,
    why_untraced,
    windowed,
)
from upriver.plan.schemas import rows_from_bytes
from upriver.plan.types import spark_name

Explained = dict[str, Any]

STATELESS_OPS = (FilterOp, ProjectOp, UnionOp, SaltOp, ReplicateOp, ExplodeOp)

_COSTS = {
    FunctionForm.ROW: "once for each row",
    FunctionForm.ARROW: "once for each batch of at most 2048 rows, with Arrow arrays",
    FunctionForm.PANDAS: "once for each batch of at most 2048 rows, with pandas Series",
}
"""What calls of a user's function cost, by its form."""

NameOf = Callable[[str], str]
"""Describes a column of some rows."""


def explain(plan: DataflowPlan, tables: Mapping[str, TableSpec]) -> Explained:
    """The plan as a plain dict; :func:`render` turns it into text. tables: those that it reads.

    indexes: all that the view reads, and whether each is ``new``: made for views, beside the table's own key. In each
    region the numbers of its inputs, then of its steps, count from 0; ``of`` lists the inputs of a step. Columns are
    described by their origin: ``table.column``, or how they are computed from such columns. ignored: the parts of the
    SQL that change no row, such as ORDER BY without LIMIT.
    retention: of tables that rows leave. functions: the user's own that it calls, and how.
    """
    return {
        "view": plan.name,
        "sql": plan.sql,
        "key": list(plan.key),
        "ignored": list(plan.ignored),
        "regions": [_Region(plan, region).explained() for region in plan.regions],
        "indexes": [
            {"table": edge.table, "columns": list(edge.index), "new": edge.index != tables[edge.table].key}
            for edge in dict.fromkeys(replace(edge, is_dated=False) for edge in lake_edges(plan))
        ],
        "retention": [
            {"table": name, "column": retain.column, "interval": retain.words}
            for name in plan.tables
            if (retain := tables[name].retain) is not None
        ],
        "functions": [{"name": one.name, "cost": _COSTS[one.form]} for one in plan.functions],
        "graph": list(_graph(plan)),
    }


def _graph(plan: DataflowPlan) -> Iterator[Explained]:
    """Each way on which rows come to a stateful map. by: the columns by which its region's distributor gives rows to
    workers; ``None``: the rows are computed in the same region."""
    for region in plan.regions:
        for node in region.nodes:
            if isinstance(node.op, StatefulMapOp):
                for source, number in zip(node.op.inputs, node.inputs, strict=True):
                    entry = region.inputs[number] if number < len(region.inputs) else None
                    by = None if entry is None else list(entry.edge.key)
                    yield {"from": source.name, "by": by, "to": node.op.name}


def render(explained: Mapping[str, Any]) -> str:
    """The text of an explanation."""
    lines = [f"view {explained['view']}, looked up by {listed(explained['key'])}", *_sql_lines(explained["sql"])]
    lines += [f"  ignored: {part}" for part in explained["ignored"]]
    lines += [f"  {_way(way)}" for way in explained.get("graph", ())]
    for region in explained["regions"]:
        lines += _rendered(region)
    for index in explained["indexes"]:
        origin = "made for views by Spark, at ingest" if index["new"] else "its own key"
        lines.append(f"  index {listed(index['columns'])} of {index['table']}: {origin}")
    lines += [
        f"  rows of {each['table']} are retained by {each['column']}: {each['interval']}"
        for each in explained["retention"]
    ]
    lines += [f"  calls {each['name']}(), a Python function: {each['cost']}" for each in explained["functions"]]
    return "\n".join(lines)


def _way(way: Mapping[str, Any]) -> str:
    """As document 000 draws a graph."""
    if way["by"] is None:
        return f"[{way['from']}] --> [{way['to']}], in one region"
    return f"[{way['from']}] --> [distributor by {', '.join(way['by'])}] --> [{way['to']}]"


def _sql_lines(sql: str) -> list[str]:
    """The SQL as declared, without the common indentation of its lines."""
    return [f"  | {line.rstrip()}" for line in dedent(sql).strip().splitlines()]


def _rendered(region: Mapping[str, Any]) -> list[str]:
    keyed = f"keyed by {listed(region['routing_key'])}" if region["routing_key"] else "not keyed"
    lines = [f"  region {region['region']}, {keyed}, stage {region['depth']}", f"    why: {region['why']}"]
    lines += [f"    {number}: {edge}" for number, edge in enumerate(region["inputs"])]
    for number, step in enumerate(region["steps"], start=len(region["inputs"])):
        lines.append(f"    {number}, from {' and '.join(map(str, step['of']))}: {step['does']}")
    if region["keeps"] is not None:
        lines.append(f"    keeps {region['keeps']}")
    lines += [f"    rows go to region {send['to']} {_by(send['key'])}" for send in region["sends"]]
    return [*lines, f"    state: {region['state']} ({region['why_state']})"]


def _by(key: Sequence[str]) -> str:
    return f"by {listed(key)}" if key else "in one place"


class _Region:
    """One region of a plan, in words."""

    def __init__(self, plan: DataflowPlan, region: RegionPlan) -> None:
        self._plan = plan
        self._region = region
        self._origins = Origins(plan)

    def explained(self) -> Explained:
        region, store = self._region, self._region.store
        stateless = store is None and all(isinstance(node.op, STATELESS_OPS) for node in region.nodes)
        return {
            "region": region.name,
            "depth": self._plan.depths[region.name],
            "routing_key": self._routing_key(),
            "why": region.why,
            "inputs": [self._edge(number, entry) for number, entry in enumerate(region.inputs)],
            "steps": [{"does": self._step(node), "of": list(node.inputs)} for node in region.nodes],
            "keeps": None if store is None else self._kept(store, partial(self._origins.of, region, region.last)),
            "sends": [
                {"to": send.to, "key": [self._origins.of(region, region.sent, column) for column in send.key]}
                for send in self._plan.sends(region.name)
            ],
            **self._state(stateless),
        }

    def _state(self, stateless: bool) -> dict[str, str]:
        """Which keys are kept, and why."""
        if stateless:
            return {"state": "none", "why_state": "rows pass through"}
        if self._plan.full_because is None:
            why = "a key is kept from its first lookup on, until memory is needed for others"
            return {"state": "partial", "why_state": why}
        return {"state": "full", "why_state": f"every key is kept: {self._plan.full_because}"}

    def _routing_key(self) -> list[str]:
        """By the name that the user knows, if there is one: that of the view, or of a table."""
        if self._region.store is not None:
            return list(self._plan.key)
        edge = self._region.inputs[0].edge
        return [self._origins.of(self._region, 0, column) for column in edge.key]

    def _edge(self, number: int, entry: Input) -> str:
        edge = entry.edge
        if isinstance(edge, LakeEdge):
            return f"lake edge {edge.channel}: rows of {edge.table} in hash64 order of {listed(edge.index)}"
        if isinstance(edge, ConstantEdge):
            return f"constant edge: {rows_from_bytes(edge.rows).num_rows} rows of the query itself"
        by = _by([self._origins.of(self._region, number, column) for column in edge.key])
        return f"exchange edge: rows of region {edge.region} {by}{self._found_by(number)}"

    def _found_by(self, port: int) -> str:
        """How the keys of a partial view's exchange edge are traced."""
        found = traces(self._plan, self._region.name, port) if self._plan.full_because is None else None
        return "" if found is None else f"; keys are found by {' and '.join(map(_traced, found))}"

    def _step(self, node: Node) -> str:
        names = [partial(self._origins.of, self._region, number) for number in node.inputs]
        match node.op:
            case FilterOp(predicate):
                return f"filter {spelled(predicate, names[0])}"
            case ProjectOp(projection):
                return _project(projection, names[0])
            case AggregateOp(plan):
                return _aggregate(plan, names[0])
            case JoinOp():
                condition = "" if node.op.condition is None else f" and {self._over_both(node, node.op.condition)}"
                return f"{_join(node.op, *names)}{condition}{_banded(node.op, *names)}"
            case _:
                return _simple_step(node.op, names[0])

    def _over_both(self, node: Node, condition: str) -> str:
        """A join's condition."""
        return spelled(condition, lambda column: origin(node.op, column, *self._origins.below(self._region, node)))

    def _kept(self, store: ViewStore, name_of: NameOf) -> str:
        plan, columns = (
            store.aggregate,
            ", ".join(f"{field.name} {spark_name(field.type)}" for field in store.output.schema),
        )
        if plan is None:
            return f"the rows; gives {columns}"
        having = ""
        if store.having is not None:
            having = f"; read where {spelled(store.having, lambda column: result(plan, column, name_of))}"
        return f"{_aggregate(plan, name_of)}{having}; gives {columns}"


def _traced(trace: KeyTrace) -> str:
    """``table(column) -> column``."""
    producer = trace.producer_key[0] if len(trace.producer_key) == 1 else listed(trace.producer_key)
    return f"{trace.table}{listed(trace.consumer_key)} -> {producer}"


# Steps ----------------------------------------------------------------------------------------------------------------


def _simple_step(op: Op, name_of: NameOf) -> str:
    match op:
        case TopKOp():
            return _top(op, name_of)
        case WindowOp():
            return _window(op, name_of)
        case ClockOp():
            return _clock(op, name_of)
        case UnionOp():
            return "union"
        case SaltOp():
            return f"one of {op.slots} slots for each row, by {listed(map(name_of, op.columns))}"
        case ReplicateOp():
            return f"each row in all of {op.slots} slots: its state is kept so many times"
        case ExplodeOp():
            kept = ", kept once without any" if op.keeps_empty else ""
            return f"each row for each element of {shown(op.elements, name_of)}{kept}"
        case SetOperationOp():
            return f"{op.kind}{' all' if op.all else ''}"
        case LatestOp():
            order = f" by {listed(op.order_by)}" if op.order_by else ""
            gone = "" if op.deleted is None else f", none if {spelled(op.deleted, str)}"
            return f"latest row{order} of each {listed(op.key)}{gone}"
        case StatefulMapOp():
            read = " and ".join(f"{source.name} by {listed(source.key)}" for source in op.inputs)
            return f"stateful map {op.name} per {op.per} of {read}"
        case _:
            raise AssertionError(f"{op} is told elsewhere")


def _clock(op: ClockOp, name_of: NameOf) -> str:
    tests = ", ".join(f"{name_of(test.column)} {test.comparison} {test.sql}" for test in op.tests)
    values = ", ".join(f"{column.sql} {column.pace}" for column in op.columns)
    parts = [f"tests of the clock, for which rows wait that will change: {tests}"] if tests else []
    parts += [f"values of the clock, for which all rows change: {values}"] if values else []
    return "; ".join(parts)


def _project(projection: Projection, name_of: NameOf) -> str:
    return f"columns {listed(spelled(expression, name_of) for expression in projection.expressions)}"


def _aggregate(plan: AggregatePlan, name_of: NameOf) -> str:
    calls = ", ".join(called(call, name_of) for call in plan.calls)
    by = "all rows" if is_in_one_place(plan.group) else f"group by {listed(map(name_of, plan.group))}"
    return f"{by}: {calls or 'distinct values only'}"


def _join(op: JoinOp, left: NameOf, right: NameOf) -> str:
    pairs = zip(op.left_key, op.right_key, op.null_safe, strict=True)
    on = [f"{left(one)} {'<=>' if null_safe else '='} {right(other)}" for one, other, null_safe in pairs]
    return f"{op.kind} join on {' and '.join(on)}"


def _banded(op: JoinOp, left: NameOf, right: NameOf) -> str:
    """How pairs are found without comparing all."""
    bands = [f"{left(band.left)} {'<=' if band.at_most else '>='} {right(band.right)}" for band in op.bands]
    return f"; where a row meets many, they are found by sorted indexes for {' and '.join(bands)}" if bands else ""


def _top(op: TopKOp, name_of: NameOf) -> str:
    order = ", ".join(f"{name_of(order.column)}{' desc' if order.descending else ''}" for order in op.order)
    ranking = "" if op.ranking is Ranking.ROW_NUMBER else f" ({op.ranking})"
    each = f" of each {listed(map(name_of, op.partition))}" if op.partition else ""
    return f"first {op.limit}{ranking} by {order or 'all columns'}{each}"


def _window(op: WindowOp, name_of: NameOf) -> str:
    order = ", ".join(f"{name_of(order.column)}{' desc' if order.descending else ''}" for order in op.order)
    calls = ", ".join(f"{windowed(call, name_of)}{_framed(call)}" for call in op.calls)
    each = f"each {listed(map(name_of, op.partition))}" if op.partition else "all rows"
    return f"window over {each}{f' by {order}' if order else ''}: {calls}"


def _framed(call: WindowCall) -> str:
    """The frame of a function that has one, if it is not the whole partition."""
    if call.frame == WHOLE_PARTITION:
        return ""
    bounds = _bound(call.frame.start, "preceding"), _bound(call.frame.end, "following")
    return f" {call.frame.unit} between {bounds[0]} and {bounds[1]}"


def _bound(distance: float | None, open_end: str) -> str:
    if distance is None:
        return f"unbounded {open_end}"
    return f"{abs(distance)} {'preceding' if distance < 0 else 'following'}" if distance else "current row"


CALLED_ONCE = "a user's function is to see each row, and once"


def why_full(plan: DataflowPlan, wanted: bool, sets_aside: Collection[str]) -> str | None:
    """Why all keys of a view are kept, in words; ``None`` if only looked-up keys need be kept.

    wanted: as declared. sets_aside: the tables whose bad rows are set aside.
    """
    if plan.logs_changes:
        return "its changes are logged, and readers of them read every key"
    if not wanted:
        return NOT_WANTED
    if plan.constants:
        return "it has rows that are in no table: of VALUES or range(), or the row of an aggregate without GROUP BY"
    if (untraced := why_untraced(plan)) is not None:
        return untraced
    if any(isinstance(node.op, StatefulMapOp) for region in plan.regions for node in region.nodes):
        return CALLED_ONCE
    edges = [entry.edge for region in plan.regions for entry in region.inputs]
    aside = sorted({edge.table for edge in edges if isinstance(edge, LakeEdge)} & set(sets_aside))
    if aside:
        return f"bad rows of {', '.join(aside)} are set aside as they come, whether or not a lookup reads their keys"
    return None
