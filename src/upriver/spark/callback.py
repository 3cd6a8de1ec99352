"""The function that a streaming query calls with each micro-batch, and that can be taken back.

py4j keeps such a function until the process ends, and with it all that the function refers to, loaded modules included.
So this module imports nothing that is not kept anyway. The object that py4j keeps forgets the function once the query
is over. Otherwise a program that had a stream could not unload DuckDB, which reports that in forty lines as leaks.
"""

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

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


_REVIVING = threading.Lock()
"""Guards the thread of the callback server, which all queries of a process share."""


def revive_callback_server(spark: SparkSession) -> bool:
    """Have py4j accept the JVM's calls again if it has stopped; returns whether it had, and can again. Any thread may
    call this.

    py4j's server ends its thread when it cannot accept a connection, as without descriptors, and leaves its socket
    open. So the JVM connects, and waits for an answer without limit. The calls that wait are answered then.
    """
    gateway: Any = spark.sparkContext._gateway
    with _REVIVING:
        server = vars(gateway).get("_callback_server")
        if server is None or server.thread is None or server.is_shutdown or server.thread.is_alive():
            return False
        try:
            server.server_socket.dup().close()
        except OSError:  # it would stop at once, and log that, with its stack
            return False
        server.thread = threading.Thread(target=server.run, name="upriver-callback-server", daemon=True)
        server.thread.start()
    return True
