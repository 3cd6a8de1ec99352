"""The items of FROM, joined. A condition on one of them alone is applied before it is joined, as Spark does it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation
from upriver.sql.generators import Generated, exploded
from upriver.sql.relations import Condition, Output, conditions, equates, join, restricted, widened
from upriver.sql.scalars import Context
from upriver.sql.scope import Scope


@dataclass(frozen=True, slots=True)
class FromMember:
    """One item of FROM. lasts: whether each row of the FROM contains a row of it: no outer join may replace it by
    NULLs. keys: its columns with the values of the query around, if it depends on them."""

    relation: Relation
    node: exp.Expr
    lasts: bool = True
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinStep:
    """A join to the items before it. merged: columns that it creates from either side."""

    kind: JoinKind
    member: FromMember
    on: tuple[exp.Expr, ...]
    merged: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplodeStep:
    """A generator over the items before it. names: of its columns. node: its call."""

    call: Generated
    names: tuple[str, ...]
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class From:
    """A FROM before WHERE decides how it is joined. schema: all columns, including those of the right side of a semi
    join, which the result lacks. correlated: conditions of inner joins, not bound yet, that name the enclosing query.
    They are applied like those of WHERE. keys: the columns with the values of the query around, if there are any."""

    first: FromMember
    steps: tuple[JoinStep | ExplodeStep, ...]
    scope: Scope
    schema: pa.Schema
    correlated: tuple[exp.Expr, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def joins(self) -> list[JoinStep]:
        return [step for step in self.steps if isinstance(step, JoinStep)]

    @property
    def members(self) -> list[FromMember]:
        """The items that are relations by themselves."""
        return [self.first, *(step.member for step in self.joins)]

    @property
    def scope_of_rows(self) -> Scope:
        """The names that mean columns of its rows."""
        return self.scope if self.keys else replace(self.scope, outer=None)


class JoinOrder:
    """Joins the items of FROM. It applies each condition of WHERE and of inner joins once, as early as it is useful."""

    def __init__(self, context: Context, source: From, where: Iterable[Condition], taken: set[str]) -> None:
        self._context = context
        self._from = source
        self._taken = taken
        on = conditions(context, [node for step in source.joins if _is_free(step) for node in step.on])
        self._open = [*on, *where]
        fails = any(member.relation.can_fail for member in source.members)
        fails |= any(step.call.elements.fails for step in source.steps if isinstance(step, ExplodeStep))
        self._in_order = fails or any(one.value.fails for one in self._open)

    def joined(self, where: exp.Expr | None) -> Relation:
        place = self._context.source.place(where)
        if not self._from.steps:
            return restricted(self._from.first.relation, self._open, place)
        relation = self._member(self._from.first)
        waiting: list[tuple[Relation, FromMember]] = []
        for step in self._from.steps:
            if isinstance(step, ExplodeStep):
                while waiting:
                    relation, waiting = self._crossed(relation, waiting)
                relation = exploded(relation, step.call, step.names, self._context.source.place(step.node))
                continue
            right = self._member(step.member)
            if _is_free(step):
                waiting.append((right, step.member))
            else:
                on = conditions(self._context, step.on)
                while waiting and not all(one.names <= {*relation.schema.names, *right.schema.names} for one in on):
                    relation, waiting = self._crossed(relation, waiting)
                relation = join(self._context, step.kind, relation, right, on, step.member.node, self._taken)
                relation = widened(relation, step.merged, None)
            relation, waiting = self._caught_up(relation, waiting)
        while waiting:
            relation, waiting = self._crossed(relation, waiting)
        return restricted(relation, self._open, place)

    def _crossed(
        self, relation: Relation, waiting: list[tuple[Relation, FromMember]]
    ) -> tuple[Relation, list[tuple[Relation, FromMember]]]:
        """Join the first waiting item, without an equality, and then all that can be joined by one."""
        first, *rest = waiting
        return self._caught_up(self._inner(relation, *first), rest)

    def _caught_up(
        self, relation: Relation, waiting: list[tuple[Relation, FromMember]]
    ) -> tuple[Relation, list[tuple[Relation, FromMember]]]:
        """Join every waiting item that can be joined by now."""
        ready = next((pair for pair in waiting if self._meet(relation, pair[0])), None)
        if ready is None:
            return relation, waiting
        rest = [pair for pair in waiting if pair is not ready]
        return self._caught_up(self._inner(relation, *ready), rest)

    def _inner(self, left: Relation, right: Relation, member: FromMember) -> Relation:
        """Conditions that can fail, and those behind them, are filters above, which try a row again at the end of its
        epoch."""
        lefts, rights = set(left.schema.names), set(right.schema.names)
        equalities = [one for one in self._open if equates(one, left.schema, right.schema)]
        others = (one for one in self._open if one not in equalities)
        early = [*equalities, *takewhile(lambda one: not one.value.fails, others)]

        def is_of_both(one: Condition) -> bool:
            return bool(one.names & lefts) and bool(one.names & rights) and one.names <= lefts | rights

        on = self._take(lambda one: one in early and is_of_both(one))
        above = [one for one in self._open if is_of_both(one)]
        return join(self._context, JoinKind.INNER, left, right, on, member.node, self._taken, above)

    def _meet(self, left: Relation, right: Relation) -> bool:
        return any(equates(condition, left.schema, right.schema) for condition in self._open)

    def _member(self, member: FromMember) -> Relation:
        """The rows of one item of FROM, filtered by the conditions on that item alone. If anything can fail, no
        condition is applied here: all are applied in their written order, and pushed down from there."""
        if not member.lasts or self._in_order:
            return member.relation
        names = set(member.relation.schema.names)
        own = self._take(lambda one: bool(one.names) and one.names <= names)
        return restricted(member.relation, own, self._context.source.place(own[0].node) if own else None)

    def _take(self, wanted: Callable[[Condition], bool]) -> list[Condition]:
        taken = [one for one in self._open if wanted(one)]
        self._open = [one for one in self._open if one not in taken]
        return taken


def _is_free(step: JoinStep) -> bool:
    """Whether the time of the join does not matter: it is an inner join, and no later join keeps rows without a
    match."""
    return step.kind is JoinKind.INNER and step.member.lasts
