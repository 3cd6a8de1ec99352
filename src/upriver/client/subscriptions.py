"""Subscriptions: a view's changes as the coordinator gives them, in order, from any process."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import pyarrow as pa

from upriver.errors import ClusterError, NotRead
from upriver.logs import with_short_errors
from upriver.net.wire import refusing_malformed
from upriver.state.changes import ChangePosition
from upriver.state.key_filter import KeyFilter

THROUGH = b"upriver.through"
"""Key of the schema metadata of every batch of changes: the last version whose changes the client has all got. A
batch before the end of the first version lacks it."""
POLL_S = 1.0
"""Seconds that the coordinator waits for newer changes, in one call."""
CALL_S_MAX = 60.0
"""Seconds that one call may take."""
UNREACHABLE_S = 60.0
"""Seconds for which the app may give no answer, unless the caller says otherwise."""
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0
"""Seconds before a call that failed is made again; doubled each time."""

AskPiece = Callable[[Mapping[str, Any], float], tuple[dict[str, Any], pa.RecordBatch | None]]
"""Asks the coordinator for a piece: its fields, seconds to wait."""


@with_short_errors
class Subscription:
    """An endless iterator of Arrow batches of changes, for one thread at a time.

    A call that fails because the app cannot be reached, or cannot read its lake just now, is made again: the position
    is the client's, so nothing comes twice and nothing is left out.
    """

    def __init__(
        self,
        ask: AskPiece,
        closed: threading.Event,
        view: str,
        keys: KeyFilter | None,
        since: ChangePosition,
        timeout: float,
    ) -> None:
        """closed: ends it. timeout: seconds for which the app may give no answer."""
        self._ask = ask
        self._closed = closed
        self._view = view
        self._keys = keys
        self._hashes = None if keys is None else keys.hashes.tolist()
        self._position = since
        self._timeout = timeout

    @property
    def position(self) -> ChangePosition:
        """Where the next batch begins."""
        return self._position

    @property
    def through(self) -> int | None:
        """The last version whose changes the client has all got: ``since=`` of a subscription that goes on here."""
        return self._position.after

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        while (batch := self.step()) is None:
            pass
        return batch

    def step(self, wait_s: float = POLL_S) -> pa.RecordBatch | None:
        """The next batch; ``None`` if none has come in so many seconds. Raises as iterating does."""
        told, rows = self._answer(
            {"view": self._view, "position": self._position.to_json(), "keys": self._hashes, "wait_s": wait_s}
        )
        with refusing_malformed("the coordinator"):
            self._position = ChangePosition.from_json(told)
        if rows is not None and self._keys is not None:
            rows = self._keys.rows_of(rows)
        if rows is None or not rows.num_rows:
            return None
        through = {} if self.through is None else {THROUGH: str(self.through).encode()}
        return rows.replace_schema_metadata({**(rows.schema.metadata or {}), **through})

    def _answer(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        give_up_at, pause = time.monotonic() + self._timeout, RETRY_S_MIN
        while True:
            if self._closed.is_set():
                raise ClusterError("the client is closed")
            try:
                return self._ask(fields, CALL_S_MAX)
            except (ClusterError, NotRead):
                if time.monotonic() + pause >= give_up_at or self._closed.wait(pause):
                    raise
                pause = min(2 * pause, RETRY_S_MAX)
