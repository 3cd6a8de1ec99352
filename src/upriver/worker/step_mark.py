"""The mark of the step that a worker is in. It is in memory that may outlive the process."""

from typing import Final

from upriver.ids import Epoch, FlowId
from upriver.protocol.messages import FlowStep

_FORM: Final = "q"
"""Of the flow and of the epoch: each a number of 64 bits, in the processor's own order of bytes."""
MARK_BYTES = 16

Cells = tuple[int, int]


def marked(memory: bytes | bytearray | memoryview) -> FlowStep | None:
    """The step in which the process was that has left this memory; ``None``: it was in none."""
    flow, epoch = memoryview(memory).cast(_FORM)
    return FlowStep(FlowId(flow), Epoch(epoch)) if flow else None


class StepMark:
    """Marks each step, and makes no system call. Steps nest: a share may be stepped while another one waits for a
    user's function. A step that ends the worker leaves its mark."""

    def __init__(self) -> None:
        self.keep_in(bytearray(MARK_BYTES))

    def keep_in(self, memory: bytearray | memoryview) -> None:
        """Keep the mark here from now on: ``MARK_BYTES`` bytes, all 0. No step is under way."""
        self.memory = memory
        self._cells = memoryview(memory).cast(_FORM)

    def begin(self, flow: FlowId, epoch: Epoch) -> Cells:
        """A step begins. Returns the one that it is a part of, for ``end``."""
        cells = self._cells
        outer = cells[0], cells[1]
        cells[0], cells[1] = flow, epoch
        return outer

    def end(self, outer: Cells) -> None:
        """The step has ended, and the outer one goes on."""
        cells = self._cells
        cells[0], cells[1] = outer
