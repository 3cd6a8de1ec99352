"""The log of a view's changes: what its commits and parts say, and the form of its rows.

A *commit* of the log makes the changes of some epochs readable, of every view that has a log. A *part* is a file of one
worker with rows of one view. ``docs/internals/changes.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from upriver.ids import Epoch, Term
from upriver.state.runs import CHECKSUM, HASH_COLUMN

INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
)
"""The columns of changes behind the view's."""
NOW = "now"
"""``since`` of a reader that wants later changes alone."""
CHANGE_COLUMNS = tuple(field.name for field in CHANGE_FIELDS)


def changes_schema(view: pa.Schema) -> pa.Schema:
    """The columns of a view's changes, for its readers."""
    return pa.schema([*view, *CHANGE_FIELDS])


def part_schema(view: pa.Schema) -> pa.Schema:
    """The columns of a part: the key's hash64, then those of the changes."""
    return pa.schema([pa.field(HASH_COLUMN, pa.uint64()), *changes_schema(view)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePart:
    """A file of changes of one view, sorted by version, then by hash64. path: under the lake's root. rows, bytes: of
    the file. checksum: xxh3_64, in hexadecimal. first, last: its versions."""

    view: str
    path: str
    rows: int
    bytes: int
    checksum: str
    first: Epoch
    last: Epoch

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            CHECKSUM: self.checksum,
            "first": self.first,
            "last": self.last,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(
            view=json["view"],
            path=json["path"],
            rows=json["rows"],
            bytes=json["bytes"],
            checksum=json[CHECKSUM],
            first=Epoch(json["first"]),
            last=Epoch(json["last"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCommit:
    """A commit of the log. number: counts up from 1. through: the last of its epochs. begins: for each view whose log
    is going on, the version at which it begins: all rows of that version are inserts. parts: with all rows of its
    epochs. earliest: a commit that folds others may have, for each view, a later version at which the log begins."""

    number: int
    through: Epoch
    term: Term
    begins: Mapping[str, Epoch]
    parts: tuple[ChangePart, ...] = ()
    first: int = 0
    """The first commit that this one replaces, if it folds several: all from there to ``number``."""
    earliest: Mapping[str, Epoch] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "through": self.through,
            "term": self.term,
            "begins": dict(self.begins),
            "parts": [part.to_json() for part in self.parts],
            "first": self.first or self.number,
            "earliest": dict(self.earliest),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(
            number=json["number"],
            through=Epoch(json["through"]),
            term=Term(json["term"]),
            begins={view: Epoch(epoch) for view, epoch in json["begins"].items()},
            parts=tuple(map(ChangePart.from_json, json["parts"])),
            first=json["first"],
            earliest={view: Epoch(epoch) for view, epoch in json["earliest"].items()},
        )
