"""A worker's side of boards: the memory that clients on its machine read; ``docs/design/boards.md``.

A client asks the worker, by an action, for the board of a view, and says on which machine it
is: ``{"view": name, "view_schema": schema, "key": columns, "machine": name}``. If that is this machine, it is told
``{"process": id, "file": descriptor, "name": hex, "buckets": number}``, else nothing. The memory has
no name in any directory: it is gone when the last who has it is.
"""

import mmap
import os
import platform
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from upriver.errors import ProtocolError
from upriver.plan.plan import schema_from_json
from upriver.protocol.worker_events import BoardGiven
from upriver.state.board import Board
from upriver.state.board_layout import NAME_BYTES, BoardLayout

BOARD = "board"
"""The action that gives one."""
BOARD_BYTES_MAX = 4 << 20
"""Bytes of one board."""
BOARDS_BYTES_MAX = 16 << 20
"""Bytes of all boards of a worker."""
BUDGET_SHARE = 4
"""They take at most this part of the worker's memory budget."""
ORDERED = ("x86_64", "AMD64")
"""Processors on which others see what one writes in the order in which it was written: boards rest on that."""


@cache
def machine() -> str | None:
    """A name that two processes have in common if they can read each other's memory and have one clock; ``None`` where
    there are no boards."""
    if sys.platform != "linux" or platform.machine() not in ORDERED:
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time", "user")]
    except OSError:
        return None
    return " ".join([boot, *spaces, str(os.getuid())])


class Boards:
    """A worker's. Usable by any thread.

    give: tells the worker of one. memory_budget: the worker's, in bytes; ``None`` for any.
    """

    def __init__(self, give: Callable[[BoardGiven], None], memory_budget: int | None) -> None:
        self._give = give
        self._bytes_max = BOARDS_BYTES_MAX
        if memory_budget is not None:
            self._bytes_max = min(BOARDS_BYTES_MAX, memory_budget // BUDGET_SHARE)
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._boards: dict[str, tuple[Board, int, dict[str, Any]]] = {}
        """By view: each with its descriptor, and what is told of it."""
        self._good_until = 0.0
        self._is_over = False

    def ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The action: where the board of a view is; nothing, if there is none for whoever asks."""
        view, key = asked.get("view"), asked.get("key")
        if not isinstance(view, str) or not isinstance(key, list):
            raise ProtocolError(f"view {view!r}, key {key!r}: a board is of a view, by name")
        if machine() is None or asked.get("machine") != machine():
            return {}
        schema = schema_from_json(asked["view_schema"])
        with self._lock:
            self._forget_closed()
            if view in self._boards:
                board, _, told = self._boards[view]
                return told if (board.layout.schema, board.layout.key) == (schema, tuple(key)) else {}
            room = min(BOARD_BYTES_MAX, self._bytes_max - sum(board.nbytes for board, _, _ in self._boards.values()))
            layout = BoardLayout.of(schema, key, room)
            if layout is None or self._is_over:
                return {}
            board, told = self._made(view, layout)
        self._give(BoardGiven(view=view, board=board))
        return told

    def _made(self, view: str, layout: BoardLayout) -> tuple[Board, dict[str, Any]]:
        """With the lock held."""
        name = secrets.token_bytes(NAME_BYTES)
        file = os.memfd_create("upriver-board")
        os.ftruncate(file, layout.nbytes)
        board = Board(layout, mmap.mmap(file, layout.nbytes), name)
        board.good_until(self._good_until)
        told = {"process": os.getpid(), "file": file, "name": name.hex(), "buckets": layout.buckets}
        self._boards[view] = board, file, told
        return board, told

    def good_until(self, time: float) -> None:
        """What is on the boards may be read until then (B6): the worker's lease."""
        with self._lock:
            self._good_until = time
            for board, _, _ in self._boards.values():
                board.good_until(time)

    def close(self) -> None:
        """Nobody may read any board any more. The worker's loop must have ended."""
        with self._lock:
            self._is_over = True
            for board, _, _ in self._boards.values():
                board.close()
            self._forget_closed()

    def _forget_closed(self) -> None:
        for view, (board, file, _) in list(self._boards.items()):
            if board.is_closed:
                del self._boards[view]
                os.close(file)
