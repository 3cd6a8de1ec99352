"""The process that runs the code of one flow's functions for one worker; and the messages between the two.

The worker starts it as ``python -c START``, with one end of a socket pair. It asks for a function to be loaded, and
then for calls of it. It asks for one thing at a time, and each has one answer. Values travel as Arrow's record batches:
nothing that the process says is unpickled.

The process also tells when a function begins a call, if it has not told so for a while. So the worker can tell a batch
of many slow calls from a call that does not end.

It ignores SIGINT, which is meant for the program that has started the app. So a KeyboardInterrupt here is the
function's own.

A thread reads standard input, which the worker keeps open: the process ends when the worker does. What the functions
print goes where the worker's own output goes.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from upriver.engine.operators.map_calls import Call, CallingProcess, Given, Made, map_call
from upriver.engine.user_functions import VALUE, ColumnFunction
from upriver.errors import UpriverError
from upriver.logs import configure
from upriver.plan.plan import FunctionForm, Per, StatefulMapOp, UserFunction
from upriver.state.failure import told_with_place

START = (
    "import json, sys; settings = json.loads(sys.argv[1]); sys.path[:] = settings['path']; "
    "from upriver.runtime.function_server import serve; serve(settings)"
)
"""The program of the process, whose one argument is JSON: ``path``, ``link``, ``tell_every_s`` and ``logs``."""


class Kind(IntEnum):
    """What a message is. LOAD_COLUMN, LOAD_MAP, CALL: of the worker. DONE, FAILED, BEGUN: of the process."""

    LOAD_COLUMN = 1
    LOAD_MAP = 2
    CALL = 3
    DONE = 4
    FAILED = 5
    BEGUN = 6


Part: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
HEAD = struct.Struct("<BIB")
"""Of a message: its kind, the number of its function, and how many parts follow."""
LENGTH = struct.Struct("<Q")
"""Of each part, behind the head."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message. number: of the function."""

    kind: Kind
    number: int
    parts: Sequence[Part] = ()

    def packed(self) -> list[memoryview]:
        """Its bytes, in pieces."""
        parts = [memoryview(part).cast("B") for part in self.parts]
        lengths = b"".join(LENGTH.pack(len(part)) for part in parts)
        head = memoryview(HEAD.pack(self.kind, self.number, len(parts)) + lengths)
        return [head, *(part for part in parts if len(part))]


def read_message(read: Callable[[int], bytearray]) -> Said:
    """The next message. read: so many bytes, no fewer."""
    kind, number, count = HEAD.unpack(read(HEAD.size))
    lengths = [LENGTH.unpack(read(LENGTH.size))[0] for _ in range(count)]
    return Said(Kind(kind), number, [read(length) for length in lengths])


# What the parts are -----------------------------------------------------------------------------------------------


def batch_part(rows: pa.RecordBatch) -> pa.Buffer:
    """The rows, without their schema."""
    return rows.serialize()


def batch_of(part: Part, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of :func:`batch_part`."""
    return pa.ipc.read_record_batch(pa.py_buffer(part), schema)


def schema_of(part: Part) -> pa.Schema:
    """The inverse of ``Schema.serialize``."""
    return pa.ipc.read_schema(pa.py_buffer(part))


def loading_column(function: UserFunction) -> list[Part]:
    """The parts of LOAD_COLUMN."""
    about = {"name": function.name, "form": str(function.form)}
    return [_json(about), *(schema.serialize() for schema in column_schemas(function)), function.function]


def column_schemas(function: UserFunction) -> tuple[pa.Schema, pa.Schema]:
    """Of what a scalar function takes and gives, as batches."""
    taken = pa.schema([pa.field(str(place), type) for place, type in enumerate(function.arguments)])
    return taken, pa.schema([(VALUE, function.returns)])


def loading_map(op: StatefulMapOp, source: pa.Schema) -> list[Part]:
    """The parts of LOAD_MAP. source: of the rows that will come."""
    about = {"key": list(op.key), "per": str(op.per), "name": op.name}
    return [_json(about), *(schema.serialize() for schema in (source, op.state, op.output)), op.function]


def given_parts(given: Given, source: pa.Schema) -> list[Part]:
    """The parts of a CALL of a stateful map. source: of the rows that were to come; the rows' own schema goes along if
    it is another one."""
    own = b"" if given.rows.schema.equals(source) else given.rows.schema.serialize()
    return [
        own,
        *map(batch_part, (given.rows, given.keys, given.states)),
        np.ascontiguousarray(given.bounds, np.int64).tobytes(),
        given.known.tobytes(),
    ]


def made_parts(made: Made) -> list[Part]:
    """The parts of its answer."""
    owners = np.ascontiguousarray(made.owners, np.int64).tobytes()
    return [batch_part(made.rows), batch_part(made.states), owners, made.kept.tobytes()]


def made_of(parts: Sequence[Part], output: pa.Schema, state: pa.Schema) -> Made:
    """The inverse of :func:`made_parts`. output: of the rows, without their key."""
    rows, states, owners, kept = parts
    return Made(
        batch_of(rows, output), np.frombuffer(owners, np.int64), batch_of(states, state), np.frombuffer(kept, np.bool_)
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# The process ------------------------------------------------------------------------------------------------------


class _LoadedFunctions:
    """The functions that are loaded, by number; each takes and gives parts."""

    def __init__(self, begins: Callable[[], object]) -> None:
        self._process = CallingProcess(begins, passes=())
        self._loaded: dict[int, Callable[[Sequence[Part]], list[Part]]] = {}

    def answer(self, said: Said) -> list[Part]:
        """Load a function, or call it. Raises what that raises."""
        match said.kind:
            case Kind.LOAD_COLUMN:
                self._loaded[said.number] = self._column(said.parts)
                return []
            case Kind.LOAD_MAP:
                self._loaded[said.number] = self._map(said.parts)
                return []
        return self._loaded[said.number](said.parts)

    def _column(self, parts: Sequence[Part]) -> Callable[[Sequence[Part]], list[Part]]:
        about, (taken, given) = json.loads(bytes(parts[0])), map(schema_of, parts[1:3])
        function = UserFunction(
            about["name"], tuple(taken.types), given.field(0).type, FunctionForm(about["form"]), bytes(parts[3])
        )
        call = ColumnFunction(function, self._process)

        def called(parts: Sequence[Part]) -> list[Part]:
            values = call(*batch_of(parts[0], taken).columns)
            return [batch_part(pa.RecordBatch.from_arrays([values], schema=given))]

        return called

    def _map(self, parts: Sequence[Part]) -> Callable[[Sequence[Part]], list[Part]]:
        about, (source, state, output) = json.loads(bytes(parts[0])), map(schema_of, parts[1:4])
        op = StatefulMapOp(tuple(about["key"]), bytes(parts[4]), Per(about["per"]), state, output, name=about["name"])
        call: Call = map_call(op, source, self._process)
        key = pa.schema(list(output)[: len(op.key)])

        def called(parts: Sequence[Part]) -> list[Part]:
            own, rows, keys, states, bounds, known = parts
            given = Given(
                batch_of(rows, schema_of(own) if len(own) else source),
                np.frombuffer(bounds, np.int64),
                batch_of(keys, key),
                batch_of(states, state),
                np.frombuffer(known, np.bool_),
            )
            return made_parts(call(given))

        return called


class _Link:
    """The process's end of the socket pair. tell_every_s: seconds between two BEGUN at least."""

    def __init__(self, link: socket.socket, tell_every_s: float) -> None:
        self._link = link
        self._tell_every_s = tell_every_s
        self._tell_at = 0.0

    def serve(self) -> None:
        """Answer until the worker closes its end."""
        functions = _LoadedFunctions(self._begins)
        while True:
            said = read_message(self._read)
            self._tell_at = time.monotonic() + self._tell_every_s
            try:
                answer = Said(Kind.DONE, said.number, functions.answer(said))
            except UpriverError as error:
                answer = self._failed(said, type(error).__name__, str(error))
            except Exception as error:  # of any class: the worker must not wait in vain
                answer = self._failed(said, "ProtocolError", told_with_place(error))
            sys.stdout.flush()
            self._send(answer)

    def _begins(self) -> None:
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + self._tell_every_s
            self._send(Said(Kind.BEGUN, 0))

    def _failed(self, said: Said, kind: str, text: str) -> Said:
        return Said(Kind.FAILED, said.number, [_json({"error": kind, "message": text})])

    def _send(self, said: Said) -> None:
        for piece in said.packed():
            self._link.sendall(piece)

    def _read(self, size: int) -> bytearray:
        read, view = bytearray(size), 0
        while view < size:
            count = self._link.recv_into(memoryview(read)[view:])
            if not count:
                os._exit(0)
            view += count
        return read


def serve(settings: dict[str, Any]) -> None:
    """Run the process. settings: the argument of ``START``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=settings["link"])
    link.set_inheritable(False)
    _end_with(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if settings["logs"] is not None:
        configure(**settings["logs"])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _warm_up()
    _Link(link, settings["tell_every_s"]).serve()


def _warm_up() -> None:
    """Make Arrow import pandas now, if it is there: it does so for its first array, and that might take as long as a
    call may."""
    pa.array([1]).to_pylist()
    pa.array(np.zeros(1)).to_numpy()


def _end_with(standard_input: int) -> None:
    """End this process when the worker's end of its standard input is closed, as when the worker has ended."""

    def wait() -> None:
        while os.read(standard_input, 1):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="upriver-worker-watch", daemon=True).start()
