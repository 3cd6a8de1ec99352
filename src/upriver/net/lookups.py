"""Lookups over the wire: the worker's side of a client's line.

A client authenticates by its token (:mod:`.server`), and has a :class:`upriver.net.line.Line`. Each client thread has
one line to a worker, and each lookup is one round trip. A question is a batch of keys under
``{"view": name, "at_least": epoch or null, "together": bool, "timeout": seconds}``, best with the hash64 of each, which
the client has computed anyway to find the keys' owner. Its answer is a batch of rows under the head of an
:class:`.Answered`, or an error in JSON and no rows. The line goes on, either way.
"""

from typing import Any, Protocol

import pyarrow as pa

from upriver.arguments import seconds, whole
from upriver.errors import ProtocolError
from upriver.hashing import hash64
from upriver.net.line import LOOKUP_TERMS, Frame, Line, answer_all
from upriver.net.server import Caller
from upriver.protocol.lookups import Answered, KeysAsked


class LookupHandler(Protocol):
    """Answers a lookup; called by many threads at once."""

    def __call__(self, wanted: KeysAsked) -> Answered:
        """The rows of the keys, if ``together`` all as of the end of the answer's epoch. Blocks.

        Raises WrongOwner if some key is not this worker's, WaitTimeout if ``at_least`` is not reached in ``timeout``
        seconds.
        """


class LookupService:
    """The service of lookups at a worker, on the threads of its server."""

    def __init__(self, lookup: LookupHandler) -> None:
        self._lookup = lookup

    def serve(self, caller: Caller) -> None:
        answer_all(Line(caller.stream, LOOKUP_TERMS, caller.traffic), self._answer)

    def stop(self) -> None:
        """Do nothing: lookups under way end with their lines."""

    def _answer(self, question: Frame) -> tuple[dict[str, Any], pa.RecordBatch]:
        answered = self._lookup(_wanted(question))
        return answered.head(question.head["view"]), answered.rows


def _wanted(question: Frame) -> KeysAsked:
    """A wrong hash finds nothing, since the worker compares the keys themselves. So the client's hashes are as good as
    our own."""
    head, keys, hashes = question
    given: tuple[Any, ...] = tuple(map(head.get, ("view", "at_least", "together", "timeout")))
    view, at_least, together, timeout = given
    if keys is None:
        raise ProtocolError(f"view {view!r}: a lookup without keys")
    if not isinstance(view, str) or not isinstance(together, bool):  # not all clients are ours
        raise ProtocolError(f"view {view!r}, together {together!r}: a lookup is of a view by name, together or not")
    at_least, timeout = None if at_least is None else whole("at_least", at_least), seconds("timeout", timeout)
    if len(hashes) != keys.num_rows:
        hashes = hash64(keys.columns, keys.num_rows)
    return KeysAsked(view, keys, hashes, at_least, together, timeout)
