"""Rejected rows: a view could not be computed from them, so workers have set them aside.

``rejected/<table>/<epoch>-<checksum>.arrow``: the rows that one worker has met at one time, of one epoch and on one
edge into a view; ``<last>-<first>-<checksum>.arrow`` for the epochs of a segment. Workers write these files before
anything can depend on leaving out the rows. A written file never changes.

A worker or an app that starts anew applies an epoch again, and meets its bad rows again; perhaps on other workers, and
in other portions. So each row is written with an *identity*: a digest of the epoch, the view, the row's values, and how
many equal rows come before it. A reader gives each identity once. Workers that begin with a segment meet the bad rows
of all its epochs together: so of equal rows that were set aside for a segment, a reader leaves out as many as it has
given of epochs within. Equal rows have one key, and all rows of a key in an epoch on an edge reach a worker together;
so they are counted alike each time. A file may be older than the table's columns: its rows then get the identities
that they have with the newest columns.

RejectedWriter writes the rows that a worker sets aside, and sends its reports after them. Any report may depend on rows
that were left out, so it is sent when those are in the lake. If the lake refuses writes, the reports wait, and the
writer retries with backoff for as long as it takes: a disk gets room again. Lookups are answered meanwhile, as of
epochs that have ended.
"""

import math
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import xxhash

from upriver.engine.row_text import error_text
from upriver.errors import CorruptFile, LakeError
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.lake.spans import EpochSpan
from upriver.plan.plan import TableSpec
from upriver.protocol.messages import FromWorker
from upriver.protocol.worker_events import SetRowsAside
from upriver.state.columns import exact_list
from upriver.state.runs import checksum_of, encode_rows
from upriver.state.schemas import SchemaChange, can_become

_NAME = re.compile(r"(\d{12})-(?:(\d{12})-)?([0-9a-f]{16})\.arrow")
_IDENTITY = "identity"


def rejected_schema(table: TableSpec) -> pa.Schema:
    """epoch, view and error say when, where and why; row is the row, with the table's columns."""
    row = pa.struct(list(table.schema))
    return pa.schema([("epoch", pa.int64()), ("view", pa.string()), ("error", pa.string()), ("row", row)])


class Rejected:
    """The rows of one table that were set aside."""

    def __init__(self, lake: Lake, table: TableSpec) -> None:
        self._lake = lake
        self._table = table
        self._directory = f"rejected/{table.name}"
        self._schema = rejected_schema(table)
        self._file_schema = self._schema.append(pa.field(_IDENTITY, pa.string()))

    def add(
        self, epoch: Epoch, view: str, rows: pa.RecordBatch, errors: Sequence[str], after: Epoch | None = None
    ) -> None:
        """Set rows aside; when this returns they are in the lake. Adding the same rows again changes nothing.

        after: the epoch before, if the rows are of a segment of several. rows: with the table's schema, of one epoch
        and one edge into the view; all copies of equal rows. errors: what is wrong with each. A row that is met on
        several edges is read once. Raises NotWritten.
        """
        if not rows.num_rows:
            return
        columns = [
            pa.array([epoch] * rows.num_rows, pa.int64()),
            pa.array([view] * rows.num_rows, pa.string()),
            pa.array(errors, pa.string()),
            pa.StructArray.from_arrays(rows.columns, fields=list(self._table.schema)),
            pa.array(_identities(epoch, view, rows, after), pa.string()),
        ]
        encoded = encode_rows(pa.Table.from_arrays(columns, schema=self._file_schema))
        epochs = f"{epoch:012d}" if after is None else EpochSpan(Epoch(after + 1), epoch).name
        try:
            self._lake.files.create(f"{self._directory}/{epochs}-{checksum_of(encoded)}.arrow", encoded)
        except FileExistsError:
            return  # it was added before

    def read(self) -> Iterator[pa.RecordBatch]:
        """Each row that was set aside, once, by epoch, those of segments last; :func:`rejected_schema`. Raises
        CorruptFile."""
        seen: set[str] = set()
        given: defaultdict[str, list[Epoch]] = defaultdict(list)
        for span, name in sorted((self._span_of(name), name) for name in self._lake.files.names(self._directory)):
            rows, identities = self._as_now(self._read_file(name), span[1])
            is_new = []
            for identity, alike in zip(identities, _values_of(rows), strict=True):
                number = int(identity.rpartition("-")[2])
                before = sum(epoch in span[1] for epoch in given[alike]) if span[0] > 1 else 0
                is_new.append(identity not in seen and number >= before)
                seen.add(identity)
            new = rows.filter(pa.array(is_new, pa.bool_()))
            for alike in _values_of(new):
                given[alike].append(span[1].last)
            yield new.select(self._schema.names)

    def _span_of(self, name: str) -> tuple[int, EpochSpan]:
        """(number of epochs, the epochs) of a file."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise CorruptFile(f"{self._lake.root}/{self._directory}/{name}: not a file of this lake")
        last, first, _ = match.groups()
        span = EpochSpan(Epoch(int(first or last)), Epoch(int(last)))
        return len(span), span

    def _as_now(self, rows: pa.RecordBatch, span: EpochSpan) -> tuple[pa.RecordBatch, list[str]]:
        """A file's rows with the table's columns as they are now, and the identities that they have then."""
        if rows.schema.equals(self._file_schema):
            return rows, rows.column(_IDENTITY).to_pylist()
        own = pa.RecordBatch.from_struct_array(rows.column("row"))
        own = SchemaChange.between(own.schema, self._table.schema).of(own)
        as_struct = pa.StructArray.from_arrays(own.columns, fields=list(self._table.schema))
        after = span.after if len(span) > 1 else None
        identities = _identities(span.last, rows.column("view")[0].as_py(), own, after)
        columns = [*rows.columns[:3], as_struct, pa.array(identities, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=self._file_schema), identities

    def _may_have(self, schema: pa.Schema) -> bool:
        """Whether a file may have this schema: the row's columns may have been others, or narrower."""
        if schema.names != self._file_schema.names or not pa.types.is_struct(row := schema.field("row").type):
            return False
        same = [name for name in schema.names if name != "row"]
        was = pa.schema([row.field(place) for place in range(row.num_fields)])
        return (
            set(self._table.key) <= set(was.names)
            and can_become(was, self._table.schema)
            and all(schema.field(name).equals(self._file_schema.field(name)) for name in same)
        )

    def _read_file(self, name: str) -> pa.RecordBatch:
        """The one batch of a file, verified."""
        path = f"{self._lake.root}/{self._directory}/{name}"
        encoded = self._lake.files.read(f"{self._directory}/{name}")
        if checksum_of(encoded) != name.removesuffix(".arrow").rpartition("-")[2]:
            raise CorruptFile(f"{path}: its checksum is not that of its content")
        try:
            file = pa.ipc.open_file(encoded)
        except pa.ArrowException as error:
            raise CorruptFile(f"{path}: not an Arrow file ({error})") from error
        if not self._may_have(file.schema):
            raise CorruptFile(f"{path}: its rows are not those of table {self._table.name!r}")
        return file.get_batch(0)


def _values_of(rows: pa.RecordBatch) -> Iterator[str]:
    """A digest of the view and the values of each row of a file."""
    values = zip(*map(exact_list, rows.column("row").flatten()), strict=True)
    return map(_digest, rows.column("view").to_pylist(), values)


def _digest(*what: object) -> str:
    return xxhash.xxh3_128_hexdigest(repr(what).encode())


def _identities(epoch: int, view: str, rows: pa.RecordBatch, after: int | None = None) -> list[str]:
    """Row by row in Python, for values of any type: bad rows are the exception."""
    met = Counter[str]()
    identities = []
    epochs = [int(epoch)] if after is None else [int(epoch), int(after)]
    for values in zip(*map(exact_list, rows.columns), strict=True):
        digest = _digest(*epochs, view, values)
        identities.append(f"{digest}-{met[digest]}")
        met[digest] += 1
    return identities


WRITE_AGAIN_S_MIN, WRITE_AGAIN_S_MAX = 0.1, 10.0
"""Seconds from a failed write to the next retry: twice as many each time."""
OWED_MAX = 10_000
"""Writes and reports that may wait. With more the worker fails, and what it has not reported comes again."""


class RejectedWriter:
    """Writes for one worker's loop. report: sends to the coordinator."""

    def __init__(self, lake: Lake, report: Callable[[FromWorker], None], now: Callable[[], float] = time.monotonic):
        """now: the time in seconds."""
        self._lake = lake
        self._send = report
        self._now = now
        self._rejected: dict[str, Rejected] = {}
        """By table."""
        self._owed: deque[SetRowsAside | FromWorker] = deque()
        """Waiting writes and reports, in order; the first is a write."""
        self.held_up: str | None = None
        """Why the last attempt of the first write failed."""
        self._again_s = WRITE_AGAIN_S_MIN
        self._again_at = 0.0

    @property
    def due_in_s(self) -> float:
        """Seconds until the next retry; infinity if no write waits."""
        return max(0.0, self._again_at - self._now()) if self._owed else math.inf

    def assign(self, tables: Iterable[TableSpec]) -> None:
        """Allow rows of these tables to be set aside from now on, too, and those that stateful maps get."""
        self._rejected |= {table.name: Rejected(self._lake, table) for table in tables}

    def set_aside(self, action: SetRowsAside) -> None:
        """Write the rows, now or as soon as possible. Raises NotWritten if too many writes wait already."""
        if self._owed:
            self._wait(action)
        else:
            try:
                self._write(action)
            except LakeError as error:
                self._owed.append(action)
                self._hold_up(error)

    def report(self, message: FromWorker) -> None:
        """Send the message, behind what waits."""
        if self._owed:
            self._wait(message)
        else:
            self._send(message)

    def try_again(self) -> None:
        """Work off the queue until a write fails."""
        while self._owed:
            first = self._owed[0]
            if isinstance(first, SetRowsAside):
                try:
                    self._write(first)
                except LakeError as error:
                    self._hold_up(error)
                    return
            else:
                self._send(first)
            self._owed.popleft()
        self.held_up, self._again_s = None, WRITE_AGAIN_S_MIN

    def _write(self, action: SetRowsAside) -> None:
        aside = action.aside
        self._rejected[aside.table].add(action.epoch, aside.view, aside.rows, aside.errors, action.after)

    def _wait(self, what: SetRowsAside | FromWorker) -> None:
        if len(self._owed) >= OWED_MAX:
            raise LakeError(f"rows that were set aside cannot be written: {self.held_up}")
        self._owed.append(what)

    def _hold_up(self, error: LakeError) -> None:
        self.held_up = error_text(error)
        self._again_at = self._now() + self._again_s
        self._again_s = min(2 * self._again_s, WRITE_AGAIN_S_MAX)
