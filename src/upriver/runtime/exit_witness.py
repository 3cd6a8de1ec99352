"""The witness of an executor's workers: it tells the coordinator that a worker's process has exited.

A lost channel does not show that the worker's process has ended. The kernel of the worker's host knows. So Spark's
daemon forks one *witness*, and each worker hands it a handle of its own process, a connection to the coordinator, and a
sealed notice. When the process has exited, with all its threads, the witness writes the notice to the connection. The
witness knows no key, and can say nothing else (leases.over_when_ended).

Where there is no witness (another daemon, another system than Linux), the coordinator waits until leases expire.
"""

import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from upriver.errors import ClusterError
from upriver.net.frames import Seals, joined, read_frame
from upriver.net.handshake import Purpose
from upriver.net.remote import Remote, dial
from upriver.net.server import Caller
from upriver.net.wire import Message, decode, encode

EXITED = "exited"
"""The notice: ``{"worker": id, "life": number, "attempt": of its task}``, as in the worker's hello."""
NOTICE_BYTES_MAX = 4096
"""Bytes of a sealed notice."""
WATCHED_MAX = 400
"""Processes that one witness watches at most, with two descriptors each. Later ones go without a witness."""
DIAL_S_MAX = 2.0
"""Seconds in which the coordinator must accept the connection for the notice."""


class ExitWitness:
    """A worker's end of the socket to its witness. inherited: set in Spark's daemon, before it forks workers; ``None``:
    there is no witness."""

    inherited: ClassVar["ExitWitness | None"] = None

    def __init__(self, witness: socket.socket) -> None:
        self._witness = witness

    @classmethod
    def fork(cls) -> "ExitWitness | None":
        """Begin a witness, which ends after the last process that has inherited the returned object. ``None`` where the
        system has no handles of processes."""
        if not hasattr(os, "pidfd_open"):
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            return cls(ours)
        ours.close()
        try:
            _stand_apart()
            _Watch(theirs).run()
        finally:
            os._exit(0)

    def watch(self, remote: Remote, worker: int, life: int, attempt: int) -> bool:
        """Have the witness watch this process. remote: the coordinator, with the cluster's secret. Returns whether it
        does; if not, nothing is lost but time."""
        with suppress(OSError, ClusterError):
            stream, session = dial(remote, Purpose.EXIT, DIAL_S_MAX)
            told = Message(EXITED, {"worker": worker, "life": life, "attempt": attempt})
            connection, notice = stream.detach(joined(encode(told), Seals(session.sends)))
            with connection:  # the witness gets a descriptor of its own
                process = os.pidfd_open(os.getpid())
                try:
                    socket.send_fds(self._witness, [notice], [process, connection.fileno()], socket.MSG_DONTWAIT)
                finally:
                    os.close(process)
            return True
        return False


def _stand_apart() -> None:
    """Keep none of Spark's pipes open, and outlive signals to the executor's group: workers' exits follow them."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


class _Watch:
    """What the witness does. workers: its end of the socket to the workers."""

    def __init__(self, workers: socket.socket) -> None:
        self._workers = workers
        self._notices: dict[int, tuple[int, bytes]] = {}
        """By handle of a process: the connection, and the notice to write to it."""
        self._ready = select.poll()
        self._ready.register(workers, select.POLLIN)
        self._is_open = True

    def run(self) -> None:
        """Until no process is left that is watched, or could ask for it."""
        while self._is_open or self._notices:
            for descriptor, _ in self._ready.poll():
                if descriptor == self._workers.fileno():
                    self._take()
                else:
                    self._tell(descriptor)

    def _take(self) -> None:
        """A worker asks to be watched; or all are gone."""
        notice, descriptors, _, _ = socket.recv_fds(self._workers, NOTICE_BYTES_MAX, 2)
        if not notice:
            self._ready.unregister(self._workers)
            self._is_open = False
        elif len(descriptors) == 2 and len(self._notices) < WATCHED_MAX:
            process, connection = descriptors
            self._notices[process] = connection, notice
            self._ready.register(process, select.POLLIN)
        else:
            for descriptor in descriptors:
                os.close(descriptor)

    def _tell(self, process: int) -> None:
        """The process has exited."""
        connection, notice = self._notices.pop(process)
        self._ready.unregister(process)
        os.close(process)
        with suppress(OSError), socket.socket(fileno=connection) as told:
            told.send(notice, socket.MSG_DONTWAIT)  # nothing was written before: there is room


class ExitNotices:
    """The coordinator's service for witnesses: one connection for each worker. heard: takes the fields of a notice."""

    def __init__(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        self._heard = heard

    def serve(self, caller: Caller) -> None:
        """Wait for the notice; a connection that ends without one says nothing."""
        frame = read_frame(caller.stream, Seals(caller.session.hears))
        if frame is not None and (message := decode(frame)).kind == EXITED:
            self._heard(message.fields)

    def stop(self) -> None:
        """Do nothing: the server cuts the connections."""
