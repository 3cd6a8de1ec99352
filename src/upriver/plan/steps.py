"""A query as the planner handles it: steps, and the key by which each step's rows are best routed.

The planner turns the relations of the SQL front end into steps. Each step exists once however often the query repeats
it. An operator whose rows no worker could route is refused here. An upsert table is a scan of its versions, followed by
the latest version of each primary key.

A step stands in the region of the step that uses its rows, if it can have them there by the wanted key. Otherwise it
ends a region of its own, with the key of its own choice, and its rows are exchanged. The planner prefers, in this
order: few exchanges; few indexes that Spark would have to make besides the tables' own; keys of many columns, which
spread best.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as kinds

from upriver.errors import KeyTypeError, ProtocolError
from upriver.hashing import check_hashable
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, plain_columns, quoted, with_columns
from upriver.plan.plan import (
    ALL_ALIKE,
    ALL_ALIKE_SQL,
    ALL_ALIKE_TYPE,
    AggregateOp,
    AggregatePlan,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    LatestOp,
    MapScan,
    Op,
    Projection,
    ProjectOp,
    ReplicateOp,
    SaltOp,
    Scan,
    SetOperationOp,
    StatefulMapOp,
    TableSpec,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowOp,
)
from upriver.plan.plan import UnionOp as UnionAll
from upriver.plan.relation import Relation
from upriver.plan.routing import LEFT_HOLDS, RIGHT_HOLDS, Key
from upriver.plan.row_order import dated_schema, given_schema
from upriver.plan.source import Source
from upriver.plan.two_phases import in_two_phases
from upriver.plan.types import same_type, spark_name

RETRACTING_JOINS = frozenset({JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL, JoinKind.SEMI, JoinKind.ANTI})
"""Joins that may take a row back although none of their inputs does."""


PASSING_OPS = (FilterOp, ProjectOp, SaltOp, ReplicateOp, ExplodeOp, ClockOp)
"""Operators of one input that bring no rows together."""
STATELESS_OPS = (Scan, ValuesOp, UnionOp, *PASSING_OPS)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operator over other steps. :class:`Steps` makes equal steps one. schema: of its rows.

    retracts: whether a row of it may be taken back. stateless: whether it and all steps below bring no rows together.
    """

    op: Op
    inputs: tuple["Step", ...]
    schema: pa.Schema
    retracts: bool
    stateless: bool


class Steps:
    """Makes steps. Filters and projections move below unions, and are merged where possible."""

    def __init__(self, given: Collection[str] = ()) -> None:
        """given: the stateful maps whose rows come from regions of their own."""
        self._given = given
        self._made: dict[tuple[Op, tuple[int, ...], pa.Schema], Step] = {}

    def given(self, op: StatefulMapOp) -> Step | None:
        """The rows of a map, with the columns of their order, if they come from regions of its own."""
        if op.name not in self._given:
            return None
        return self.make(MapScan(op.name, op.key), (), given_schema(op.output))

    def make(self, op: Op, inputs: Sequence[Step], schema: pa.Schema) -> Step:
        """The step with exactly this operator over these inputs."""
        assert len(schema), f"{op} gives no column, so its batches would not know how many rows they have"
        key = (op, tuple(map(id, inputs)), schema)
        step = self._made.get(key)
        if step is None:
            adds_only = isinstance(op, StatefulMapOp)  # even if its inputs take rows back
            retracts = not adds_only and (_retracts(op) or any(step.retracts for step in inputs))
            stateless = isinstance(op, STATELESS_OPS) and all(step.stateless for step in inputs)
            step = self._made[key] = Step(op, tuple(inputs), schema, retracts, stateless)
        return step

    def filter(self, step: Step, predicate: str) -> Step:
        """The rows of the step for which the predicate is true."""
        if isinstance(step.op, UnionOp):
            return self.union([self.filter(part, predicate) for part in step.inputs], step.schema)
        if isinstance(step.op, ProjectOp):
            (source,), sources = step.inputs, plain_columns(step.op.projection)
            if columns_in(predicate) <= set(sources):
                return self.project(self.filter(source, with_columns(predicate, sources)), step.op.projection)
        if isinstance(step.op, ClockOp) and step.op.outputs.isdisjoint(columns_in(predicate)):
            return self.make(step.op, [self.filter(step.inputs[0], predicate)], step.schema)
        side = _side(step, predicate)
        if side is not None:
            inputs = list(step.inputs)
            inputs[side] = self.filter(inputs[side], predicate)
            return self.make(step.op, inputs, step.schema)
        return self.make(FilterOp(predicate), [step], step.schema)

    def project(self, step: Step, projection: Projection) -> Step:
        """The projection of the step's rows."""
        if projection.schema == step.schema and plain_columns(projection) == {name: name for name in step.schema.names}:
            return step
        if isinstance(step.op, UnionOp):
            return self.union([self.project(part, projection) for part in step.inputs], projection.schema)
        if isinstance(step.op, ProjectOp):
            merged = _merged(projection, step.op.projection)
            if merged is not None:
                return self.project(step.inputs[0], merged)
        return self.make(ProjectOp(projection), [step], projection.schema)

    def union(self, parts: Iterable[Step], schema: pa.Schema) -> Step:
        """The rows of all parts. Stateless parts are put together: one region can read them all."""
        flat = [inner for part in parts for inner in (part.inputs if isinstance(part.op, UnionOp) else [part])]
        easy = [part for part in flat if part.stateless]
        if 1 < len(easy) < len(flat):
            flat = [self.make(UnionOp(), easy, schema), *(part for part in flat if not part.stateless)]
        return flat[0] if len(flat) == 1 else self.make(UnionOp(), flat, schema)

    def narrowed(self, step: Step, columns: Iterable[str]) -> Step:
        """The step's rows with only these of its columns, in the step's order."""
        wanted = set(columns)
        return self.project(step, plain(field for field in step.schema if field.name in wanted))


def plain(fields: Iterable[pa.Field]) -> Projection:
    """The projection to these columns, unchanged."""
    schema = pa.schema(list(fields))
    return Projection(tuple(map(quoted, schema.names)), schema)


def with_everything(step: Step, steps: Steps) -> tuple[Step, str]:
    """The step with a column that holds one value in all rows, and its name: one that is there already, if possible."""
    known = _all_alike(step)
    if known is not None:
        return step, known
    if isinstance(step.op, FilterOp):
        below, name = with_everything(step.inputs[0], steps)
        return steps.filter(below, step.op.predicate), name
    if isinstance(step.op, ProjectOp):
        below, name = with_everything(step.inputs[0], steps)
        field, projection = below.schema.field(name), step.op.projection
        return steps.project(below, projection.longer([quoted(name)], [field])), name
    name = ALL_ALIKE
    while name in step.schema.names:
        name += "_"
    return steps.project(step, plain(step.schema).longer([ALL_ALIKE_SQL], [pa.field(name, ALL_ALIKE_TYPE)])), name


def _all_alike(step: Step) -> str | None:
    """A column that holds one value in all rows of the step."""
    match step.op:
        case ValuesOp():
            return next((name for name in step.schema.names if ALL_ALIKE in name), None)
        case ProjectOp(projection):
            below = _all_alike(step.inputs[0])
            alike = {ALL_ALIKE_SQL, *([] if below is None else [quoted(below)])}
            pairs = zip(projection.schema.names, projection.expressions, strict=True)
            return next((name for name, expression in pairs if expression in alike), None)
        case AggregateOp(plan):
            below = _all_alike(step.inputs[0])
            return below if below in plan.group else None
        case JoinOp(kind):
            held = [part for part, kinds in zip(step.inputs, (LEFT_HOLDS, RIGHT_HOLDS), strict=True) if kind in kinds]
            return next((found for part in held if (found := _all_alike(part)) is not None), None)
        case FilterOp() | SaltOp() | ReplicateOp() | ExplodeOp() | ClockOp():
            return _all_alike(step.inputs[0])
        case _:
            return None


def _retracts(op: Op) -> bool:
    """Whether the operator takes rows back, even if its inputs do not."""
    match op:
        case AggregateOp() | TopKOp() | WindowOp() | ClockOp() | SetOperationOp() | LatestOp():
            return True
        case JoinOp(kind=kind):
            return kind in RETRACTING_JOINS
        case Scan(retracts=retracts):
            return retracts
        case _:
            return False


def _side(step: Step, predicate: str) -> int | None:
    """The input of a join that the predicate can filter, if the join keeps that input's columns unchanged."""
    if isinstance(step.op, JoinOp) and (named := columns_in(predicate)):
        for side, kinds in enumerate((LEFT_HOLDS, RIGHT_HOLDS)):
            if step.op.kind in kinds and named <= set(step.inputs[side].schema.names):
                return side
    return None


def _merged(outer: Projection, inner: Projection) -> Projection | None:
    """One projection for two, if that computes nothing twice, and nothing that was not computed before."""
    computed = dict(zip(inner.schema.names, inner.expressions, strict=True))
    inner_plain, outer_plain = plain_columns(inner), plain_columns(outer)
    expressions = []
    for expression, name in zip(outer.expressions, outer.schema.names, strict=True):
        if name in outer_plain:
            expressions.append(computed[outer_plain[name]])
        elif columns_in(expression) <= set(inner_plain):
            expressions.append(with_columns(expression, inner_plain))
        else:
            return None
    repeated = [text for text in expressions if text not in map(quoted, inner_plain.values())]
    if len(set(repeated)) < len(repeated):
        return None
    return Projection(tuple(expressions), outer.schema)


Fault = tuple[str, str]
"""What is not supported, and what to do instead."""


def shaped(source: Source, relation: Relation, tables: Mapping[str, TableSpec], steps: Steps) -> Step:
    """The relation as steps. Raises UnsupportedSql for an operator whose rows no key can bring together."""
    if isinstance(relation.op, StatefulMapOp):
        given = steps.given(relation.op)
        if given is not None:
            return steps.project(given, plain(relation.schema))
        return mapped(source, relation.op, relation, tables, steps)
    inputs = [shaped(source, part, tables, steps) for part in relation.inputs]
    fault = _fault(relation.op, inputs)
    if fault is not None:
        raise source.unsupported(relation.place if source.sql else None, *fault)
    match relation.op:
        case Scan(table):
            return _table(tables[table], steps)
        case FilterOp(predicate):
            return steps.filter(inputs[0], predicate)
        case ProjectOp(projection):
            return steps.project(inputs[0], projection)
        case UnionAll():
            return steps.union(inputs, relation.schema)
        case AggregateOp(plan):
            return _aggregated(replace(plan, retracts=inputs[0].retracts), inputs[0], relation.schema, steps)
        case _:
            return steps.make(relation.op, inputs, relation.schema)


def mapped(
    source: Source,
    op: StatefulMapOp,
    relation: Relation,
    tables: Mapping[str, TableSpec],
    steps: Steps,
    *,
    is_ordered: bool = False,
) -> Step:
    """The rows of a stateful map; with the columns of their order, if they go to another map. Raises UnsupportedSql."""
    op = replace(op, is_ordered=is_ordered)
    inputs: list[Step] = []
    for entry, part in zip(op.inputs, relation.inputs, strict=True):
        match part.op:
            case StatefulMapOp() as upstream:
                rows = steps.given(upstream)
                inputs.append(rows or mapped(source, upstream, part, tables, steps, is_ordered=True))
            case Scan(table) if not entry.changes and op.reads_epochs:
                spec = tables[table]
                inputs.append(steps.make(Scan(table, is_dated=True), (), dated_schema(spec.schema)))
            case _:
                inputs.append(shaped(source, part, tables, steps))
        if not entry.changes and inputs[-1].retracts:
            raise source.unsupported(
                None, "stateful_map over a table with retain", "Read a view of it, by its changes."
            )
    fault = _no_key(inputs[0], op.inputs[0].key, "a stateful map by")
    if fault is not None:
        raise source.unsupported(None, *fault)
    return steps.make(op, inputs, given_schema(relation.schema) if is_ordered else relation.schema)


def _aggregated(plan: AggregatePlan, source: Step, schema: pa.Schema, steps: Steps) -> Step:
    """The groups of a step's rows; of all rows in two phases, if possible."""
    op, below = source.op, source.inputs
    phases = in_two_phases(plan, op.projection, below[0].schema) if isinstance(op, ProjectOp) else None
    if phases is None:
        return steps.make(AggregateOp(plan), [source], schema)
    rows = steps.project(below[0], phases.rows)
    slot = pa.field(phases.salt.column, pa.int32())
    salted = steps.make(phases.salt, [rows], pa.schema([*rows.schema, slot]))
    results = [pa.field(call.output, call.type) for call in phases.slots.calls]
    groups = pa.schema([*(salted.schema.field(name) for name in phases.slots.group), *results])
    slots = steps.make(AggregateOp(phases.slots), [salted], groups)
    alike = source.schema.field(phases.whole.group[0])
    parts = steps.project(slots, plain(results).longer([ALL_ALIKE_SQL], [alike]))
    whole = steps.make(AggregateOp(phases.whole), [parts], phases.whole_schema)
    return steps.project(whole, phases.output)


def is_hashable(step: Step, column: str) -> bool:
    """Whether rows can be routed by this column."""
    try:
        check_hashable(step.schema.field(column).type, column)
    except KeyTypeError:
        return False
    return True


def _table(table: TableSpec, steps: Steps) -> Step:
    leaves = table.retain is not None
    if not table.primary_key:
        return steps.make(Scan(table.name, leaves), (), table.schema)
    versions = steps.make(Scan(table.name), (), table.schema)
    at = None if table.retain is None else table.retain.column
    return steps.make(LatestOp(table.primary_key, table.order_by, table.deletes, at), [versions], table.schema)


def _fault(op: Op, inputs: Sequence[Step]) -> Fault | None:
    match op:
        case AggregateOp(plan):
            return _no_key(inputs[0], plan.group, "GROUP BY")
        case TopKOp() | WindowOp():
            return _no_key(inputs[0], op.partition, "PARTITION BY")
        case SetOperationOp():
            return _no_key(inputs[0], inputs[0].schema.names, op.kind.upper())
        case JoinOp():
            return _fault_of_join(op, *inputs)
        case _:
            return None


def _no_key(step: Step, columns: Sequence[str], what: str) -> Fault | None:
    """Whether no column can route the rows that belong together. Without any column, all rows meet in one place."""
    if not columns or any(is_hashable(step, column) for column in columns):
        return None
    listed = ", ".join(f"{column} {spark_name(step.schema.field(column).type)}" for column in columns)
    return f"{what} of nothing but {listed}, by which rows cannot be hashed,", "Add a plain column."


def _fault_of_join(op: JoinOp, left: Step, right: Step) -> Fault | None:
    for one, other in zip(op.left_key, op.right_key, strict=True):
        types = left.schema.field(one).type, right.schema.field(other).type
        if not same_type(*types):
            raise ProtocolError(f"a join compares {one} {types[0]} with {other} {types[1]}")
    if not op.left_key:
        return "a join without an equality", "Say ON which columns rows agree."
    return _no_key(left, op.left_key, "a join ON an equality")


Places = tuple[int, ...]
"""Which of an operator's key columns are the routing key."""


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """exchanges: edges between regions. indexes: of tables, other than the tables' own keys."""

    exchanges: int = 0
    indexes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.exchanges + other.exchanges, self.indexes + other.indexes)


EXCHANGE = Cost(exchanges=1)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a step's rows are computed if no other step wants them by a key. inputs: the key by which each input of the
    step is wanted; ``None``: the step is stateless, and leaves the key to its inputs."""

    cost: Cost
    inputs: tuple[Key, ...] | None


class StepKeys:
    """The choice for every step of a query."""

    def __init__(self, root: Step, tables: Mapping[str, TableSpec]) -> None:
        self._root = root
        self._tables = tables
        self._shared = _shared(root)
        self._in_order = _in_order(root)
        self._choices: dict[Step, Choice] = {}
        self._inside: dict[tuple[Step, Key], Cost | None] = {}

    def cuts(self, step: Step, key: Key) -> bool:
        """Whether the step ends a region and exchanges its rows by this key, of its columns."""
        inside, outside = self._cost_inside(step, key), self.choice(step).cost + EXCHANGE
        if inside is None:
            return True
        if step in self._in_order:
            return False  # an exchange behind it would lose the order of its rows
        if inside.exchanges > outside.exchanges:
            return True
        # With equal exchanges, the later one has fewer rows; but not below a step that adds rows up.
        return inside.exchanges == outside.exchanges and not self._passes_on(step)

    def cost(self, step: Step, key: Key) -> Cost:
        """The cost of the step's rows by this key."""
        inside = self._cost_inside(step, key)
        return self.choice(step).cost + EXCHANGE if inside is None or self.cuts(step, key) else inside

    def choice(self, step: Step) -> Choice:
        """How the step is computed by itself."""
        choice = self._choices.get(step)
        if choice is None:
            choice = self._choices[step] = self._chosen(step)
        return choice

    def _cost_inside(self, step: Step, key: Key) -> Cost | None:
        """The cost of the step inside the region that wants its rows by this key; ``None`` if it cannot stand there."""
        if (step, key) not in self._inside:
            self._inside[step, key] = self._counted(step, key)
        return self._inside[step, key]

    def _counted(self, step: Step, key: Key) -> Cost | None:
        if isinstance(step.op, Scan):
            own = self._tables[step.op.table].key
            return Cost(indexes=int(key != own)) if key and _routable(step, key) else None
        if isinstance(step.op, ValuesOp):
            return Cost() if key and _routable(step, key) else None
        if isinstance(step.op, MapScan):
            return EXCHANGE if _routable(step, key) else None
        inputs = inward(step, key)
        if inputs is None:
            return None
        if isinstance(step.op, PASSING_OPS) and core(step) not in self._shared:
            return self._cost_inside(step.inputs[0], inputs[0])  # a cut is better behind the step than before it
        return self._sum(step, inputs)

    def _sum(self, step: Step, inputs: Sequence[Key]) -> Cost:
        return sum((self.cost(part, key) for part, key in zip(step.inputs, inputs, strict=True)), Cost())

    def _passes_on(self, step: Step) -> bool:
        """Whether to exchange rows before the step rather than behind it, other things being equal."""
        return isinstance(step.op, UnionOp) or (isinstance(step.op, PASSING_OPS) and core(step) in self._shared)

    def _chosen(self, step: Step) -> Choice:
        if step.stateless:
            return Choice(Cost(), None)
        if isinstance(step.op, MapScan):
            return Choice(EXCHANGE, None)
        if isinstance(step.op, PASSING_OPS):
            return Choice(self.choice(step.inputs[0]).cost, None)
        columns = _compared(step)
        options = [
            tuple(tuple(names[place] for place in places) for names in columns)
            for places in self._options(step, columns)
        ]
        costs = [self._sum(step, keys) for keys in options]
        best = min(range(len(options)), key=lambda number: (costs[number], -len(options[number][0])))
        return Choice(costs[best], options[best])

    def _options(self, step: Step, columns: Sequence[Key]) -> list[Places]:
        """Keys to consider: those by which the inputs cost nothing, the widest, and the single columns."""
        if not columns[0]:
            return [()]
        usable = _usable(step, columns)
        cheap = [
            tuple(place for place in usable if self.cost(part, (names[place],)).exchanges == 0)
            for part, names in zip(step.inputs, columns, strict=True)
        ]
        natural = [
            tuple(map(names.index, key))
            for part, names in zip(step.inputs, columns, strict=True)
            for key in self._natural(part)
            if set(key) <= {names[place] for place in usable}
        ]
        everywhere = tuple(place for place in usable if all(place in places for places in cheap))
        options = [*natural, everywhere, *cheap, usable, *((place,) for place in usable)]
        return list(dict.fromkeys(option for option in options if option))

    def _natural(self, step: Step) -> Iterator[Key]:
        """Keys by which the tables give the step's rows without an exchange."""
        match step.op:
            case Scan(table):
                yield self._tables[table].key
            case ProjectOp(projection):
                outputs = {source: name for name, source in reversed(plain_columns(projection).items())}
                for key in self._natural(step.inputs[0]):
                    if set(key) <= set(outputs):
                        yield tuple(outputs[column] for column in key)
            case _:
                for part in step.inputs:
                    yield from (key for key in self._natural(part) if inward(step, key) is not None)


def inward(step: Step, key: Key) -> tuple[Key, ...] | None:
    """The keys by which a step needs its inputs, so that its rows come by ``key``; ``None`` if there are none.

    A stateful step needs all rows that belong together in one place.
    """
    match step.op:
        case FilterOp() | UnionOp():
            return tuple(key for _ in step.inputs)
        case ProjectOp(projection):
            sources = plain_columns(projection)
            mapped = tuple(sources[column] for column in key if column in sources)
            return (mapped,) if len(set(mapped)) == len(key) else None
        case JoinOp():
            return _inward_of_join(step, step.op, key)
        case SaltOp() | ReplicateOp():
            return None if step.op.column in key else (key,)
        case ExplodeOp():
            return (key,) if set(key).isdisjoint(step.op.made) else None
        case ClockOp():
            return None if step.op.outputs.intersection(key) else (key,)
        case Scan() | MapScan() | ValuesOp():
            return None
        case _:
            columns = _compared(step)
            if isinstance(step.op, StatefulMapOp):
                places = [step.op.key.index(name) for name in key] if set(key) <= set(step.op.key) else []
                return tuple(tuple(names[place] for place in places) for names in columns) if places else None
            fits = set(key) <= set(columns[0]) if key else not columns[0]
            return tuple(key for _ in step.inputs) if fits else None


def _in_order(root: Step) -> frozenset[Step]:
    """Of a stateful map, the steps whose rows are to stay in their order: the map, and what is kept of its rows if it
    feeds others."""
    op = core(root).op
    if not isinstance(op, StatefulMapOp) or not (root.op is op or op.is_ordered):
        return frozenset()
    return frozenset({root, core(root)})


def core(step: Step) -> Step:
    """The step below all filters and projections."""
    while isinstance(step.op, PASSING_OPS):
        (step,) = step.inputs
    return step


def _inward_of_join(step: Step, op: JoinOp, key: Key) -> tuple[Key, Key] | None:
    places: list[int] = []
    for column in key:
        if op.kind in LEFT_HOLDS and column in op.left_key:
            places.append(op.left_key.index(column))
        elif op.kind in RIGHT_HOLDS and column in op.right_key:
            places.append(op.right_key.index(column))
        else:
            return None
    left, right = (tuple(names[place] for place in places) for names in (op.left_key, op.right_key))
    return (left, right) if key and len(set(left)) == len(set(right)) == len(key) else None


def _compared(step: Step) -> tuple[Key, ...]:
    """The columns by which a step brings rows together: for each input, in the same order."""
    match step.op:
        case AggregateOp(plan):
            return (plan.group,)
        case TopKOp() | WindowOp():
            return (step.op.partition,)
        case LatestOp():
            return (step.op.key,)
        case StatefulMapOp():
            return tuple(source.key for source in step.op.inputs)
        case JoinOp():
            return (step.op.left_key, step.op.right_key)
        case SetOperationOp() | UnionOp():
            return tuple(tuple(step.schema.names) for _ in step.inputs)
        case _:
            raise AssertionError(f"{step.op} brings no rows together")


def _usable(step: Step, columns: Sequence[Key]) -> Places:
    """The places of columns that can route rows, no column twice. Structs and arrays do where there is no other."""
    chosen: list[int] = []
    for place in range(len(columns[0])):
        hashable = all(is_hashable(part, names[place]) for part, names in zip(step.inputs, columns, strict=True))
        repeats = any(names[place] in {names[other] for other in chosen} for names in columns)
        if hashable and not repeats:
            chosen.append(place)
    plain = [place for place in chosen if not kinds.is_nested(step.inputs[0].schema.field(columns[0][place]).type)]
    return tuple(plain or chosen)


def _routable(step: Step, key: Iterable[str]) -> bool:
    return all(is_hashable(step, column) for column in key)


def _shared(root: Step) -> frozenset[Step]:
    """Stateful steps whose rows several steps use."""
    users: dict[Step, set[Step]] = {}
    todo = [root]
    while todo:
        step = todo.pop()
        for part in step.inputs:
            if part not in users:
                users[part] = set()
                todo.append(part)
            users[part].add(step)
    return frozenset(part for part, above in users.items() if len(above) > 1 and not part.stateless)
