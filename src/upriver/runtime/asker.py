"""Asker: a thread that waits for the outcome of its lookup."""

from upriver.errors import UpriverError
from upriver.net.latch import Latch
from upriver.net.lookup import Answered
from upriver.protocol.worker_events import Answer


class Asker:
    """``settle`` is called once, by any thread; ``wait`` by the one that asks."""

    __slots__ = ("_is_settled", "_outcome")

    def __init__(self) -> None:
        self._is_settled = Latch()
        self._outcome: Answer | UpriverError | None = None

    def settle(self, outcome: Answer | UpriverError) -> None:
        """The lookup is answered, or refused."""
        self._outcome = outcome
        self._is_settled.open()

    def wait(self, seconds: float) -> Answer | UpriverError | None:
        """The outcome; ``None`` if there was none in so many seconds."""
        return self._outcome if self._is_settled.wait(seconds) else None


def answered(answer: Answer) -> Answered:
    """What the machine has answered, as it goes to the client. Takes long for many rows in several parts."""
    return Answered(answer.rows, answer.epoch, answer.version, answer.relayed, answer.held_up)
