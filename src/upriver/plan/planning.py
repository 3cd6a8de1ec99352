"""The planner: cuts a view's query into regions, and chooses the key by which each is routed.

First it makes steps of the query and refuses what cannot be routed (:mod:`upriver.plan.steps`). It then drops columns
that no step needs, so that they are neither kept nor sent. A step that several others use keeps all columns that any of
them needs, and stays one step. The choice of keys decides where to cut (:class:`upriver.plan.steps.StepKeys`). At last
this module writes the regions.

It also explains, for ``explain``, why a region has its key, and why it ends where it does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa

from upriver.arguments import as_spelled
from upriver.errors import DeclarationError
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, plain_columns
from upriver.plan.plan import (
    AggregateOp,
    AggregatePlan,
    ConstantEdge,
    DataflowPlan,
    ExchangeEdge,
    ExplodeOp,
    FilterOp,
    Input,
    JoinKind,
    JoinOp,
    Keep,
    LakeEdge,
    LatestOp,
    MapScan,
    Node,
    Projection,
    ProjectOp,
    RegionPlan,
    ReplicateOp,
    SaltOp,
    Scan,
    SetOperationOp,
    StatefulMapOp,
    TableSpec,
    TopKOp,
    UnionOp,
    ValuesOp,
    ViewStore,
    WindowCall,
    WindowOp,
    is_in_one_place,
)
from upriver.plan.provenance import A_CONSTANT, listed, origin
from upriver.plan.relation import Relation
from upriver.plan.routing import Key
from upriver.plan.source import Source
from upriver.plan.steps import (
    Step,
    StepKeys,
    Steps,
    core,
    inward,
    is_hashable,
    mapped,
    plain,
    shaped,
    with_everything,
)
from upriver.plan.types import spark_name

Needs = dict[Step, set[str]]
"""For each step, the columns that are needed."""


def pruned(root: Step, steps: Steps) -> Step:
    """The same rows of ``root``, without columns that no step on the way needs."""
    needs = _needs(root)
    done: dict[Step, Step] = {}
    for step in reversed(list(needs)):
        inputs = [done[part] for part in step.inputs]
        done[step] = _rebuilt(step, needs[step], inputs, steps)
    return done[root]


def _needs(root: Step) -> Needs:
    """The needs, ordered so that a step comes before its inputs."""
    needs: Needs = {step: set() for step in _users_first(root)}
    needs[root] = set(root.schema.names)
    for step, needed in needs.items():
        for part, wanted in zip(step.inputs, _wanted(step, needed), strict=True):
            needs[part] |= wanted
    return needs


def _users_first(root: Step) -> list[Step]:
    seen: dict[Step, None] = {}

    def visit(step: Step) -> None:
        for part in step.inputs:
            if part not in seen:
                visit(part)
        seen[step] = None

    visit(root)
    return list(reversed(seen))


def _wanted(step: Step, needed: set[str]) -> list[set[str]]:
    """The columns that a step takes of each of its inputs: those that it needs, or else the first one. A batch without
    columns does not know how many rows it has."""
    wanted = zip(_named_by(step, needed), step.inputs, strict=True)
    return [names or set(part.schema.names[:1]) for names, part in wanted]


def _named_by(step: Step, needed: set[str]) -> list[set[str]]:
    """The columns that a step needs of each of its inputs; there may be none."""
    match step.op:
        case Scan():
            return []
        case FilterOp(predicate):
            return [needed | columns_in(predicate)]
        case ProjectOp(projection):
            outputs = zip(projection.schema.names, projection.expressions, strict=True)
            return [_named(expression for name, expression in outputs if name in needed)]
        case AggregateOp(plan):
            return [_of_groups(_calls(plan, needed))]
        case JoinOp():
            condition = set() if step.op.condition is None else columns_in(step.op.condition)
            bands = {name for band in step.op.bands for name in (band.left, band.right)}
            of_all = needed | condition | bands | {*step.op.left_key, *step.op.right_key}
            return [of_all & set(part.schema.names) for part in step.inputs]
        case LatestOp():
            deleted = set() if step.op.deleted is None else columns_in(step.op.deleted)
            at = set() if step.op.at is None else {step.op.at}
            return [{*needed, *step.op.key, *step.op.order_by, *deleted, *at}]
        case TopKOp():
            return [(needed - {step.op.rank}) | {*step.op.partition, *(order.column for order in step.op.order)}]
        case WindowOp():
            called = {column for call in _window_calls(step.op, needed) for column in call.columns}
            sorted_by = {order.column for order in step.op.order} if called or needed & step.op.outputs else set()
            return [(needed - step.op.outputs) | {*step.op.partition, *sorted_by, *called}]
        case ClockOp():
            return [(needed - step.op.outputs) | {test.column for test in step.op.only(needed).tests}]
        case UnionOp():
            return [needed for _ in step.inputs]
        case SaltOp(column, columns):
            return [(needed - {column}) | {*columns}]
        case ReplicateOp(column):
            return [needed - {column}]
        case ExplodeOp(elements):
            return [(needed - {*step.op.made}) | columns_in(elements)]
        case _:
            return [set(part.schema.names) for part in step.inputs]


def _named(expressions: Iterable[str]) -> set[str]:
    return {column for expression in expressions for column in columns_in(expression)}


def _calls(plan: AggregatePlan, needed: set[str]) -> AggregatePlan:
    """The aggregate without the calls whose results are not needed."""
    return replace(plan, calls=tuple(call for call in plan.calls if call.output in needed))


def _window_calls(op: WindowOp, needed: set[str]) -> tuple[WindowCall, ...]:
    """The window functions whose results are needed."""
    return tuple(call for call in op.calls if call.output in needed)


def _of_groups(plan: AggregatePlan) -> set[str]:
    columns = [column for call in plan.calls for column in (*call.columns, call.where)]
    return {*plan.group, *(column for column in columns if column is not None)}


def _rebuilt(step: Step, needed: set[str], inputs: Sequence[Step], steps: Steps) -> Step:
    """The step over these inputs. It may give more columns than are needed, if they cost nothing."""
    wanted = _wanted(step, needed)
    match step.op:
        case FilterOp(predicate):
            return steps.filter(inputs[0], predicate)
        case ProjectOp(projection):
            return steps.project(inputs[0], _part(projection, needed))
    exact = [steps.narrowed(part, columns) for part, columns in zip(inputs, wanted, strict=True)]
    match step.op:
        case UnionOp():
            return steps.union(exact, _fields(step.schema, needed))
        case AggregateOp(plan):
            kept = _calls(plan, needed)
            outputs = {*kept.group, *(call.output for call in kept.calls)}
            return steps.make(AggregateOp(kept), exact, _fields(step.schema, outputs))
        case JoinOp():
            sides = exact[:1] if step.op.kind in (JoinKind.SEMI, JoinKind.ANTI) else exact
            names = {name for part in sides for name in part.schema.names}
            return steps.make(step.op, exact, _fields(step.schema, names))
        case LatestOp():
            return steps.make(step.op, exact, exact[0].schema)
        case SaltOp() | ReplicateOp():
            return steps.make(step.op, exact, pa.schema([*exact[0].schema, step.schema.field(step.op.column)]))
        case ExplodeOp():
            return steps.make(step.op, exact, pa.schema([*exact[0].schema, *step.op.fields]))
        case TopKOp():
            # The remaining columns decide ties; the query does not say which row of a tie comes first.
            rank = step.op.rank if step.op.rank in needed else None
            ranked = [] if rank is None else [step.schema.field(rank)]
            return steps.make(replace(step.op, rank=rank), exact, pa.schema([*exact[0].schema, *ranked]))
        case WindowOp():
            calls = _window_calls(step.op, needed)
            if not calls:
                return exact[0]
            results = [step.schema.field(call.output) for call in calls]
            return steps.make(replace(step.op, calls=calls), exact, pa.schema([*exact[0].schema, *results]))
        case ClockOp():
            op = step.op.only(needed)
            return steps.make(op, exact, pa.schema([*exact[0].schema, *op.fields])) if op.outputs else exact[0]
        case _:
            return steps.make(step.op, exact, step.schema)


def _part(projection: Projection, needed: set[str]) -> Projection:
    places = [place for place, name in enumerate(projection.schema.names) if name in needed]
    expressions = tuple(projection.expressions[place] for place in places)
    return Projection(expressions, pa.schema([projection.schema.field(place) for place in places]))


def _fields(schema: pa.Schema, names: set[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])


def why_looked_up(key: Key) -> str:
    """The reason for the last region's key. key: of the view."""
    return f"keyed by {listed(key)}, by which the view is looked up"


def why_keyed(step: Step, keys: tuple[Key, ...] | None) -> str:
    """The reason for a region's key that ``step`` chose, which wants its inputs by ``keys``."""
    if keys is None:
        return "keeps nothing, so its rows come by the tables' own keys"
    if not keys[0]:
        return "has all rows in one place, for all of them are compared with each other"
    if is_in_one_place(keys[0]):
        return "has all rows in one place"
    names = [_origins(part, key) for part, key in zip(step.inputs, keys, strict=True)]
    return f"keyed by {' and '.join(dict.fromkeys(names))}, {_what_for(step)}"


def why_cut(step: Step, key: Key, user: str) -> str:
    """user: the region that needs the rows of ``step`` by ``key``."""
    if is_in_one_place(key):
        return f"ends here because {user} needs its rows in one place"
    return f"ends here because {user} needs its rows by {_origins(step, key)}{_obstacle(step, key)}"


def _origin(step: Step, column: str) -> str:
    if isinstance(step.op, Scan):
        return f"{step.op.table}.{column}"
    if isinstance(step.op, MapScan):
        return f"{step.op.name}.{column}"
    if isinstance(step.op, ValuesOp):
        return A_CONSTANT
    schemas = [part.schema for part in step.inputs]
    return origin(step.op, column, schemas, lambda place, name: _origin(step.inputs[place], name))


def _origins(step: Step, columns: Iterable[str]) -> str:
    return listed(_origin(step, column) for column in columns)


def _what_for(step: Step) -> str:
    source = step.inputs[0]
    match step.op:
        case AggregateOp(plan):
            return f"for groups by {_origins(source, plan.group)}"
        case JoinOp():
            return f"for the {step.op.kind} join on {_pairs(step, step.op)}"
        case TopKOp():
            return f"for the first {step.op.limit} of each {_origins(source, step.op.partition)}"
        case WindowOp():
            return f"for window functions over each {_origins(source, step.op.partition)}"
        case LatestOp():
            return f"for the latest row of each {_origins(source, step.op.key)}"
        case StatefulMapOp():
            return f"for the stateful map {step.op.name} of each {listed(step.op.key)}"
        case SetOperationOp():
            return f"for {step.op.kind}, which compares whole rows"
        case _:
            return "which all of its inputs have"


def _pairs(step: Step, op: JoinOp) -> str:
    left, right = step.inputs
    pairs = zip(op.left_key, op.right_key, strict=True)
    return " and ".join(f"{_origin(left, one)} = {_origin(right, other)}" for one, other in pairs)


def _obstacle(step: Step, key: Key) -> str:
    """Why the rows are not there by the key already; if nothing prevents it, why they are exchanged so late."""
    inputs = inward(step, key)
    if inputs is None:
        return _missing(step, key)
    if isinstance(step.op, FilterOp | ProjectOp | UnionOp):
        found = (_obstacle(part, wanted) for part, wanted in zip(step.inputs, inputs, strict=True))
        return next((obstacle for obstacle in found if obstacle), "")
    return ", and fewer rows are exchanged here than before"


def _missing(step: Step, key: Key) -> str:
    match step.op:
        case ProjectOp(projection):
            computed = [column for column in key if column not in plain_columns(projection)]
            return f", and {_origins(step, computed)} is computed" if computed else ""
        case ExplodeOp():
            made = [column for column in key if column in step.op.made]
            return f", and {_origins(step, made)} is an element of a list"
        case AggregateOp(plan):
            return f", which is more than {_origins(step, plan.group)}, by which rows are grouped"
        case JoinOp():
            return f", which is not what the {step.op.kind} join compares"
        case TopKOp():
            return f", which is more than {_origins(step, step.op.partition)}, within which rows are ranked"
        case WindowOp():
            return f", which is more than {_origins(step, step.op.partition)}, over which window functions go"
        case LatestOp():
            return f", which is more than the primary key {_origins(step, step.op.key)}"
        case StatefulMapOp():
            return f", which is more than {listed(step.op.key)}, of which the stateful map {step.op.name} has a state"
        case _:
            return ""


def plan_regions(
    name: str,
    relation: Relation,
    key: Sequence[str],
    tables: Mapping[str, TableSpec],
    sql: str | Source = "",
    keep: Keep | None = None,
    given: Collection[str] = (),
) -> tuple[RegionPlan, ...]:
    """The regions of a view, each after those that feed it; the last one has the store, and the view's name.

    key: columns of the relation, in any case. tables: all that the relation reads. sql: the view's, or its source, for
    the places in messages; empty for a view without SQL. keep: of a stateful map. given: the stateful maps whose rows
    come from regions of their own plans.

    Raises UnsupportedSql if rows that belong together cannot be routed to one place, DeclarationError for an invalid
    key.
    """
    steps = Steps(given)
    root = shaped(sql if isinstance(sql, Source) else Source(name, sql), relation, tables, steps)
    wanted = view_key(name, root.schema, key)
    output = plain(root.schema)
    if not wanted:
        root, together = with_everything(root, steps)
        wanted = (together,)
    root = pruned(root, steps)
    for column in wanted:
        if not is_hashable(root, column):
            type = spark_name(root.schema.field(column).type)
            raise DeclarationError(
                f"view {name!r}: its key {column!r} is of type {type}, by which rows cannot be looked up. Choose "
                "another column."
            )
    kept, store = _stored(root, wanted, output)
    store = replace(store, keep=keep)
    last = _Draft(why_looked_up(tuple(key)), name)
    return _Regions(name, StepKeys(kept, tables), tables).planned(last, kept, store)


FEEDS_ALONE = Keep(0)
"""Of a stateful map that keeps no rows, and only feeds others."""


def plan_together(
    plans: Sequence[DataflowPlan], relations: Mapping[str, Relation], tables: Mapping[str, TableSpec]
) -> tuple[DataflowPlan, ...]:
    """The plans of an app, in which each stateful map is computed once, and feeds all that read it.

    plans: of all views and maps, each planned by itself, those that keep no rows included. relations: of all of them,
    by name. tables: all that they read. Returned: each plan behind those that feed it. A map that keeps no rows has a
    plan if several read it; it is a part of the plan of its only reader.
    """
    by_name = {plan.name: plan for plan in plans}
    reads = _maps_read(by_name, relations)
    readers = {name: [one for one, read in reads.items() if name in read] for name in reads}
    given = {name for name, by in readers.items() if len(by) + (not _feeds_alone(by_name[name])) > 1 and by}
    made: list[DataflowPlan] = []
    for name in reads:
        plan = by_name[name]
        if name in given:
            made.append(replace(plan, regions=_feeding_regions(plan, relations[name], tables, given)))
        elif _feeds_alone(plan):
            continue
        elif reads[name] & given:
            regions = plan_regions(name, relations[name], plan.key, tables, keep=_keep_of(plan), given=given)
            made.append(replace(plan, regions=regions))
        else:
            made.append(plan)
    return tuple(
        replace(plan, feeds=tuple(send for other in made if other is not plan for send in other.sends_here(plan.name)))
        for plan in made
    )


def _feeds_alone(plan: DataflowPlan) -> bool:
    return _keep_of(plan) == FEEDS_ALONE


def _maps_read(plans: Mapping[str, DataflowPlan], relations: Mapping[str, Relation]) -> dict[str, set[str]]:
    """By view or map, the maps that it reads directly; each behind those. Without maps that keep no rows, and that
    none of the others reads."""
    reads: dict[str, set[str]] = {}

    def visit(name: str) -> None:
        if name not in reads:
            read = set(_maps_below(relations[name]))
            for other in sorted(read):
                visit(other)
            reads[name] = read

    for name, plan in plans.items():
        if not _feeds_alone(plan):
            visit(name)
    return reads


def _maps_below(relation: Relation) -> Iterator[str]:
    """The maps that are met first on the way down."""
    for part in relation.inputs:
        if isinstance(part.op, StatefulMapOp):
            yield part.op.name
        else:
            yield from _maps_below(part)


def _feeding_regions(
    plan: DataflowPlan, relation: Relation, tables: Mapping[str, TableSpec], given: Collection[str]
) -> tuple[RegionPlan, ...]:
    """The regions of a stateful map whose last one feeds those of other plans; it has a store, too, if the map keeps
    rows."""
    op, steps = relation.op, Steps(given)
    assert isinstance(op, StatefulMapOp)
    rows = mapped(Source(plan.name, ""), op, relation, tables, steps, is_ordered=True)
    kept = pruned(steps.project(rows, plain(relation.schema)), steps)
    regions = _Regions(plan.name, StepKeys(kept, tables), tables)
    why = why_looked_up(plan.key)
    if _feeds_alone(plan):
        return regions.feeding(
            _Draft(f"keyed by {listed(plan.key)}, for the stateful map {op.name}", plan.name), core(kept)
        )
    store = ViewStore(plan.key, None, None, plain(relation.schema), keep=_keep_of(plan))
    *before, last = regions.planned(_Draft(why, plan.name), kept, store)
    numbers = enumerate((node.op for node in last.nodes), start=len(last.inputs))
    return (*before, replace(last, leaves=next(number for number, each in numbers if each == core(kept).op)))


def _keep_of(plan: DataflowPlan) -> Keep | None:
    store = plan.regions[-1].store
    return None if store is None else store.keep


def view_key(name: str, schema: pa.Schema, key: Sequence[str]) -> Key:
    """A view's key in the spelling of its columns, whatever their case in ``key``. Raises DeclarationError."""
    found = as_spelled(key, schema.names)
    unknown = next((column for column in found if column not in schema.names), None)
    if unknown is not None:
        columns = ", ".join(schema.names)
        raise DeclarationError(f"view {name!r}: its key {unknown!r} is none of its columns. They are {columns}.")
    if len(set(found)) < len(found):
        raise DeclarationError(f"view {name!r}: its key names a column twice, {', '.join(found)}. Leave one out.")
    return found


# What is kept of the view ---------------------------------------------------------------------------------------------


def _stored(root: Step, key: Key, view: Projection) -> tuple[Step, ViewStore]:
    """The step that feeds the store, and the store. view: its columns, of those of ``root``.

    If the view is looked up by the groups of its last step, the store keeps the groups; else it keeps the rows.
    """
    step, columns, predicates = root, plain(root.schema), list[str]()
    if isinstance(step.op, ProjectOp):
        columns = step.op.projection
        (step,) = step.inputs
    while isinstance(step.op, FilterOp):
        predicates.insert(0, step.op.predicate)
        (step,) = step.inputs
    if isinstance(step.op, AggregateOp):
        sources = plain_columns(columns)
        routing = tuple(dict.fromkeys(sources[column] for column in key if sources.get(column) in step.op.plan.group))
        if len(routing) == len(key):
            having = reduce(_and_then, reversed(predicates)) if predicates else None
            (kept,) = step.inputs
            output = _part(columns, set(view.schema.names))
            return kept, ViewStore(routing, _routed_first(step.op.plan, routing), having, output, kept.retracts)
    return root, ViewStore(key, None, None, view, root.retracts)


def _and_then(second: str, first: str) -> str:
    """Both predicates; as with two filters, the second is evaluated only where the first is true."""
    return f"CASE WHEN {first} THEN {second} ELSE FALSE END"


def _routed_first(plan: AggregatePlan, routing: Key) -> AggregatePlan:
    return replace(plan, group=(*routing, *(column for column in plan.group if column not in routing)))


def _hashables(step: Step, columns: Iterable[str]) -> Key:
    return tuple(name for name in columns if is_hashable(step, name))


# Regions --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Draft:
    """A region that is being written. why: of its key. users: the regions that its rows go to, once it is finished.

    A node's inputs are numbers below 0 for the region's inputs (-1 is the first) and 0, 1, ... for nodes: the number of
    inputs is known only at the end.
    """

    why: str
    name: str = ""
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    users: list[tuple[Step, Key, "_Draft"]] = field(default_factory=list)

    def input(self, entry: Input) -> int:
        """The number of this input, which is added once."""
        if entry not in self.inputs:
            self.inputs.append(entry)
        return -1 - self.inputs.index(entry)

    def node(self, step: Step, inputs: Sequence[int]) -> int:
        """The number of the step's operator over these inputs, which is added once."""
        node = Node(step.op, tuple(inputs), step.schema)
        if node not in self.nodes:
            self.nodes.append(node)
        return self.nodes.index(node)

    def plan(self, store: ViewStore | None) -> RegionPlan:
        first = len(self.inputs)
        numbered = (
            replace(node, inputs=tuple(first + number if number >= 0 else -1 - number for number in node.inputs))
            for node in self.nodes
        )
        reasons = dict.fromkeys([self.why, *(why_cut(step, key, user.name) for step, key, user in self.users)])
        return RegionPlan(self.name, tuple(self.inputs), tuple(numbered), store, "; ".join(reasons))


class _Regions:
    """The regions of one view, written from the last one up."""

    def __init__(self, view: str, keys: StepKeys, tables: Mapping[str, TableSpec]) -> None:
        self._view = view
        self._keys = keys
        self._tables = tables
        self._finished: dict[Step, _Draft] = {}
        """By the step that ends the region; each after those that feed it."""

    def planned(self, last: _Draft, kept: Step, store: ViewStore) -> tuple[RegionPlan, ...]:
        """All regions; the last one has the store."""
        self._by(last, kept, store.key)
        return (*(draft.plan(None) for draft in self._finished.values()), last.plan(store))

    def feeding(self, last: _Draft, rows: Step) -> tuple[RegionPlan, ...]:
        """All regions, of which the last one ends with the rows of a stateful map, and keeps none."""
        assert isinstance(rows.op, StatefulMapOp)
        self._by(last, rows, rows.op.key)
        return (*(draft.plan(None) for draft in self._finished.values()), last.plan(None))

    def _by(self, draft: _Draft, step: Step, key: Key) -> int:
        """The number in a region of a step's rows, routed by ``key``."""
        if self._keys.cuts(step, key):
            source = self._ended_by(step)
            source.users.append((step, key, draft))
            return draft.input(Input(ExchangeEdge(source.name, key), step.schema))
        if isinstance(step.op, Scan):
            return draft.input(Input(LakeEdge(step.op.table, key, step.op.is_dated), step.schema))
        if isinstance(step.op, MapScan):
            return draft.input(Input(ExchangeEdge(step.op.name, key), step.schema))
        if isinstance(step.op, ValuesOp):
            return draft.input(Input(ConstantEdge(step.op.rows, key), step.schema))
        keys = inward(step, key)
        assert keys is not None, "a step that cannot be had by a key ends its region"
        return draft.node(step, [self._by(draft, part, wanted) for part, wanted in zip(step.inputs, keys, strict=True)])

    def _ended_by(self, step: Step) -> _Draft:
        """The region that ends with the step's rows."""
        if step not in self._finished:
            chooser = core(step)
            draft = _Draft(why_keyed(chooser, self._keys.choice(chooser).inputs))
            self._by_choice(draft, step)
            draft.name = f"{self._view}/{len(self._finished)}"
            self._finished[step] = draft
        return self._finished[step]

    def _by_choice(self, draft: _Draft, step: Step) -> int:
        """The number in a region of a step's rows, if no step wants them by a key."""
        if isinstance(step.op, Scan):
            return draft.input(Input(LakeEdge(step.op.table, self._tables[step.op.table].key), step.schema))
        if isinstance(step.op, MapScan):
            return draft.input(Input(ExchangeEdge(step.op.name, _hashables(step, step.op.key)), step.schema))
        if isinstance(step.op, ValuesOp):
            return draft.input(Input(ConstantEdge(step.op.rows, _hashables(step, step.schema.names)[:1]), step.schema))
        keys = self._keys.choice(step).inputs
        if keys is None:
            return draft.node(step, [self._by_choice(draft, part) for part in step.inputs])
        return draft.node(step, [self._by(draft, part, wanted) for part, wanted in zip(step.inputs, keys, strict=True)])
