"""The messages between coordinator and workers as wire messages, and back. JSON all the way: nothing is unpickled.

A message is the JSON of its fields, under the name of its class.
"""

from collections.abc import Mapping
from typing import Any, get_args

from upriver.errors import ProtocolError
from upriver.net.wire import Message
from upriver.protocol.json_forms import record_form
from upriver.protocol.messages import FromWorker, ToWorker


def encode(message: ToWorker | FromWorker) -> Message:
    """A machine's message for the wire; its class name is the kind."""
    kind: Any = type(message)
    to_json, _ = record_form(kind)
    return Message(type(message).__name__, to_json(message))


def decode_to_worker(message: Message) -> ToWorker:
    """A message of the coordinator. Raises ProtocolError for anything else."""
    said: ToWorker = _decode(message, _TO_WORKER, "the coordinator said {}, which no worker knows")
    return said


def decode_from_worker(message: Message) -> FromWorker:
    """A message of a worker. Raises ProtocolError for anything else."""
    said: FromWorker = _decode(message, _FROM_WORKER, "a worker said {}, which the coordinator does not know")
    return said


_TO_WORKER: Mapping[str, type] = {kind.__name__: kind for kind in get_args(ToWorker)}
_FROM_WORKER: Mapping[str, type] = {kind.__name__: kind for kind in get_args(FromWorker)}


def _decode(message: Message, kinds: Mapping[str, type], unknown: str) -> Any:
    kind = kinds.get(message.kind)
    if kind is None:
        raise ProtocolError(unknown.format(repr(message.kind)))
    _, from_json = record_form(kind)
    try:
        return from_json(message.fields)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"a malformed {message.kind}: {error!r}") from error
