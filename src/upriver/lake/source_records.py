"""Which source feeds a table: ``sources/<table>/<n>.json``. The newest record counts.

Spark's checkpoint says what of a source was taken. A source that replaces another one has a checkpoint of its own, and
its query gives the table's next epochs. Its record is written before its query starts. So a driver that is killed then
continues with the new source, and a second start with the same source replaces nothing (rule lake.replaced_once).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.spark_checkpoint import query_of
from upriver.records import typed


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """source: a digest of what is read. checkpoint: the number of Spark's checkpoint; 0 is the first.

    replaces: the query that gave the table's last epoch when this source took its place; ``None`` if it took none.
    """

    source: str
    checkpoint: int = 0
    replaces: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source, "checkpoint": self.checkpoint, "replaces": self.replaces}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return typed(cls(record["source"], record["checkpoint"], record["replaces"]))

    def directory(self, table: str) -> str:
        """Where Spark's checkpoint lies, below the root."""
        return f"ingest/{table}.{self.checkpoint}" if self.checkpoint else f"ingest/{table}"  # no table has a dot

    def accepts(self, last_query: str | None, query: str) -> bool:
        """Whether ``query`` may give the next epoch of a table whose last one is of ``last_query``."""
        return last_query in (None, query, self.replaces)


def source_path(table: str, number: int) -> str:
    return f"sources/{table}/{number}.json"


def current_source(lake: Lake, table: str) -> SourceRecord | None:
    """The newest record; ``None`` if there is none."""
    number = _last_number(lake, table)
    return lake.read_as(lake.path_of(source_path(table, number)), SourceRecord.from_json) if number else None


def _last_number(lake: Lake, table: str) -> int:
    return max((int(name.removesuffix(".json")) for name in lake.counted(f"sources/{table}")), default=0)


def source_of(
    lake: OwnedLake, table: str, source: str, last_query: str | None, *, replaces_others: bool
) -> SourceRecord:
    """The record of a streaming source that is to feed a table from now on, which is written if it is new.

    last_query: of the table's last epoch. replaces_others: whether the source takes the place of another one. It does
    not if it is the current one: if it reads the same, and the table's last epoch is of its own query, or of the query
    that it has replaced. Raises LakeInUse.
    """
    current = current_source(lake, table)
    if current is None and (last_query is None or not replaces_others):
        return _written(lake, table, SourceRecord(source))
    checkpoint = 0 if current is None else current.checkpoint
    if replaces_others and not (current is not None and _is_current(lake, table, current, source, last_query)):
        return _written(lake, table, SourceRecord(source, checkpoint + 1, last_query))
    assert current is not None
    if current.source == source:
        return current
    return _written(lake, table, SourceRecord(source, checkpoint, current.replaces))


def is_new(lake: Lake, table: str, source: str, last_query: str | None) -> bool:
    """Whether a source that is to replace others has not done so yet. Arguments: as of :func:`source_of`."""
    current = current_source(lake, table)
    if current is None:
        return last_query is not None
    return not _is_current(lake, table, current, source, last_query)


def _is_current(lake: Lake, table: str, current: SourceRecord, source: str, last_query: str | None) -> bool:
    own = query_of(lake.files, current.directory(table))
    return current.source == source and last_query in (current.replaces, own)


def _written(lake: OwnedLake, table: str, record: SourceRecord) -> SourceRecord:
    path = lake.own_path(source_path(table, 1 + _last_number(lake, table)))
    lake.commit(path, record.to_json(), f"the source of table {table!r}")
    return record
