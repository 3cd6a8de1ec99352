"""What the process that asks for pages hands back: pages with their times, lookups, and every row that these found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from benchmarks.lobsters_model import KeyArray

FAILED = -1
"""Stands for the epoch of a lookup that was not answered."""
PAGES = pa.schema([("number", pa.int64()), ("began_at", pa.float64()), ("ended_at", pa.float64())])
"""A row for each page. Times are ``time.perf_counter``, which all processes of a machine share."""
LOOKUPS = pa.schema(
    [
        ("page", pa.int64()),
        ("view", pa.string()),
        ("keys", pa.list_(pa.int64())),
        ("at_least", pa.int64()),
        ("epoch", pa.int64()),
        ("answered_at", pa.float64()),
        ("rows", pa.int64()),
    ]
)
"""A row for each lookup. at_least: the epoch that it asked for, 0 for any. epoch: that its answer reflects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLookup:
    """One lookup, answered or ``FAILED``. page: its number. found: the rows, in the view's schema."""

    page: int
    view: str
    keys: KeyArray
    at_least: int
    epoch: int
    answered_at: float
    found: pa.Table | None


@dataclass(frozen=True, slots=True)
class SiteAnswers:
    """pages: as ``PAGES``. lookups: of which those of one view are in the order in which they were written."""

    pages: pa.Table
    lookups: Sequence[SiteLookup]

    def write(self, directory: Path) -> None:
        """Into files of a directory that is there."""
        columns = [
            [lookup.page for lookup in self.lookups],
            [lookup.view for lookup in self.lookups],
            [lookup.keys for lookup in self.lookups],
            [lookup.at_least for lookup in self.lookups],
            [lookup.epoch for lookup in self.lookups],
            [lookup.answered_at for lookup in self.lookups],
            [0 if lookup.found is None else lookup.found.num_rows for lookup in self.lookups],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LOOKUPS, strict=True)]
        _write(directory / "pages.arrow", self.pages)
        _write(directory / "lookups.arrow", pa.table(arrays, schema=LOOKUPS))
        for view, tables in self._found().items():
            _write(directory / f"{view}.arrow", pa.concat_tables(tables))

    def _found(self) -> Mapping[str, list[pa.Table]]:
        found: dict[str, list[pa.Table]] = {}
        for lookup in self.lookups:
            if lookup.found is not None:
                found.setdefault(lookup.view, []).append(lookup.found)
        return found

    @classmethod
    def read(cls, directory: Path) -> Self:
        """What ``write`` has written there."""
        found = _Found(directory)
        rows = _read(directory / "lookups.arrow").to_pylist()
        return cls(_read(directory / "pages.arrow"), [found.lookup(row) for row in rows])


@dataclass(slots=True)
class _Found:
    """Deals the rows of each view out to its lookups."""

    directory: Path
    tables: dict[str, pa.Table] = field(default_factory=dict)
    dealt: dict[str, int] = field(default_factory=dict)

    def lookup(self, row: Mapping[str, object]) -> SiteLookup:
        fields = dict(row)
        view, count = str(fields["view"]), fields.pop("rows")
        assert isinstance(count, int)
        fields["keys"] = np.array(fields["keys"], np.int64)
        return SiteLookup(**fields, found=None if fields["epoch"] == FAILED else self._deal(view, count))  # type: ignore[arg-type]

    def _deal(self, view: str, count: int) -> pa.Table:
        if view not in self.tables:
            self.tables[view] = _read(self.directory / f"{view}.arrow").combine_chunks()
        first = self.dealt.get(view, 0)
        self.dealt[view] = first + count
        return self.tables[view].slice(first, count)


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def _read(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()
