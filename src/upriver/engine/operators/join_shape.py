"""What a join's plan says of each of its inputs, worked out once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from upriver.plan import ops
from upriver.plan.column_names import quoted
from upriver.plan.ops import JoinKind

_ALONE: dict[JoinKind, tuple[bool | None, bool | None]] = {
    JoinKind.INNER: (None, None),
    JoinKind.LEFT: (False, None),
    JoinKind.RIGHT: (None, False),
    JoinKind.FULL: (False, False),
    JoinKind.SEMI: (True, None),
    JoinKind.ANTI: (False, None),
}
"""For each side: ``SideShape.alone``."""


@dataclass(frozen=True, slots=True)
class SideShape:
    """One input.

    kept: the columns that are kept of its rows. shown: how many of these are put out: all or none. key: its columns of
    the join's key. strict: those of them in which a null agrees with nothing. alone: its rows are put out, on their
    own, as long as they have a match (True), as long as they have none (False), or never (``None``). counted: the
    matches of each of its rows are counted, since those of its key do not tell.
    """

    kept: pa.Schema
    shown: int
    key: tuple[str, ...]
    strict: tuple[str, ...]
    alone: bool | None
    counted: bool


@dataclass(frozen=True, slots=True)
class JoinShape:
    """A join.

    paired: pairs are put out. tested: the columns that the condition needs. key: the join's key, its columns named by
    their places. routing: those of them that are the routing key. output: the left input's columns, then, if paired,
    the right one's; all may be null.
    """

    sides: tuple[SideShape, SideShape]
    paired: bool
    condition: str | None
    tested: frozenset[str]
    key: pa.Schema
    routing: tuple[str, ...]
    output: pa.Schema

    @classmethod
    def of(
        cls, op: ops.Join, inputs: tuple[pa.Schema, pa.Schema], routing: tuple[Sequence[str], Sequence[str]]
    ) -> Self:
        """inputs: schemas of the rows to come. routing: the routing key, in columns of each input."""
        paired = op.kind not in (JoinKind.SEMI, JoinKind.ANTI)
        tested = {name for schema in inputs for name in schema.names if quoted(name) in (op.condition or "")}
        keys = (op.left_key, op.right_key)
        routed = set(zip(*routing, strict=True))
        # Of the right rows of a semi join, nothing matters but what they match by.
        matter = tested.union(op.right_key, inputs[1].names if paired else ())
        kept = (inputs[0], pa.schema([field for field in inputs[1] if field.name in matter]))
        sides = [
            SideShape(
                kept=schema,
                shown=len(schema) if paired or port == 0 else 0,
                key=key,
                strict=tuple(name for name, null_safe in zip(key, op.null_safe, strict=True) if not null_safe),
                alone=alone,
                counted=alone is not None and op.condition is not None,
            )
            for port, (schema, key, alone) in enumerate(zip(kept, keys, _ALONE[op.kind], strict=True))
        ]
        output = [field.with_nullable(True) for side in sides for field in list(side.kept)[: side.shown]]
        return cls(
            sides=(sides[0], sides[1]),
            paired=paired,
            condition=op.condition,
            tested=frozenset(tested or op.left_key[:1]),  # of no columns, there would be no telling how many rows
            key=pa.schema([(str(place), inputs[0].field(name).type) for place, name in enumerate(op.left_key)]),
            routing=tuple(str(place) for place, pair in enumerate(zip(*keys, strict=True)) if pair in routed),
            output=pa.schema(output),
        )
