"""Answers upqueries out of the lake, on a thread of its own: the worker's loop goes on meanwhile."""

import queue
import threading
from collections.abc import Callable, Mapping

from upriver.coordinator.cluster import EPOCHS_AHEAD_MAX
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.ids import Channel, Epoch
from upriver.lake.history import History
from upriver.lake.lake import Lake
from upriver.plan.plan import TableSpec
from upriver.protocol.worker_events import FetchRows, KeysRead, KeysUnread, ReadKeys, RowsFetched, RowsUnfetched

Wish = ReadKeys | FetchRows
Answer = KeysRead | KeysUnread | RowsFetched | RowsUnfetched
Asked = tuple[Wish, Mapping[Channel, TableSpec]]


class UpqueryReader:
    """``ask`` and ``close`` are called by the worker's loop, ``hear`` and ``fail`` by the thread."""

    def __init__(self, lake: Lake, hear: Callable[[Answer], None], fail: Callable[[BaseException], None]) -> None:
        """hear: takes answers. fail: takes what has ended the thread; nothing is answered after it."""
        self._lake = lake
        self._history = History(lake)
        self._hear = hear
        self._fail = fail
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        """A region has one under way at a time, so there are never more of them than regions."""
        self._thread: threading.Thread | None = None

    def ask(self, wish: Wish, tables: Mapping[Channel, TableSpec]) -> None:
        """tables: of the channels."""
        if self._thread is None:  # a worker without partial views has none
            self._thread = threading.Thread(target=self._answer_all, name="upriver-upqueries", daemon=True)
            self._thread.start()
        self._asked.put((wish, tables))

    def close(self) -> None:
        """What is under way is of no use any more."""
        self._asked.put(None)

    def _answer_all(self) -> None:
        try:
            while (asked := self._asked.get()) is not None:
                self._hear(self._answered(*asked))
        except BaseException as error:
            self._fail(error)

    def _answered(self, wish: Wish, tables: Mapping[Channel, TableSpec]) -> Answer:
        """What cannot be read is the trouble of lookups that need it. They may be asked again."""
        try:
            return self._fetched(wish, tables) if isinstance(wish, FetchRows) else self._read(wish, tables)
        except UpriverError as error:
            return _unanswered(wish, error)
        except Exception as error:  # whatever it is, it is about these keys
            return _unanswered(wish, ProtocolError(f"the lake's rows cannot be read: {error_text(error)}"))

    def _fetched(self, action: FetchRows, tables: Mapping[Channel, TableSpec]) -> RowsFetched:
        rows = tuple(
            self._history.rows_of(read.channel, tables[read.channel], read.keys, read.through, read.after)
            for read in action.reads
        )
        return RowsFetched(generation=action.generation, view=action.view, rows=rows)

    def _read(self, action: ReadKeys, tables: Mapping[Channel, TableSpec]) -> KeysRead:
        keys, through = action.upquery.keys, action.upquery.through
        while through < action.upquery.through + EPOCHS_AHEAD_MAX and self._lake.has_epoch(Epoch(through + 1)):  # P7
            through = Epoch(through + 1)
        rows = tuple(
            (port, self._history.rows_of(channel, tables[channel], keys, through)) for port, channel in action.ports
        )
        return KeysRead(
            generation=action.generation,
            region=action.region,
            number=action.upquery.number,
            rows=rows,
            through=through,
        )


def _unanswered(wish: Wish, error: UpriverError) -> KeysUnread | RowsUnfetched:
    if isinstance(wish, FetchRows):
        return RowsUnfetched(generation=wish.generation, view=wish.view, error=error)
    return KeysUnread(generation=wish.generation, region=wish.region, number=wish.upquery.number, error=error)
