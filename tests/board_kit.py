"""Boards in ordinary memory, for tests."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Hashes
from upriver.state.board import Board
from upriver.state.board_layout import NAME_BYTES, BoardLayout
from upriver.state.board_reader import BoardReader

FOR_EVER = 1e9
BOARD_BYTES = 65_536


@dataclass(slots=True)
class Watch:
    """A clock that stands still."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class OfView:
    """A board, its memory, and somebody who reads it."""

    layout: BoardLayout
    watch: Watch = field(default_factory=Watch)
    memory: bytearray = field(init=False)
    board: Board = field(init=False)
    reader: BoardReader = field(init=False)

    def __post_init__(self) -> None:
        self.memory = bytearray(self.layout.nbytes)
        self.board = Board(self.layout, self.memory, bytes(range(NAME_BYTES)))
        self.reader = BoardReader(self.layout, self.memory, self.watch)
        self.board.good_until(FOR_EVER)

    def find(self, hash64: Hashes) -> pa.RecordBatch | None:
        """The rows of those of these keys that are found, in order."""
        found = [found[0] for key in hash64 if (found := self.reader.find(np.array([key], np.uint64))) is not None]
        return self.layout.rows(np.concatenate(found)) if found else None


def board_for(schema: pa.Schema, *key: str, nbytes: int = BOARD_BYTES) -> OfView:
    """A board for rows of this schema."""
    layout = BoardLayout.of(schema, key, nbytes)
    assert layout is not None
    return OfView(layout)
