"""The log of a view's changes: what its commits and parts say, the form of its rows, and where a reader stands.

A *commit* of the log makes the changes of some epochs readable, of every view that has a log. A *part* is a file with
rows of one view. A *fold* takes the place of adjacent commits. ``docs/internals/changes.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.ids import Epoch, Hash64, Term
from upriver.records import typed
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
SUBSCRIBED_KEYS_MAX = 100_000
"""Keys of one subscription."""
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
    the file. checksum: xxh3_64, in hexadecimal. first, last: its versions. start, end: hash64 of its first and of its
    last row."""

    view: str
    path: str
    rows: int
    bytes: int
    checksum: str
    first: Epoch
    last: Epoch
    start: Hash64
    end: Hash64

    def may_have(self, least: int, most: int) -> bool:
        """Whether a key with a hash64 between these two, both included, may have rows here."""
        return self.first < self.last or (self.start <= most and self.end >= least)

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            CHECKSUM: self.checksum,
            "first": self.first,
            "last": self.last,
            "start": self.start,
            "end": self.end,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        part = cls(
            view=json["view"],
            path=json["path"],
            rows=json["rows"],
            bytes=json["bytes"],
            checksum=json[CHECKSUM],
            first=Epoch(json["first"]),
            last=Epoch(json["last"]),
            start=json["start"],
            end=json["end"],
        )
        return typed(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCommit:
    """A commit of the log, or a fold, which has the numbers of several.

    number: counts up from 1. through: the last of its epochs. made_at: when the changes through that epoch were
    committed, in seconds since 1970. begins: for each view whose log is going on, the version at which it begins: all
    rows of that version are inserts. parts: with all rows of its epochs.

    Of a fold: first: its first commit; ``number`` is its last. earliest: for views whose old versions the fold lacks,
    the version at which the log begins now; earliest_at: when that was committed, in seconds since 1970, which folds of
    older releases do not say. ended: by view, the last version of each log whose rows the fold lacks.
    folded_at: when it was made; 0 for a commit.
    """

    number: int
    through: Epoch
    term: Term
    made_at: float
    begins: Mapping[str, Epoch]
    parts: tuple[ChangePart, ...] = ()
    first: int
    earliest: Mapping[str, Epoch] = field(default_factory=dict)
    earliest_at: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[str, Epoch] = field(default_factory=dict)
    folded_at: float = 0.0

    def parts_of(self, view: str, begins: Epoch) -> tuple[ChangePart, ...]:
        """The parts of that log of a view, which begins at this version."""
        return tuple(part for part in self.parts if part.view == view) if self.begins.get(view) == begins else ()

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "through": self.through,
            "term": self.term,
            "made_at": self.made_at,
            "begins": dict(self.begins),
            "parts": [part.to_json() for part in self.parts],
            "first": self.first,
            "earliest": dict(self.earliest),
            "earliest_at": dict(self.earliest_at),
            "ended": dict(self.ended),
            "folded_at": self.folded_at,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        commit = cls(
            number=json["number"],
            through=Epoch(json["through"]),
            term=Term(json["term"]),
            made_at=json["made_at"],
            begins=_versions(json["begins"]),
            parts=tuple(map(ChangePart.from_json, json["parts"])),
            first=json["first"],
            earliest=_versions(json["earliest"]),
            earliest_at=json.get("earliest_at", {}),
            ended=_versions(json["ended"]),
            folded_at=json["folded_at"],
        )
        return typed(commit)


@dataclass(frozen=True, slots=True)
class ChangePosition:
    """Where the next piece begins. after: the last version whose changes the client has all got; ``None``: none yet, so
    the reader begins with the log's base. skip: rows of the following version that were given already. first: the
    base's version, once rows of it were given."""

    after: Epoch | None = None
    skip: int = 0
    first: Epoch | None = None

    def to_json(self) -> dict[str, Any]:
        return {"after": self.after, "skip": self.skip, "first": self.first}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Raises ProtocolError for anything else."""
        if isinstance(json, Mapping) and {"after", "skip", "first"} <= json.keys():
            after, skip, first = json["after"], json["skip"], json["first"]
            if _is_number(skip) and all(version is None or _is_number(version) for version in (after, first)):
                return cls(after, skip, first)
        raise ProtocolError(f"{json!r:.100} is no position in a log of changes")


def _is_number(said: Any) -> bool:
    return type(said) is int and 0 <= said < 1 << 63


def _versions(of_views: Mapping[str, int]) -> dict[str, Epoch]:
    return {view: Epoch(version) for view, version in of_views.items()}
