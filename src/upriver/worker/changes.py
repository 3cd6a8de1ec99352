"""A worker's parts of the changes of logged views; rules changes.keys_stay and changes.kept_until_logged.

``docs/internals/changes.md``. A worker writes its part when it stands at the cut. It keeps the changes until the log
has them, so a part that is never published is no loss: the next one has the same changes, and more.
"""

from upriver.engine.pending_changes import ChangedRows
from upriver.ids import Epoch
from upriver.protocol.messages import (
    Assign,
    ChangesLogged,
    ChangesNotWritten,
    ChangesWritten,
    TakeChanges,
)
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import ChangesNotStored, ChangesStored, WriteChanges
from upriver.worker.peers import StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions
from upriver.worker.shard import Shard


class ChangeParts:
    """Takes this worker's parts of changes."""

    def __init__(
        self, event: Assign, regions: Regions, progress: EpochProgress, output: StepOutput, rules: Rules
    ) -> None:
        self._asked: TakeChanges | None = None
        """The changes whose cut lies ahead."""
        self._regions = regions
        self._progress = progress
        self._output = output
        self._rules = rules
        for view, through in event.logged.items():
            self._log_through(view, through)

    def asked(self, event: TakeChanges) -> None:
        """Replaces changes that were asked for before and not taken: those were given up."""
        self._asked = event
        self.take_due()

    def take_due(self) -> None:
        """Take this worker's part of the changes, if it stands at their cut."""
        asked = self._asked
        if asked is None or not self._progress.stands_at(asked.at):
            return
        self._asked = None
        rows = self._rows(asked)
        for view in rows:
            if view in asked.begins or not self._rules.changes_kept_until_logged:
                self._log_through(view, asked.at)
        if rows:
            self._output.add(WriteChanges(taking=asked.taking, at=asked.at, rows=rows))
        else:
            self._output.report(ChangesWritten(taking=asked.taking, parts=()))

    def _rows(self, asked: TakeChanges) -> dict[str, ChangedRows]:
        """By view: its changes, or all its rows if its log begins. A view whose rows cannot be computed fails."""
        found: dict[str, ChangedRows] = {}
        for view, shard in self._logged.items():
            begins = view in asked.begins
            changed = shard.all_inserted(asked.at) if begins else shard.changes(asked.at)
            if changed is not None and (begins or len(changed)):
                found[view] = changed
        return found

    def logged(self, event: ChangesLogged) -> None:
        """The log has these changes."""
        for view, through in event.through.items():
            self._log_through(view, through)

    def stored(self, event: ChangesStored) -> None:
        self._output.report(ChangesWritten(taking=event.taking, parts=event.parts))

    def not_stored(self, event: ChangesNotStored) -> None:
        self._output.report(ChangesNotWritten(taking=event.taking, error=event.error))

    @property
    def _logged(self) -> dict[str, Shard]:
        """The last region of each logged view that has not failed."""
        return {name: shard for name, shard in self._regions.shards.items() if shard.pending is not None}

    def _log_through(self, view: str, through: Epoch | None) -> None:
        shard = self._regions.shards.get(view)
        if shard is not None and shard.pending is not None:
            shard.pending.log_through(through)
