"""The function that a streaming query calls with each micro-batch, and that can be taken back.

py4j keeps such a function until the process ends, and with it all that the function refers to, loaded modules included.
So this module imports nothing that is worth keeping, and the object that py4j keeps forgets the function once the query
is over. Otherwise a program that had a stream could not unload DuckDB, which reports that in forty lines as leaks.
"""

from collections.abc import Callable
from typing import Any

from upriver.errors import IngestFailed


class BatchCallback:
    """Given to ``foreachBatch`` in place of ``take``, which gets the rows and the batch's number.

    take: returns why it has failed, in one line, or ``None``. Spark then ends the query with that line.
    """

    def __init__(self, take: Callable[[Any, int], str | None]) -> None:
        self._take: Callable[[Any, int], str | None] | None = take

    def __call__(self, rows: Any, batch: int) -> None:
        failure = "its query is over." if self._take is None else self._take(rows, batch)
        if failure is not None:
            # py4j and Spark log errors that are raised here, with all their stacks; py4j keeps this one.
            raise IngestFailed(failure)

    def forget(self) -> None:
        """Refuse all further batches, and keep nothing of ``take``."""
        self._take = None
