"""The batches that a lake has, and whether it lacks one that Spark has taken (docs/internals/lake.md, "Damage")."""

from upriver.engine.retention import Retention
from upriver.errors import CorruptFile
from upriver.ids import Epoch
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.source_records import SourceRecord, current_source


class IngestHistory:
    """The batches in a lake, according to its manifests: for each table, of the last query that has given any."""

    def __init__(self) -> None:
        self.last = Epoch(0)
        self.committed_at = 0.0
        """When the last epoch was committed, in seconds since 1970."""
        self.queries: dict[str, str] = {}
        self.batches: dict[str, int] = {}
        self.retained: dict[str, Retention] = {}

    def add(self, epochs: LakeEpochs) -> None:
        """Note the next epoch's manifest, or the next segment."""
        self.last = epochs.epoch
        self.committed_at = max(self.committed_at, epochs.committed_at or 0.0)
        for table, last in epochs.batches.items():
            is_replaced = self.queries.get(table) != last.query
            before = -1 if is_replaced else self.batches[table]
            self.queries[table] = last.query
            self.batches[table] = max(last.batch, before)
        self.retained.update(epochs.retained)

    def retain(self, table: str, retention: Retention) -> None:
        """Rows of a table begin to leave, with this retention."""
        self.retained[table] = retention


def fence(lake: OwnedLake) -> None:
    """As :meth:`OwnedLake.fence`, once it is known that no manifest is lost: the fence would take its place.

    Raises CorruptFile, LakeInUse, NotWritten.
    """
    if not lake.is_fenced:
        history = IngestHistory()
        for span in lake.spans(lake.last_epoch()):
            history.add(lake.bare_epochs(span))
        check_taken(lake, history)
        lake.fence()


def check_taken(lake: Lake, history: IngestHistory) -> None:
    """Raise CorruptFile if the lake lacks a batch that Spark will not give again: its epoch's manifest is gone."""
    for table in dict.fromkeys(name.partition(".")[0] for name in lake.files.names("ingest")):
        source = current_source(lake, table) or SourceRecord("")
        commits = f"{source.directory(table)}/commits"
        taken = max((int(name) for name in lake.files.names(commits) if name.isdecimal()), default=-1)
        is_other = source.replaces is not None and history.queries.get(table) == source.replaces
        if taken > (-1 if is_other else history.batches.get(table, -1)):
            raise CorruptFile(
                f"{lake.root}/epochs: the last manifests are gone: batch {taken} of table {table!r} was taken, says "
                f"{commits}, and no epoch has it. Restore them, or start on another root"
            )
