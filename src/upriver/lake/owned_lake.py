"""The lake, as the one driver that owns it may change it. What is written in which order: ``docs/design/lake.md``."""

from collections.abc import Iterable, Mapping
from typing import IO, Any
from uuid import uuid4

from upriver.errors import CorruptFile, LakeInUse
from upriver.ids import Channel, Epoch, Term
from upriver.lake.files import UNFINISHED
from upriver.lake.lake import (
    Lake,
    LakeRecord,
    Manifest,
    epoch_path,
    index_path,
    sealed,
    supplement_path,
    term_path,
)
from upriver.lake.verified_file import REMEDY
from upriver.plan.plan import lake_channel
from upriver.state.runs import RunInfo


class OwnedLake(Lake):
    """A lake that this driver has taken. What is written exists once its record does."""

    def __init__(self, root: str, declared: LakeRecord, control: Mapping[str, Any]) -> None:
        """Take the root: lock it, compare or write its record, and open a new term.

        control: what to remember of this driver. Raises LakeInUse, DeclarationError, CorruptFile.
        """
        super().__init__(root)
        self._owner = uuid4().hex
        self._lock: IO[str] | None = self.files.lock()
        try:
            self.term = self._take(declared, control)
        except BaseException:
            self.release()
            raise

    def _take(self, declared: LakeRecord, control: Mapping[str, Any]) -> Term:
        term, last = Term(self.last_number("control") + 1), self.last_epoch()
        kept = self.record()
        if kept is None and (last or term > 1):  # it is the first thing that is written
            raise CorruptFile(f"{self.root}/app.json: the file is gone. {REMEDY}")
        try:
            if kept is None:
                self.write_record("app.json", declared.to_json())
            else:
                kept.check_unchanged(declared, self.root)
            self.write_record(term_path(term), {**control, "term": term, "owner": self._owner})
        except FileExistsError as error:
            raise LakeInUse(f"{self.root}: another driver is starting on it") from error
        return term

    def write_record(self, path: str, record: Mapping[str, Any]) -> None:
        """Create a JSON file. Raises FileExistsError, NotWritten."""
        self.files.create(path, sealed(record))

    def publish(self, manifest: Manifest) -> None:
        """Commit an epoch. Raises LakeInUse if another driver has taken the root over."""
        self.commit(epoch_path(manifest.epoch), manifest.to_json(), f"epoch {manifest.epoch}")

    def supplement(self, channel: Channel, epoch: Epoch, runs: Iterable[RunInfo]) -> None:
        """Keep the runs that an index gets of an epoch; nobody sees them before ``complete``. Raises LakeInUse."""
        record = {"channel": channel, "epoch": epoch, "runs": [run.to_json() for run in runs]}
        self.commit(supplement_path(channel, epoch), record, f"epoch {epoch} of {channel}")

    def complete(self, table: str, index: tuple[str, ...]) -> None:
        """Commit an index of which every epoch has its runs, be it in a supplement. Raises LakeInUse."""
        channel = lake_channel(table, index)
        self.commit(index_path(channel), {"table": table, "index": list(index)}, f"index {channel}")

    def commit(self, path: str, record: Mapping[str, Any], what: str) -> None:
        """Create a JSON file that makes ``what`` exist. Raises LakeInUse if another driver has taken the root over."""
        self.check_owner()
        try:
            self.write_record(path, record)
        except FileExistsError as error:
            raise LakeInUse(f"{self.root}: {what} was published by another driver") from error

    def check_owner(self) -> None:
        """Raise LakeInUse if another driver has opened a term since, or this one's at the very moment when we did."""
        is_last = self.last_number("control") == self.term
        if not is_last or self.read_record(term_path(self.term))["owner"] != self._owner:  # I4
            raise LakeInUse(f"{self.root}: another driver has taken it over; this one must stop")

    def sweep(self, kept: set[str]) -> int:
        """Remove what batches that were never published, and indexes that are not complete, have left.

        kept: the paths of all runs that a manifest names. Returns how many runs were removed. For a driver that is not
        writing anything.
        """
        for name in self.files.names(UNFINISHED):
            self.files.remove(f"{UNFINISHED}/{name}")
        for channel in self._channels_under("supplements"):  # before their runs: a supplement names what is there
            if channel not in self.added_channels(channel.partition("/")[0]):
                for name in self.files.names(f"supplements/{channel}"):
                    self.files.remove(f"supplements/{channel}/{name}")
        removed = 0
        for channel in self._channels_under("tables"):
            for name in self.files.names(f"tables/{channel}"):
                path = f"tables/{channel}/{name}"
                if path not in kept:
                    self.files.remove(path)
                    removed += 1
        return removed

    def _channels_under(self, directory: str) -> list[Channel]:
        tables = self.files.names(directory)
        return [Channel(f"{table}/{name}") for table in tables for name in self.files.names(f"{directory}/{table}")]

    def release(self) -> None:
        """Give the root up."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
