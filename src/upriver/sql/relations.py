"""Relations, made from translated expressions: the parts from which the SQL front end builds its trees.

Joins: the parts of ON that are the key, the conditions on one side alone, and the conditions on pairs of rows.

Conditions of WHERE, ON and QUALIFY are applied one by one, each as early as the rows that it names exist
(:mod:`upriver.sql.pushdown`).

An expression that a single expression above uses once is evaluated there, as Spark does it: inside a branch of a CASE
or behind a FILTER, only if the branch is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.hashing import is_plain_key_type
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, operand_of_case, plain_column, plain_columns, quoted
from upriver.plan.plan import (
    ALL_ALIKE,
    ALL_ALIKE_SQL,
    ALL_ALIKE_TYPE,
    SALT_COLUMNS_MAX,
    SLOTS,
    AggregateOp,
    AggregatePlan,
    Band,
    FilterOp,
    JoinKind,
    JoinOp,
    Projection,
    ProjectOp,
    Ranking,
    Replicated,
    ReplicateOp,
    SaltOp,
    Scan,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowOp,
    is_in_one_place,
)
from upriver.plan.relation import Relation, Scalar, any_fails
from upriver.plan.schemas import rows_from_bytes
from upriver.plan.source import ELSEWHERE, Source
from upriver.plan.types import is_null, is_ordered, same_type, spark_name
from upriver.sql.bands import bands_among
from upriver.sql.logic import conjunction, conjuncts, factored
from upriver.sql.operators import boolean, to_comparable
from upriver.sql.pushdown import (
    LEFT_KEPT,
    LEFT_MATCHED,
    RIGHT_KEPT,
    RIGHT_MATCHED,
    computed_values,
    filtered,
    matchable,
    substituted,
    tested,
    with_names,
)
from upriver.sql.scalars import Context, column_scalar, group_value, typed_name
from upriver.sql.scope import names_in, unique, worded
from upriver.state.columns import has_floats

# Expressions in expressions


def absorbed(
    relation: Relation,
    values: Sequence[Scalar],
    uses: Mapping[str, int],
    build: Callable[[Relation, Sequence[Scalar]], Relation],
) -> Relation:
    """``build`` of a relation and values over it. The values absorb columns that can fail and are used once.

    uses: how often the values, as written, name each column.
    """
    once = {name for name in relation.deferred if uses.get(name) == 1}
    if once and isinstance(relation.op, UnionOp):
        parts = tuple(absorbed(part, values, uses, build) for part in relation.inputs)
        return Relation(UnionOp(), parts, parts[0].schema, relation.place)
    once &= relation.fails
    if not once or not isinstance(relation.op, ProjectOp):
        return build(relation, values)
    opened, inner = _opened(relation, relation.op.projection, once)
    taken = [substituted(value, inner) for value in values]
    absorbing = [value for value in taken if value is not None]
    if len(absorbing) < len(values):
        return build(relation, values)
    assert isinstance(opened.op, ProjectOp)
    sources = plain_columns(opened.op.projection)
    if len(sources) < len(opened.schema):
        return build(opened, absorbing)
    return build(opened.inputs[0], [with_names(value, sources) for value in absorbing])


def _opened(relation: Relation, projection: Projection, names: set[str]) -> tuple[Relation, dict[str, Scalar]]:
    """The projection with the sources of these columns in their place; and the columns' values over the sources."""
    (below,) = relation.inputs
    values = computed_values(relation, projection)
    fields = {field.name: field for field in projection.schema if field.name not in names}
    taken = {name.lower() for name in values}
    known = {source: name for name, source in plain_columns(projection).items()}
    more: dict[str, str] = {}
    for source in sorted(columns_in(" ".join(values[name].sql for name in names)) - known.keys()):
        name = source
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        more[source] = name
        fields[name] = pa.field(name, below.schema.field(source).type)
    kept = {name: value.sql for name, value in values.items() if name not in names}
    kept |= {name: column_scalar(source, fields[name].type).sql for source, name in more.items()}
    inner = {name: with_names(values[name], known | more) for name in names}
    schema = pa.schema([fields[name] for name in kept])
    op = ProjectOp(Projection(tuple(kept.values()), schema))
    rest = {name: value for name, value in relation.values.items() if name not in names}
    opened = Relation(op, (below,), schema, relation.place, relation.fails - names, values=rest)
    return opened, inner


UNBOUNDED = 2**31 - 1
"""The limit of a TopK that no condition bounds. In a finished view it is a window function."""


ALIKE = Scalar(ALL_ALIKE_SQL, ALL_ALIKE_TYPE, nulls=frozenset())
"""A value that all rows have."""


@dataclass(frozen=True, slots=True)
class Output:
    """A column that will be computed."""

    name: str
    value: Scalar


def projected(relation: Relation, outputs: Iterable[Output], place: int | None) -> Relation:
    """These columns for each row."""
    outputs = tuple(outputs)
    schema = pa.schema([pa.field(output.name, output.value.type) for output in outputs])
    projection = Projection(tuple(output.value.sql for output in outputs), schema)
    values = {one.name: one.value for one in outputs if plain_column(one.value.sql) is None}
    fails = frozenset(name for name, value in values.items() if _is_late(value))
    return Relation(ProjectOp(projection), (relation,), schema, place, fails, values=values)


def _is_late(value: Scalar) -> bool:
    """Whether the place of its computation matters."""
    return value.fails or operand_of_case(value.sql) is not None


def computed(relation: Relation, outputs: Sequence[Output], uses: Mapping[str, int], place: int | None) -> Relation:
    """These columns for each row; they absorb columns that can fail and are used once (:func:`absorbed`)."""

    def build(below: Relation, values: Sequence[Scalar]) -> Relation:
        return projected(below, [Output(one.name, value) for one, value in zip(outputs, values, strict=True)], place)

    return absorbed(relation, [one.value for one in outputs], uses, build)


def widened(relation: Relation, outputs: Sequence[Output], place: int | None) -> Relation:
    """The relation's columns, then these."""
    return projected(relation, (*kept(relation), *outputs), place) if outputs else relation


def with_values(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, list[str]]:
    """The relation with each value as a column, and these columns' names. A value that is a column already stays it.

    taken: names that no other column may have, lower case; the new names are added.
    """
    names = {(column_scalar(field.name, field.type).sql, field.type): field.name for field in relation.schema}
    more: list[Output] = []
    for wanted in values:
        meant = wanted.value.sql, wanted.value.type
        if meant not in names:
            names[meant] = unique(wanted.name, taken)
            more.append(Output(names[meant], wanted.value))
    return widened(relation, more, None), [names[wanted.value.sql, wanted.value.type] for wanted in values]


def kept(relation: Relation) -> tuple[Output, ...]:
    """All its columns, unchanged."""
    return tuple(Output(field.name, column_scalar(field.name, field.type)) for field in relation.schema)


def renamed(relation: Relation, names: Sequence[str]) -> Relation:
    """The same columns with these names."""
    if list(names) == relation.schema.names:
        return relation
    fields = zip(names, relation.schema, strict=True)
    return projected(relation, [Output(name, column_scalar(field.name, field.type)) for name, field in fields], None)


def relabelled(relation: Relation, names: Mapping[str, str]) -> Relation:
    """Some of its columns under other names. names: of the columns, by the new ones. A projection on top stays one, so
    that its expressions are evaluated where its own would be."""
    fields = [pa.field(name, relation.schema.field(source).type) for name, source in names.items()]
    schema = pa.schema(fields)
    if not isinstance(relation.op, ProjectOp):
        projection = Projection(tuple(map(quoted, names.values())), schema)
        return Relation(ProjectOp(projection), (relation,), schema, relation.place)
    own = relation.op.projection
    texts = dict(zip(own.schema.names, own.expressions, strict=True))
    fails = frozenset(name for name, source in names.items() if source in relation.fails)
    values = {name: relation.values[source] for name, source in names.items() if source in relation.values}
    projection = Projection(tuple(texts[source] for source in names.values()), schema)
    return Relation(ProjectOp(projection), relation.inputs, schema, relation.place, fails, values=values)


def retyped(relation: Relation, schema: pa.Schema) -> Relation:
    """The same columns with the names and the time zones of the schema."""
    if schema == relation.schema:
        return relation
    assert all(same_type(*pair) for pair in zip(schema.types, relation.schema.types, strict=True)), "other types"
    if isinstance(relation.op, ProjectOp):
        projection = Projection(relation.op.projection.expressions, schema)
        names = dict(zip(relation.schema.names, schema.names, strict=True))
        fails = frozenset(names[name] for name in relation.fails)
        values = {names[name]: value for name, value in relation.values.items()}
        return Relation(ProjectOp(projection), relation.inputs, schema, relation.place, fails, values=values)
    projection = Projection(tuple(map(quoted, relation.schema.names)), schema)
    return Relation(ProjectOp(projection), (relation,), schema, relation.place)


def union(relations: Sequence[Relation], place: int | None) -> Relation:
    """The rows of all of them, with the names of the first, whose types they share."""
    first = relations[0]
    inputs = tuple(retyped(relation, first.schema) for relation in relations)
    return Relation(UnionOp(), inputs, first.schema, place)


def comparable(source: Source, relation: Relation, node: exp.Expr) -> Relation:
    """The relation, if its rows can be compared with each other. Raises UnsupportedSql."""
    for field in relation.schema:
        if not is_ordered(field.type):
            what = f"comparing {spark_name(field.type)}, the column {field.name!r},"
            raise source.unsupported(node, what, "Leave the column out.")
    return relation


def distinct(relation: Relation, place: int | None) -> Relation:
    """Each row once."""
    same = with_equal_values(relation)
    return Relation(AggregateOp(AggregatePlan(tuple(same.schema.names), ())), (same,), same.schema, place)


def with_equal_values(relation: Relation) -> Relation:
    """Values that are equal for Spark as one value: one zero, one NaN."""
    if not any(map(has_floats, relation.schema.types)):
        return relation
    outputs = [Output(output.name, group_value(output.value)) for output in kept(relation)]
    return projected(relation, outputs, None)


# Top k


def bounded(relation: Relation, rank: str, limit: int) -> Relation | None:
    """The relation without rows whose ``rank`` is beyond the limit, if that column numbers rows; the numbering then
    stops there. ``None`` if it does not number rows."""
    if isinstance(relation.op, TopKOp) and relation.op.rank == rank:
        return replace(relation, op=replace(relation.op, limit=min(limit, relation.op.limit)))
    for place, part in enumerate(relation.inputs):
        name = _below(relation, place, rank)
        inner = None if name is None else bounded(part, name, limit)
        if inner is not None:
            return replace(relation, inputs=(*relation.inputs[:place], inner, *relation.inputs[place + 1 :]))
    return None


def _below(relation: Relation, place: int, name: str) -> str | None:
    """The input's column that equals this one, if dropping rows by it below is as good as above."""
    op, part = relation.op, relation.inputs[place]
    if isinstance(op, ProjectOp):
        return plain_columns(op.projection).get(name)
    kept_side = isinstance(op, JoinOp) and op.kind in (LEFT_KEPT, RIGHT_KEPT)[place]
    return name if name in part.schema.names and (kept_side or isinstance(op, FilterOp)) else None


@dataclass(frozen=True, slots=True)
class Condition:
    """One of several conditions that must all be true. names: the columns that it uses."""

    node: exp.Expr
    value: Scalar
    names: frozenset[str]


def conditions(context: Context, nodes: Iterable[exp.Expr]) -> list[Condition]:
    """Bound nodes, translated, and split at each AND."""
    parts = (part for node in nodes for one in conjuncts(node) for each in factored(one) for part in _tests(each))
    return [Condition(part, boolean(context, part), names_in(part)) for part in parts]


def _tests(node: exp.Expr) -> Iterator[exp.Expr]:
    """A test for NULL of ``a < b`` as tests of both sides, as in Spark's optimizer; another condition as it is."""
    tested = node.this.this if isinstance(node, exp.Not) and isinstance(node.this, exp.Is) else None
    while isinstance(tested, exp.Not):
        tested = tested.this
    if not isinstance(tested, exp.LT | exp.LTE | exp.GT | exp.GTE) or not isinstance(node.this.expression, exp.Null):
        yield node
        return
    for side in (tested.this, tested.expression):
        if not isinstance(side, exp.Literal):
            yield from _tests(exp.Not(this=exp.Is(this=side.copy(), expression=exp.Null())))


def restricted(relation: Relation, wanted: Sequence[Condition], place: int | None) -> Relation:
    """The rows for which all conditions hold, applied in order. A condition on a row's number also ends the numbering.

    Where anything can fail, the columns in which they reject NULL are tested for it, too, as by Spark.
    """
    can_fail = relation.can_fail or any(condition.value.fails for condition in wanted)
    for condition in wanted:
        relation = tested(relation, condition.value, place) if can_fail else relation
        limit = _limit(condition.node)
        inner = None if limit is None else bounded(relation, limit.name, limit.most)
        relation = relation if inner is None else inner
        if inner is None or limit is None or not limit.alone:
            relation = filtered(relation, condition.value, place)
    return relation


@dataclass(frozen=True, slots=True)
class _Limit:
    """The condition that a column is at most a limit. alone: whether it says nothing else, if the column counts from
    1."""

    name: str
    most: int
    alone: bool


def _limit(node: exp.Expr) -> _Limit | None:
    if isinstance(node, exp.Between):
        least, most = _number(node.args["low"]), _number(node.args["high"])
        if isinstance(node.this, exp.Column) and least is not None and most is not None and most >= 1:
            return _Limit(node.this.name, most, alone=least <= 1)
        return None
    if isinstance(node, exp.In) and isinstance(node.this, exp.Column):
        numbers = [_number(item) for item in node.expressions]
        most = max((number for number in numbers if number is not None), default=0)
        return _Limit(node.this.name, most, alone=False) if None not in numbers and most >= 1 else None
    if not isinstance(node, exp.LT | exp.LTE | exp.EQ | exp.GT | exp.GTE):
        return None
    column, number = node.this, _number(node.expression)
    less, at_most = isinstance(node, exp.LT), isinstance(node, exp.LTE)
    if number is None:
        column, number = node.expression, _number(node.this)
        less, at_most = isinstance(node, exp.GT), isinstance(node, exp.GTE)
    equal = isinstance(node, exp.EQ)
    if number is None or not isinstance(column, exp.Column) or not (less or at_most or equal):
        return None
    most = number - less
    return _Limit(column.name, most, alone=not equal or most == 1) if most >= 1 else None


def _number(node: exp.Expr) -> int | None:
    literal = isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit()
    return int(node.this) if literal else None


@dataclass(frozen=True, slots=True)
class _Equality:
    """One pair of key columns, both of one type."""

    left: Output
    right: Output
    null_safe: bool


def equates(condition: Condition, left: pa.Schema, right: pa.Schema) -> bool:
    """Whether the condition is an equality between a value of one side and one of the other."""
    return operands_of_equality(condition.node, left, right) is not None


def join(
    context: Context,
    kind: JoinKind,
    left: Relation,
    right: Relation,
    on: Sequence[Condition],
    node: exp.Expr,
    taken: set[str],
    above: Sequence[Condition] = (),
) -> Relation:
    """The join of two relations without a common column name; its result may have computed columns besides theirs.

    context: of the columns of both. node: the joined item, for its place. taken: names that no computed column may
    have, lower case; the new names are added. above: conditions on pairs of an inner join that will be applied to its
    rows. Without an equality between the two, rows meet in slots.
    """
    source = context.source
    keys = [_equality(context, condition, left.schema, right.schema) for condition in on]
    equalities = [key for key in keys if key is not None]
    rest = [condition for condition, key in zip(on, keys, strict=True) if key is None]
    place = source.place(node)
    of_left = [one for one in rest if kind in LEFT_MATCHED and _asks_only(one, left)]
    of_right = [one for one in rest if kind in RIGHT_MATCHED and _asks_only(one, right)]
    on_pairs = [one for one in rest if one not in of_left and one not in of_right]
    of_pairs = [one.value for one in on_pairs]
    left, right = restricted(left, of_left, place), restricted(right, of_right, place)
    for value in (*(key.left.value for key in equalities if not key.null_safe), *of_pairs):
        left = matchable(left, value, place) if kind in LEFT_MATCHED else left
    for value in (*(key.right.value for key in equalities if not key.null_safe), *of_pairs):
        right = matchable(right, value, place) if kind in RIGHT_MATCHED else right
    left, right, bands, tried = _banded(context, kind, left, right, [*on_pairs, *above], taken)
    if equalities:
        left, left_key = _keyed(left, [key.left for key in equalities], taken)
        right, right_key = _keyed(right, [key.right for key in equalities], taken)
        replicated = None
    else:
        left, left_key, right, right_key = in_slots(kind, left, right, taken)
        replicated = replicated_side(left, right)
    null_safe = tuple(key.null_safe for key in equalities) or (False,)
    condition = conjunction(of_pairs) if of_pairs else None
    op = JoinOp(kind, left_key, right_key, null_safe, condition, bands, tried, any_fails(of_pairs), replicated)
    both = kind not in (JoinKind.SEMI, JoinKind.ANTI)
    schema = pa.schema([*left.schema, *(right.schema if both else ())])
    return Relation(op, (left, right), schema, place, asks=tuple(of_pairs))


def _banded(
    context: Context, kind: JoinKind, left: Relation, right: Relation, on: Sequence[Condition], taken: set[str]
) -> tuple[Relation, Relation, tuple[Band, ...], tuple[str, ...]]:
    """Both sides with the columns that the bands of the join compare, the bands, and those columns that are NULL where
    they cannot be computed. on: the conditions on pairs."""
    found = bands_among(context, kind, [(one.node, one.value) for one in on], left, right)
    left, lefts = with_values(left, [Output(band.left.title, band.left.value) for band in found], taken)
    right, rights = with_values(right, [Output(band.right.title, band.right.value) for band in found], taken)
    named = list(zip(lefts, rights, found, strict=True))
    bounds = ((name, bound) for one, other, band in named for name, bound in ((one, band.left), (other, band.right)))
    tried = dict.fromkeys(name for name, bound in bounds if bound.is_tried)
    return left, right, tuple(Band(one, other, band.at_most) for one, other, band in named), tuple(tried)


def in_slots(
    kind: JoinKind, left: Relation, right: Relation, taken: set[str]
) -> tuple[Relation, tuple[str, ...], Relation, tuple[str, ...]]:
    """Both sides of a join that compares no columns, with a column of slots each, which is the key: a row of the side
    that is kept is in one slot, and a row of the other side in all.

    Two sides of one row each meet in one place. So does a full join, since a match may be in any slot.
    """
    names = unique("slot", taken), unique("slot", taken)
    both_small = at_most_one(left) and at_most_one(right)
    salted = 1 if kind is JoinKind.RIGHT or (kind is JoinKind.INNER and at_most_one(left)) else 0
    sides = [left, right]
    columns = salt_columns(sides[salted])
    if both_small or kind is JoinKind.FULL or not columns:
        names = unique(ALL_ALIKE, taken), unique(ALL_ALIKE, taken)
        left, right = (
            widened(side, [Output(name, ALIKE)], None) for side, name in zip((left, right), names, strict=True)
        )
        return left, names[:1], right, names[1:]
    for place, side in enumerate(sides):
        op = SaltOp(names[place], columns, SLOTS) if place == salted else ReplicateOp(names[place], SLOTS)
        schema = pa.schema([*side.schema, pa.field(names[place], pa.int32())])
        sides[place] = Relation(op, (side,), schema, side.place)
    return sides[0], names[:1], sides[1], names[1:]


def replicated_side(left: Relation, right: Relation) -> Replicated | None:
    port = next((port for port, side in enumerate((left, right)) if isinstance(side.op, ReplicateOp)), None)
    return None if port is None else Replicated(port, tuple(sorted(_tables((left, right)[port]))))


def _tables(relation: Relation) -> set[str]:
    """The tables that it reads, directly or through views."""
    own = {relation.op.table} if isinstance(relation.op, Scan) else set[str]()
    return own.union(*map(_tables, relation.inputs))


def salt_columns(relation: Relation) -> tuple[str, ...]:
    """The first columns by which rows can be spread."""
    found = [field.name for field in relation.schema if is_plain_key_type(field.type) and ALL_ALIKE not in field.name]
    return tuple(found[:SALT_COLUMNS_MAX])


def windowed(relation: Relation, op: WindowOp, place: int | None) -> Relation:
    """The rows with the results of window functions."""
    results = [pa.field(call.output, call.type) for call in op.calls]
    return Relation(op, (relation,), pa.schema([*relation.schema, *results]), place)


def at_most_one(relation: Relation) -> bool:
    """Whether the relation has never more than one row."""
    match relation.op:
        case ValuesOp(rows):
            return bool(rows_from_bytes(rows).num_rows <= 1)
        case AggregateOp(plan):
            return is_in_one_place(plan.group) or at_most_one(relation.inputs[0])
        case TopKOp():
            is_first = relation.op.limit == 1 and relation.op.ranking is Ranking.ROW_NUMBER
            return (is_first and not relation.op.partition) or at_most_one(relation.inputs[0])
        case FilterOp() | ProjectOp() | SaltOp() | ClockOp() | JoinOp(JoinKind.SEMI | JoinKind.ANTI):
            return at_most_one(relation.inputs[0])
        case JoinOp(JoinKind.INNER | JoinKind.LEFT | JoinKind.RIGHT):
            return all(map(at_most_one, relation.inputs))
        case _:
            return False


def operands_of_equality(node: exp.Expr, left: pa.Schema, right: pa.Schema) -> tuple[exp.Expr, exp.Expr] | None:
    """The operands of an equality: that of the left side first; ``None`` for another condition."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    for one, other in ((node.this, node.expression), (node.expression, node.this)):
        ones, others = names_in(one), names_in(other)
        if ones and others and ones <= set(left.names) and others <= set(right.names):
            return one, other
    return None


def _equality(context: Context, condition: Condition, left: pa.Schema, right: pa.Schema) -> _Equality | None:
    sides = operands_of_equality(condition.node, left, right)
    if sides is None:
        return None
    one, other = to_comparable(context, condition.node, context.translate_all(sides))
    if is_null(one.type):
        raise context.unsupported(condition.node, f"a join on {typed_name(one)}", ELSEWHERE)
    left, right = Output(worded(sides[0]), one), Output(worded(sides[1]), other)
    return _Equality(left, right, isinstance(condition.node, exp.NullSafeEQ))


def _asks_only(condition: Condition, side: Relation) -> bool:
    return bool(condition.names) and condition.names <= set(side.schema.names)


def _keyed(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, tuple[str, ...]]:
    """The relation with a column for each value of the key, and their names; a value that is a column already stays
    it."""
    relation, names = with_values(relation, values, taken)
    return relation, tuple(names)
