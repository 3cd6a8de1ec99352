"""Malformed messages for parsers: how they are made of real ones, and what a parser must do with each.

A parser either takes a message, and what it gives can be used, or it refuses it with one of its own errors. No other
exception, no end of the process, ``CPU_S_MAX`` seconds at most, and ``MEMORY_BYTES_MAX`` bytes of memory at most.

A case is named by its parser, a seed and a number. The three make the same message again, in any process.
"""

import copy
import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import UpriverError

CPU_S_MAX = 20.0
"""Seconds of the processor that a parser may take for one message: a hundred times what any takes."""
STUCK_S_MAX = 120.0
"""Seconds after which a parser that waits for something ends the process, with the stacks of all threads."""
MEMORY_BYTES_MAX = 256 << 20
"""Bytes that a process may take beside what it has once all valid messages were parsed."""
STACK_BYTES = 512 << 10
"""Bytes of a thread's stack: stacks count as memory."""
MESSAGE_BYTES_MAX = 128 << 10
"""Bytes of a message that is made here: it fits the buffers of a socket."""
FAULTS_MAX = 25
"""Faults of one parser at different places, after which a campaign stops."""
DEEP = 20_000
"""Levels of nested JSON: more than any reader follows."""

Message: TypeAlias = bytes

ROWS = 5
COLUMNS = {
    "text": pa.array(["a", None, "ccc", "", "naïve"]),
    "large": pa.array(["a", None, "ccc", "", "e"], pa.large_string()),
    "bytes": pa.array([b"a", None, b"\xff", b"", b"e"]),
    "number": pa.array([1, None, 3, 4, 5]),
    "flag": pa.array([True, None, False, True, True]),
    "decimal": pa.array([1, None, 3, 4, 5], pa.decimal128(20, 3)),
    "list": pa.array([[1], None, [2, 3], [], [4]]),
    "large_list": pa.array([["x"], None, ["y", None], [], ["z"]], pa.large_list(pa.string())),
    "fixed": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}, {"a": 5, "b": "z"}]),
    "map": pa.array([[("k", 1)], None, [("l", None)], [], [("m", 2)]], pa.map_(pa.string(), pa.int64())),
    "word": pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
    "words": pa.array([["a"], None, ["b", "a"], [], ["c"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "view": pa.array(["short", None, "longer than twelve", "", "e"], pa.string_view()),
    "list_view": pa.array([[1], None, [2, 3], [], [4]], pa.list_view(pa.int64())),
    "runs": pc.run_end_encode(pa.array(["a", "a", "b", "b", "b"])),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, 3, 4, 5]), pa.array(["a", "b", "c", "d", "e"])]
    ),
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0], pa.int8()),
        pa.array([0, 0, 1, 1, 2], pa.int32()),
        [pa.array([1, 2, 3]), pa.array(["a", "b"])],
    ),
}
"""A column of each type that Arrow sends."""
USED_ROWS_MAX = 1 << 16
"""Rows of a batch whose values are looked at: a batch of nulls has any number of them."""


class Spinning(BaseException):
    """A parser has taken longer than it may."""


@dataclass(frozen=True, kw_only=True)
class Parser:
    """One parser with real messages for it.

    parse: takes a message, and uses what it finds. valid: messages as bytes. json: messages that are JSON, as values,
    and ``written``, which makes the bytes of one out of its text. refusals: errors with which it may refuse. cost: how
    many times as long as most parsers it takes; it gets so many times fewer messages.
    """

    parse: Callable[[Message], object]
    valid: Sequence[Message] = ()
    json: Sequence[Any] = ()
    written: Callable[[bytes], Message] = bytes
    refusals: tuple[type[BaseException], ...] = (UpriverError,)
    cost: int = 1

    def examples(self) -> Iterator[Message]:
        """All valid messages."""
        yield from self.valid
        for value in self.json:
            yield self.written(json.dumps(value).encode())

    def message(self, rng: Random) -> Message:
        """A message, most often a malformed one."""
        if rng.random() < 0.02:
            return rng.randbytes(rng.randrange(200))
        if self.json and (not self.valid or rng.random() < 0.6):
            text = json_text(rng, changed_json(rng, copy.deepcopy(rng.choice(self.json))))
            return self.written(changed(rng, text) if rng.random() < 0.1 else text)[:MESSAGE_BYTES_MAX]
        valid = self.valid or [*self.examples()]
        return changed(rng, rng.choice(valid), valid)[:MESSAGE_BYTES_MAX]


# Malformed bytes and JSON --------------------------------------------------------------------------------------------


def changed(rng: Random, message: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The message with other bits, bytes and numbers, with parts gone, repeated, or taken from other messages."""
    data = bytearray(message)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(10):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(data):
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 3 | 4:
                size = rng.choice((2, 4, 8))
                order = rng.choice(("little", "big"))
                data[at : at + size] = _hostile_number(rng, size).to_bytes(size, order)  # type: ignore[arg-type]
            case 5:
                del data[at:]
            case 6:
                del data[at : at + rng.randrange(1, 16)]
            case 7:
                part = data[at : at + rng.randrange(1, 64)]
                data[at:at] = bytes(part) * rng.choice((1, 2, 100))
            case 8:
                data += rng.randbytes(rng.randrange(1, 32))
            case _ if others:
                other = rng.choice(others)
                cut = rng.randrange(len(other) + 1)
                data[at:] = other[cut:]
    return bytes(data)


def _hostile_number(rng: Random, size: int) -> int:
    bits = 8 * size
    least = rng.choice((0, 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << bits) - 1, 1 << rng.randrange(bits)))
    return max(0, min((1 << bits) - 1, least + rng.choice((-1, 0, 0, 1))))


class _Deep:
    """JSON nested more deeply than it is read."""


HOSTILE: Sequence[Any] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        7,
        1 << 31,
        1 << 40,
        (1 << 63) - 1,
        1 << 63,
        1 << 64,
        10**400,
        -(1 << 63),
        0.5,
        -0.0,
    ),
    *(
        1e308,
        float("nan"),
        float("inf"),
        "",
        "0",
        "x",
        "\0",
        "\ud800",
        "../../etc/passwd",
        "a" * 70_000,
        "é",
        "[]",
        "1e9",
    ),
    *([], {}, [[]], [None], [0] * 5_000, {"": None}, {"a": {"b": []}}, _Deep),
)


def changed_json(rng: Random, value: Any) -> Any:
    """The value with parts that are of other kinds, gone, repeated, exchanged, or far too large."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = [*_places(value)]
        if not places:
            return rng.choice(HOSTILE)
        parent, name = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del parent[name]
            case 1 | 2:
                parent[name] = copy.deepcopy(rng.choice(HOSTILE))
            case 3:
                other, of_other = rng.choice(places)
                parent[name], other[of_other] = copy.deepcopy(other[of_other]), copy.deepcopy(parent[name])
            case 4 if isinstance(parent, list):
                parent.insert(name, copy.deepcopy(parent[name]))
            case 4:
                parent[rng.choice((str(name) + "x", "", "0", "-1"))] = parent.pop(name)
            case _:
                parent[name] = _near(rng, parent[name])
    return value


def _near(rng: Random, value: Any) -> Any:
    """A value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value << 16, value << 60))
    if isinstance(value, float):
        return rng.choice((-value, value * 1e300, value + 0.5))
    if isinstance(value, str):
        return changed(rng, value.encode("utf-8", "replace")).decode("latin-1")
    return [value] if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each part of a value: what has it, and by which name or number."""
    names = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    for name in names:
        yield value, name
        yield from _places(value[name])


def json_text(rng: Random, value: Any) -> bytes:
    """As JSON; what Python writes and JSON does not have stays in it."""
    deep = rng.choice(("[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP))
    text = json.dumps(value, default=lambda _: "DEEP", ensure_ascii=rng.random() < 0.5)
    return text.replace('"DEEP"', deep).encode("utf-8", "surrogatepass")


def use(batch: pa.RecordBatch) -> None:
    """Touch every value."""
    if batch.num_rows > USED_ROWS_MAX:
        return
    with suppress(Exception):  # what Python refuses ends nothing
        batch.to_pylist()
        batch.take(pa.array(np.arange(batch.num_rows)[::-1]))
        pa.concat_batches([batch, batch]).to_pylist()


# The property --------------------------------------------------------------------------------------------------------


def check(parser: Parser, message: Message) -> bool:
    """Parse a message; returns whether it was taken. Raises whatever the parser may not raise."""
    with _limited():
        try:
            parser.parse(message)
        except parser.refusals as error:
            if not str(error):
                raise AssertionError(f"a refusal that says nothing: {error!r}") from error
            return False
        return True


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Spinning(f"more than {CPU_S_MAX:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass
class Campaign:
    """Many cases of one parser, in a process of its own. progress: a file with the case under way, for whatever looks
    why the process has ended."""

    name: str
    parser: Parser
    seed: int
    progress: Path
    taken: int = 0
    refused: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """Their descriptions, by place in the source."""

    def run(self, first: int, count: int) -> None:
        for number in range(first, first + -(-count // self.parser.cost)):
            message = self.parser.message(Random(f"{self.seed}/{self.name}/{number}"))
            self.progress.write_text(self._named(number))
            faulthandler.dump_traceback_later(STUCK_S_MAX, exit=True)
            try:
                if check(self.parser, message):
                    self.taken += 1
                else:
                    self.refused += 1
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self._note(number, message, error)
                if len(self.faults) >= FAULTS_MAX:
                    return
            finally:
                faulthandler.cancel_dump_traceback_later()

    def _named(self, number: int) -> str:
        return f"{self.name} --seed {self.seed} --first {number} --count 1"

    def _note(self, number: int, message: Message, error: BaseException) -> None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/upriver/" in frame.filename]
        place = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else repr(error)[:80]
        if place not in self.faults:
            trace = "".join(traceback.format_exception(error)[-4:])
            self.faults[place] = f"{self._named(number)}\n{message[:300]!r}\n{trace[-1500:]}"


def campaign(directory: Path, seed: int, count: int, *names: str) -> None:
    """Give these parsers, or all, malformed messages in a process of their own, each about so many. directory: for a
    file of the case under way. Fails with the cases that show a fault; each runs alone by the words that it gives."""
    progress, program = directory / "case", Path(__file__).parent / "fuzzed_parsers.py"
    words = [*names, "--seed", str(seed), "--count", str(count), "--progress", str(progress)]
    tried = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, check=False)
    last = progress.read_text() if progress.exists() else "the start"
    told = f"{tried.stdout[-6000:]}\n{tried.stderr[:2000]}"  # what DuckDB says at the end of a process comes last
    assert tried.returncode == 0, f"{last}: the process ended with {tried.returncode}: {told}"


def limit_memory() -> None:
    """From now on the process takes ``MEMORY_BYTES_MAX`` bytes more at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    may = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_DATA, (may, may))


def prepare() -> None:
    """Before any thread begins."""
    faulthandler.enable()
    threading.stack_size(STACK_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())
