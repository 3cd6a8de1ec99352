"""The planner: cuts a view's query into regions, and says by which key each is routed.

Read in this order: planning_steps (the query as the planner has it), planning_shape (what is refused), planning_prune
(columns that nobody needs), planning_keys (which keys, hence where to cut), and this module, which writes the regions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa

from upriver.errors import DeclarationError
from upriver.plan.algebra import Relation
from upriver.plan.column_names import plain_columns
from upriver.plan.graph import ExchangeEdge, Input, LakeEdge, Node, RegionPlan, ViewStore
from upriver.plan.ops import Aggregate, Filter, Project, Scan
from upriver.plan.plan import AggregatePlan, TableSpec
from upriver.plan.planning_keys import Keys, core, inward
from upriver.plan.planning_prune import pruned
from upriver.plan.planning_shape import is_hashable, shaped
from upriver.plan.planning_steps import Step, Steps, plain
from upriver.plan.planning_words import why_cut, why_keyed, why_looked_up
from upriver.plan.routing import Key
from upriver.plan.sql_source import Source
from upriver.plan.sql_types import spark_name


def plan_regions(
    name: str, relation: Relation, key: Sequence[str], tables: Mapping[str, TableSpec], sql: str = ""
) -> tuple[RegionPlan, ...]:
    """The regions of a view, each after those that feed it; the last one has the store, and the view's name.

    key: columns of the relation, in any case. tables: all that the relation reads. sql: the view's, which messages
    show the place in; empty for a view that has none.

    Raises UnsupportedSql where rows that belong together cannot be routed to one place, DeclarationError for a key
    that is none.
    """
    steps = Steps()
    root = pruned(shaped(Source(name, sql), relation, tables, steps), steps)
    wanted = view_key(name, root.schema, key)
    for column in wanted:
        if not is_hashable(root, column):
            type = spark_name(root.schema.field(column).type)
            raise DeclarationError(
                f"view {name!r}: its key {column!r} is of type {type}, by which rows cannot be looked up. Choose "
                "another column."
            )
    kept, store = _stored(root, wanted)
    last = _Draft(why_looked_up(wanted), name)
    return _Regions(name, Keys(kept, tables), tables).planned(last, kept, store)


def view_key(name: str, schema: pa.Schema, key: Sequence[str]) -> Key:
    """A view's key as its columns spell it, whatever their case in ``key``. Raises DeclarationError."""
    if not key:
        raise DeclarationError(
            f"view {name!r}: its key has no column. Name the output columns that it is looked up by."
        )
    spelled = {column.lower(): column for column in schema.names}
    unknown = next((column for column in key if column.lower() not in spelled), None)
    if unknown is not None:
        columns = ", ".join(schema.names)
        raise DeclarationError(f"view {name!r}: its key {unknown!r} is none of its columns. They are {columns}.")
    found = tuple(spelled[column.lower()] for column in key)
    if len(set(found)) < len(found):
        raise DeclarationError(f"view {name!r}: its key names a column twice, {', '.join(found)}. Leave one out.")
    return found


# What is kept of the view ---------------------------------------------------------------------------------------------


def _stored(root: Step, key: Key) -> tuple[Step, ViewStore]:
    """What goes into the store, and the store.

    If the view is looked up by what its last step groups by, it keeps the groups; else its rows.
    """
    step, output, predicates = root, plain(root.schema), list[str]()
    if isinstance(step.op, Project):
        output = step.op.projection
        (step,) = step.inputs
    while isinstance(step.op, Filter):
        predicates.insert(0, step.op.predicate)
        (step,) = step.inputs
    if isinstance(step.op, Aggregate):
        sources = plain_columns(output)
        routing = tuple(dict.fromkeys(sources[column] for column in key if sources.get(column) in step.op.plan.group))
        if len(routing) == len(key):
            having = reduce(_and_then, reversed(predicates)) if predicates else None
            (kept,) = step.inputs
            return kept, ViewStore(routing, _routed_first(step.op.plan, routing), having, output, kept.retracts)
    return root, ViewStore(key, None, None, plain(root.schema), root.retracts)


def _and_then(second: str, first: str) -> str:
    """Both predicates; as with two filters, the second is asked only where the first is true."""
    return f"CASE WHEN {first} THEN {second} ELSE FALSE END"


def _routed_first(plan: AggregatePlan, routing: Key) -> AggregatePlan:
    return replace(plan, group=(*routing, *(column for column in plan.group if column not in routing)))


# Regions --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Draft:
    """A region that is being written. why: of its key. users: the regions that its rows go to, once it is finished.

    A node's inputs are numbers below 0 for the region's inputs (-1 is the first) and 0, 1, ... for nodes: only at the
    end is it known how many inputs there are.
    """

    why: str
    name: str = ""
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    users: list[tuple[Step, Key, "_Draft"]] = field(default_factory=list)

    def input(self, entry: Input) -> int:
        """The number of this input, which is there once."""
        if entry not in self.inputs:
            self.inputs.append(entry)
        return -1 - self.inputs.index(entry)

    def node(self, step: Step, inputs: Sequence[int]) -> int:
        """The number of the step's operator over these inputs, which is there once."""
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

    def __init__(self, view: str, keys: Keys, tables: Mapping[str, TableSpec]) -> None:
        self._view = view
        self._keys = keys
        self._tables = tables
        self._finished: dict[Step, _Draft] = {}
        """By the step that ends it; each after those that feed it."""

    def planned(self, last: _Draft, kept: Step, store: ViewStore) -> tuple[RegionPlan, ...]:
        """All regions, the last of which has the store."""
        self._by(last, kept, store.key)
        return (*(draft.plan(None) for draft in self._finished.values()), last.plan(store))

    def _by(self, draft: _Draft, step: Step, key: Key) -> int:
        """The number in a region of a step's rows, routed by ``key``."""
        if self._keys.cuts(step, key):
            source = self._ended_by(step)
            source.users.append((step, key, draft))
            return draft.input(Input(ExchangeEdge(source.name, key), step.schema))
        if isinstance(step.op, Scan):
            return draft.input(Input(LakeEdge(step.op.table, key), step.schema))
        keys = inward(step, key)
        assert keys is not None, "a step that cannot be had by a key ends its region"
        return draft.node(step, [self._by(draft, part, wanted) for part, wanted in zip(step.inputs, keys, strict=True)])

    def _ended_by(self, step: Step) -> _Draft:
        """The region whose rows are the step's."""
        if step not in self._finished:
            chooser = core(step)
            draft = _Draft(why_keyed(chooser, self._keys.choice(chooser).inputs))
            self._by_choice(draft, step)
            draft.name = f"{self._view}/{len(self._finished)}"
            self._finished[step] = draft
        return self._finished[step]

    def _by_choice(self, draft: _Draft, step: Step) -> int:
        """The number in a region of a step's rows, which nobody wants by any key."""
        if isinstance(step.op, Scan):
            return draft.input(Input(LakeEdge(step.op.table, self._tables[step.op.table].key), step.schema))
        keys = self._keys.choice(step).inputs
        if keys is None:
            return draft.node(step, [self._by_choice(draft, part) for part in step.inputs])
        return draft.node(step, [self._by(draft, part, wanted) for part, wanted in zip(step.inputs, keys, strict=True)])
