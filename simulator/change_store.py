"""The change log in the lake of a simulated cluster: what is on its way there, and what its readers have seen."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import count

from simulator import checkers
from simulator.checkers import require
from simulator.oracle import Oracle, Row, rows_in
from upriver.coordinator.epochs import LoggedVersions
from upriver.engine.change_kinds import ChangeKind
from upriver.engine.pending_changes import ChangedRows
from upriver.ids import Epoch, Hash64
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import PublishChanges
from upriver.protocol.worker_events import WriteChanges
from upriver.state.changes import ChangePart


class FakeChangeLog:
    """What was published. seen: by view, all rows that a reader of the log has by now."""

    def __init__(self, oracle: Oracle) -> None:
        self.waiting: deque[PublishChanges] = deque()
        """To be published."""
        self.logged: dict[str, Epoch] = {}
        """By view, the last version."""
        self.seen: dict[str, Counter[str]] = {}
        self._oracle = oracle
        self._files: dict[str, ChangedRows] = {}
        self._numbers = count()

    def store(self, action: WriteChanges) -> tuple[ChangePart, ...]:
        """The lake takes what a process has written."""
        return tuple(self._file(view, changed) for view, changed in action.rows.items())

    def _file(self, view: str, changed: ChangedRows) -> ChangePart:
        path = f"{view} {next(self._numbers)}"
        self._files[path] = changed
        none, at = Epoch(0), Hash64(0)
        return ChangePart(
            view=view, path=path, rows=len(changed), bytes=0, checksum="", first=none, last=none, start=at, end=at
        )

    def publish(self) -> PublishChanges:
        """The next changes are in the log; a reader reads them. Raises Violated unless they are what has changed."""
        wish = self.waiting.popleft()
        for view in wish.views:
            by_version: dict[int, Counter[str]] = {}
            for part in wish.parts:
                if part.view == view:
                    _add(by_version, self._files[part.path])
            if view in wish.begins:
                self.seen[view], after = Counter(), max(Epoch(wish.at - 1), self.logged.get(view, Epoch(-1)))
            else:
                after = self.logged[view]
            require(checkers.versions_go_on, view, after, wish.at, sorted(by_version), view in wish.begins)
            for version in range(after + 1, wish.at + 1):
                self.seen[view].update(by_version.get(version, Counter()))
                self._check(view, Epoch(version))
            self.logged[view] = wish.at
        return wish

    def came_to_rest(self, kept: Iterable[DataflowPlan], published: Epoch) -> None:
        """The log has all changes of these views through this epoch."""
        for plan in kept:
            if plan.logs_changes and published:
                self._check(plan.name, published)

    def _check(self, view: str, version: Epoch) -> None:
        """What a reader of the log has is the view as of this version."""
        found = {row: times for row, times in self.seen.get(view, Counter()).items() if times}
        truth = _texts(row for rows in self._oracle.at(view, version).values() for row in rows)
        require(checkers.changes_add_up_to_the_view, view, version, truth, found)

    def begin_again(self, kept: Iterable[str], is_within_a_segment: Callable[[Epoch], bool]) -> LoggedVersions:
        """Another driver has come: the logs that go on with these views. What was to be published is not.
        is_within_a_segment: whether epochs after this one cannot be told from those before."""
        self.waiting.clear()
        logged = {view: self.logged[view] for view in kept if view in self.logged}
        found = {view: at for view, at in logged.items() if not is_within_a_segment(at)}
        return LoggedVersions(found, dict(self.logged))


def _add(by_version: dict[int, Counter[str]], changed: ChangedRows) -> None:
    for row, version, kind in zip(
        rows_in(changed.rows), changed.versions.tolist(), changed.kinds.tolist(), strict=True
    ):
        by_version.setdefault(version, Counter())[_text(row)] += (
            1 if kind in (ChangeKind.INSERT, ChangeKind.POSTIMAGE) else -1
        )


def _text(row: Row) -> str:
    """Equal texts for equal rows: all zeros are one."""
    return repr(tuple(value + 0.0 if isinstance(value, float) else value for value in row))


def _texts(rows: Iterable[Row]) -> dict[str, int]:
    return dict(Counter(map(_text, rows)))
