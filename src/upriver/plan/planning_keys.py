"""By which key each step's rows are best routed, and where they must be exchanged for it.

A step stands in the region of whoever uses its rows if it can have them there by the wanted key; otherwise it ends a
region of its own, whose key is its own choice, and its rows are exchanged. What counts is, in this order: few
exchanges; few indexes that Spark would have to make besides the tables' own; keys of many columns, which spread best.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from upriver.plan.column_names import plain_columns
from upriver.plan.ops import Aggregate, Filter, Join, Latest, Project, Scan, SetOperation, StatefulMap, TopK, Union
from upriver.plan.plan import TableSpec
from upriver.plan.planning_shape import is_hashable
from upriver.plan.planning_steps import Step
from upriver.plan.routing import LEFT_HOLDS, RIGHT_HOLDS, Key

Places = tuple[int, ...]
"""Which of the columns that an operator brings rows together by are the routing key."""


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """exchanges: edges between regions. indexes: of tables, that are not their own keys."""

    exchanges: int = 0
    indexes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.exchanges + other.exchanges, self.indexes + other.indexes)


EXCHANGE = Cost(exchanges=1)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a step's rows come about if nobody wants them by any key. inputs: the key by which each of the step's inputs
    is wanted; ``None``: the step keeps nothing, and leaves it to them."""

    cost: Cost
    inputs: tuple[Key, ...] | None


class Keys:
    """The choice for every step of a query."""

    def __init__(self, root: Step, tables: Mapping[str, TableSpec]) -> None:
        self._tables = tables
        self._shared = _shared(root)
        self._choices: dict[Step, Choice] = {}
        self._inside: dict[tuple[Step, Key], Cost | None] = {}

    def cuts(self, step: Step, key: Key) -> bool:
        """Whether the step ends a region, and its rows are exchanged by this key, of its columns."""
        inside, outside = self._cost_inside(step, key), self.choice(step).cost + EXCHANGE
        if inside is None or inside.exchanges > outside.exchanges:
            return True
        # With as many exchanges either way, the later one is of fewer rows; but not below a step that adds rows up.
        return inside.exchanges == outside.exchanges and not self._passes_on(step)

    def cost(self, step: Step, key: Key) -> Cost:
        """Of having the step's rows by this key."""
        inside = self._cost_inside(step, key)
        return self.choice(step).cost + EXCHANGE if inside is None or self.cuts(step, key) else inside

    def choice(self, step: Step) -> Choice:
        """How the step is had by itself."""
        choice = self._choices.get(step)
        if choice is None:
            choice = self._choices[step] = self._chosen(step)
        return choice

    def _cost_inside(self, step: Step, key: Key) -> Cost | None:
        """Of having the step in the region of who wants its rows by this key; ``None`` if it cannot stand there."""
        if (step, key) not in self._inside:
            self._inside[step, key] = self._counted(step, key)
        return self._inside[step, key]

    def _counted(self, step: Step, key: Key) -> Cost | None:
        if isinstance(step.op, Scan):
            own = self._tables[step.op.table].key
            return Cost(indexes=int(key != own)) if key and _routable(step, key) else None
        inputs = inward(step, key)
        if inputs is None:
            return None
        if isinstance(step.op, Filter | Project) and core(step) not in self._shared:
            return self._cost_inside(step.inputs[0], inputs[0])  # a cut is better behind the step than before it
        return self._sum(step, inputs)

    def _sum(self, step: Step, inputs: Sequence[Key]) -> Cost:
        return sum((self.cost(part, key) for part, key in zip(step.inputs, inputs, strict=True)), Cost())

    def _passes_on(self, step: Step) -> bool:
        """Whether rows had better be exchanged before the step than behind it, if it makes no other difference."""
        return isinstance(step.op, Union) or (isinstance(step.op, Filter | Project) and core(step) in self._shared)

    def _chosen(self, step: Step) -> Choice:
        if step.stateless:
            return Choice(Cost(), None)
        if isinstance(step.op, Filter | Project):
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
        """Keys worth a thought: those by which the inputs are had for nothing, the widest, and the single columns."""
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
        """Keys by which the step's rows come from the tables as they are."""
        match step.op:
            case Scan(table):
                yield self._tables[table].key
            case Project(projection):
                outputs = {source: name for name, source in reversed(plain_columns(projection).items())}
                for key in self._natural(step.inputs[0]):
                    if set(key) <= set(outputs):
                        yield tuple(outputs[column] for column in key)
            case _:
                for part in step.inputs:
                    yield from (key for key in self._natural(part) if inward(step, key) is not None)


def inward(step: Step, key: Key) -> tuple[Key, ...] | None:
    """By which keys a step must have its inputs for its rows to be had by ``key``; ``None``: there are none.

    A step that keeps something needs all rows that it brings together in one place.
    """
    match step.op:
        case Filter() | Union():
            return tuple(key for _ in step.inputs)
        case Project(projection):
            sources = plain_columns(projection)
            mapped = tuple(sources[column] for column in key if column in sources)
            return (mapped,) if len(set(mapped)) == len(key) else None
        case Join():
            return _inward_of_join(step, step.op, key)
        case Scan():
            return None
        case _:
            columns = _compared(step)
            fits = set(key) <= set(columns[0]) if key else not columns[0]
            return tuple(key for _ in step.inputs) if fits else None


def core(step: Step) -> Step:
    """The step below all filters and projections."""
    while isinstance(step.op, Filter | Project):
        (step,) = step.inputs
    return step


def _inward_of_join(step: Step, op: Join, key: Key) -> tuple[Key, Key] | None:
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
    """The columns by which a step brings rows together: of each input, in the same order."""
    match step.op:
        case Aggregate(plan):
            return (plan.group,)
        case TopK():
            return (step.op.partition,)
        case Latest() | StatefulMap():
            return (step.op.key,)
        case Join():
            return (step.op.left_key, step.op.right_key)
        case SetOperation() | Union():
            return tuple(tuple(step.schema.names) for _ in step.inputs)
        case _:
            raise AssertionError(f"{step.op} brings no rows together")


def _usable(step: Step, columns: Sequence[Key]) -> Places:
    """Places of columns by which rows can be routed, no column twice."""
    chosen: list[int] = []
    for place in range(len(columns[0])):
        hashable = all(is_hashable(part, names[place]) for part, names in zip(step.inputs, columns, strict=True))
        repeats = any(names[place] in {names[other] for other in chosen} for names in columns)
        if hashable and not repeats:
            chosen.append(place)
    return tuple(chosen)


def _routable(step: Step, key: Iterable[str]) -> bool:
    return all(is_hashable(step, column) for column in key)


def _shared(root: Step) -> frozenset[Step]:
    """Steps that keep something, and whose rows several steps use."""
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
