"""What the tasks of an action read of an app's tables and views, all as of one epoch where that can be.

The first task of an action decides. Full views are read from snapshots of the workers. If these are of one epoch,
tables and partial views are read from the lake as of it. Otherwise a full view whose snapshot is of another epoch is
computed from the lake, too. A stateful map and a view of a table that sets rows aside cannot be: such a view is read as
of an epoch of its own, if there are several.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from upriver.client.scans import SNAPSHOT_S_MAX
from upriver.ids import Epoch, SnapshotId
from upriver.plan.plan import DataflowPlan, StatefulMapOp
from upriver.runtime.coordinator_loop import SnapshotParts
from upriver.runtime.coordinator_service import CoordinatorService

ACTIONS_KNOWN_MAX = 10_000
"""Actions whose epoch is remembered: far more than run at a time."""
SNAPSHOT_ATTEMPTS = 3
"""How often snapshots of several views are taken until they are of one epoch."""


class RunningActions(Protocol):
    """What Spark says of its actions that are under way. An action: Spark's id of its execution."""

    def names_read(self, execution: int) -> tuple[str, ...] | None:
        """The tables and views of the app that it reads; ``None`` if Spark does not know the action."""

    def pinned(self, execution: int) -> Epoch | None:
        """The epoch that it must read, since it goes on from what an earlier action has read."""

    def pin(self, execution: int, epoch: Epoch | None) -> None:
        """Note the epoch that it reads; ``None``: it fails."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """What an action reads. snapshots: of full views, by name."""

    epoch: Epoch
    snapshots: Mapping[str, SnapshotParts] = field(default_factory=dict)


@dataclass(slots=True)
class _Action:
    """An action whose tasks have asked. begun: guarded by the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: _Begun | None = None


class LeafReads:
    """Answers the tasks that read leaves of one running app, on many threads."""

    def __init__(
        self,
        service: CoordinatorService,
        actions: RunningActions,
        set_aside: Callable[[], Collection[str]],
    ) -> None:
        """set_aside: the tables that set bad rows aside."""
        self._service = service
        self._running = actions
        self._set_aside = set_aside
        self._lock = threading.Lock()
        self._actions: OrderedDict[str, _Action] = OrderedDict()
        """In order of their first task. Guarded by the lock."""

    def read(self, name: str, execution: int | None, stage: int) -> dict[str, Any]:
        """How a task reads a table or a view. execution: of its action; ``None`` if Spark has no id for it. stage: the
        task's.

        Raises UnknownView, NotReady, the error of a view that has failed, ClusterError, WaitTimeout.
        """
        action = self._action(f"s{stage}" if execution is None else f"e{execution}")
        with action.lock:
            if action.begun is None:
                action.begun = self._begin(name, execution)
            begun = action.begun
        self._service.check_ready(name)
        parts, lake = begun.snapshots.get(name), None
        if parts is None:
            lake = self._service.lake_scan(name, computes_full=True)
            parts = SnapshotParts(SnapshotId(0), begun.epoch, ())
        told = self._service.source_of(name, lake)
        return {**told, "snapshot": parts.snapshot, "epoch": parts.epoch, "addresses": list(parts.addresses)}

    def _action(self, key: str) -> _Action:
        with self._lock:
            action = self._actions.get(key)
            if action is None:
                action = self._actions[key] = _Action()
                if len(self._actions) > ACTIONS_KNOWN_MAX:
                    self._actions.popitem(last=False)
            return action

    def _begin(self, name: str, execution: int | None) -> _Begun:
        """Decide what the action reads. name: one of the tables and views that it reads."""
        if execution is None:
            return self._begun((name,))
        try:
            pinned = self._running.pinned(execution)
            found = self._running.names_read(execution) or (name,)
            begun = self._begun(found if name in found else (*found, name), pinned)
        except BaseException:
            self._running.pin(execution, None)
            raise
        self._running.pin(execution, begun.epoch)
        return begun

    def _begun(self, names: tuple[str, ...], pinned: Epoch | None = None) -> _Begun:
        for name in names:
            self._service.lake_scan(name)  # raises for a view that has failed, or is gone
            self._service.check_ready(name)
        full = {name: plan for name in names if (plan := self._service.full_plan(name)) is not None}
        tied = {name for name, plan in full.items() if not self._can_be_computed(plan)}
        if pinned is not None:
            return _Begun(pinned, self._snapshots(tied))
        if not full:
            return _Begun(self._service.ended)
        for _ in range(SNAPSHOT_ATTEMPTS):
            taken = self._snapshots(full)
            epochs = {parts.epoch for parts in taken.values()}
            if len(epochs) == 1:
                break
        epoch = max([taken[name].epoch for name in tied] or epochs)
        return _Begun(epoch, {name: one for name, one in taken.items() if one.epoch == epoch or name in tied})

    def _snapshots(self, views: Collection[str]) -> dict[str, SnapshotParts]:
        return {view: self._service.snapshot(view, SNAPSHOT_S_MAX) for view in views}

    def _can_be_computed(self, plan: DataflowPlan) -> bool:
        """Whether a full view can be computed from the lake as of any epoch."""
        is_mapped = any(isinstance(node.op, StatefulMapOp) for region in plan.regions for node in region.nodes)
        return not is_mapped and set(self._set_aside()).isdisjoint(plan.tables)
