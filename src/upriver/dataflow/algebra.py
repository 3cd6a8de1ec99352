"""A query as a tree of relations, before anybody has thought of where its rows are."""

from dataclasses import dataclass

import pyarrow as pa

from upriver.dataflow.ops import Op


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator over relations. schema: of its rows; names as :mod:`upriver.dataflow.ops` says.

    place: the offset of what it is in the view's SQL, for messages and ``explain``; ``None`` if it stands nowhere.
    """

    op: Op
    inputs: tuple["Relation", ...]
    schema: pa.Schema
    place: int | None = None
