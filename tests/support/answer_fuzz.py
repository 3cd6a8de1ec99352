"""Malformed answers, tried on a client in a process of its own: ``python answer_fuzz.py SEED COUNT``.

Real services answer over sockets, and most answers are changed on their way: lookups of every kind of column, calls,
scans, queries and changes. Each is a right answer or an UpriverError. What is taken is used, so a batch that is
malformed and not refused would read memory that is not its own.
"""

import random
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from changes_kit import VIEW
from fuzz_kit import COLUMNS, changed, use
from lookup_kit import Answering, Given, KeysAsked
from server_kit import KEYS, SECONDS_MAX, client_of

from upriver.client.lookup_lines import ThreadLines
from upriver.client.lookups import KeySet, Lookup, found_of, in_key_order, requests_of
from upriver.client.queries import QUERY, answer_as_batch, answer_of
from upriver.client.scans import ScanReader, snapshot_part
from upriver.client.subscriptions import Subscription
from upriver.errors import UpriverError
from upriver.ids import Epoch, WorkerId
from upriver.net.byte_stream import ByteStream
from upriver.net.frames import SEAL_BYTES, Seals
from upriver.net.handshake import Purpose
from upriver.net.line import SMALL_FRAME_BYTES_MAX
from upriver.net.lookups import LookupService
from upriver.net.remote import Connection, check_schema
from upriver.net.server import Caller, Calls, Server, Service
from upriver.net.wire import refusing_malformed
from upriver.plan.schemas import schema_to_json
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.state.changes import ChangePosition, changes_schema
from upriver.vnodes import VnodeMap

SIZES = struct.Struct("<IIQ")
"""Of a frame."""
KEY = pa.array(range(5))
VIEWS = {
    name: pa.RecordBatch.from_arrays([KEY, column], ["k", "v"])
    for name, column in COLUMNS.items()
    if not re.search("dictionary|run_end", str(column.type))  # no view has one
}
CHANGES = pa.RecordBatch.from_pylist([], schema=changes_schema(VIEW))
ROUTES = {name: ViewRoute(("k",), rows.schema, ("t",)) for name, rows in VIEWS.items()}
FRESHNESS = FreshnessReport(Epoch(1), {"t": TableFreshness("running", 0.5, "none", None)})
SOURCE = {"key": ["k"], "schema": schema_to_json(VIEWS["text"].schema), "vnodes": 4, "workers": 1, "lake": None}


class ChangedStream:
    """A stream that changes most of what goes out, and ends behind it: a client that waits for more sees the end.

    What it has changed is sealed anew: these are the answers of a server that knows the key, and has a fault."""

    def __init__(self, stream: ByteStream, seals: Seals, rng: random.Random) -> None:
        self._stream, self._seals, self._rng = stream, seals, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: bytes) -> None:
        frames = without_seals(data)
        if self._rng.random() < 0.1:
            self._stream.write(self._sealed(frames))
            return
        self._stream.write(self._sealed(changed(self._rng, frames)))
        self._stream.cut()

    def write_at_once(self, data: bytes) -> int:
        self.write(data)
        return len(data)

    def _sealed(self, frames: bytes) -> bytes:
        """Each frame with its seals; what is no whole frame as it is."""
        sealed, at = b"", 0
        while len(frames) - at >= SIZES.size:
            sizes, end = frames[at : at + SIZES.size], at + SIZES.size + sum(SIZES.unpack_from(frames, at))
            if is_large(sizes):
                sizes += self._seals.of_sizes(sizes)
            if end > len(frames):
                return sealed + sizes + frames[at + SIZES.size :]
            frame = sizes + frames[at + SIZES.size : end]
            sealed, at = sealed + frame + self._seals.next(frame), end
        return sealed + frames[at:]


def is_large(sizes: bytes) -> bool:
    return bool(sum(SIZES.unpack(sizes)) > SMALL_FRAME_BYTES_MAX)


def without_seals(frames: bytes) -> bytes:
    """Whole frames without their seals."""
    bare, at = b"", 0
    while at < len(frames):
        sizes = frames[at : at + SIZES.size]
        begin = at + SIZES.size + (SEAL_BYTES if is_large(sizes) else 0)
        at = begin + sum(SIZES.unpack(sizes)) + SEAL_BYTES
        bare += sizes + frames[begin : at - SEAL_BYTES]
    return bare


class Changing:
    """A service whose answers are changed."""

    def __init__(self, service: Service, rng: random.Random) -> None:
        self._service, self._rng = service, rng

    def serve(self, caller: Caller) -> None:
        stream = ChangedStream(caller.stream, Seals(caller.session.sends), self._rng)
        self._service.serve(replace(caller, stream=stream))  # type: ignore[arg-type]

    def stop(self) -> None:
        self._service.stop()


def looked_up(wanted: KeysAsked) -> Given:
    return Given.of(VIEWS[wanted.view], epoch=1, committed_at=1.5)


def calls(routing: Routing) -> Calls:
    position = ChangePosition(Epoch(1)).to_json()
    return Calls(
        {
            "routing": lambda _: routing.to_json(),
            "source": lambda _: SOURCE,
            "scan": lambda _: {"snapshot": 1, "epoch": 1, "addresses": [], "lake": None},
            "snapshot_read": lambda _: {},
        },
        {"snapshot": lambda asked, _: pa.Table.from_batches([VIEWS[asked["view"]]])},
        pieces={
            "changes": lambda asked, caller: (position, CHANGES),
            QUERY: lambda asked, caller: ({}, answer_as_batch(pa.Table.from_batches([VIEWS[asked["view"]]]))),
        },
    )


class Client:
    """What a client asks of one server that is both coordinator and worker."""

    def __init__(self, address: str, routing: Routing, rng: random.Random) -> None:
        self._remote, self._routing, self._rng = client_of(address), routing, rng
        self.asks: tuple[Callable[[str], None], ...] = (
            self.look_up,
            self.route,
            self.scan,
            self.read,
            self.query,
            self.subscribe,
        )

    def look_up(self, view: str) -> None:
        lines = ThreadLines(self._remote, lambda: None)
        give_up_at = time.monotonic() + SECONDS_MAX
        lookup = Lookup(view, ROUTES[view], None, together=True, timeout=SECONDS_MAX, give_up_at=give_up_at)
        asked = KeySet.of(pa.RecordBatch.from_arrays([KEY], ["k"]))
        try:
            requests = requests_of(lookup, asked, self._routing)
            lines.ask(requests)
            found = [found_of(request) for request in requests]
            use(in_key_order(found, asked, lookup.route.schema).combine_chunks().to_batches()[0])
        finally:
            lines.close()

    def route(self, view: str) -> None:
        with Connection(self._remote) as connection:
            told = connection.act("routing", timeout=SECONDS_MAX)
        with refusing_malformed(self._remote.address):
            routing = Routing.from_json(told)
        routing.freshness.age_s(["t"])
        if view in routing.views:
            assert routing.views[view].key_schema.names == list(routing.views[view].key)

    def scan(self, view: str) -> None:
        with Connection(self._remote) as connection:
            assert ScanReader.begin(connection, view, SECONDS_MAX).tables == ()

    def read(self, view: str) -> None:
        asked = {"snapshot": 1, "view": view, "key": ["k"], "ranges": []}
        for batch in snapshot_part(self._remote, asked, VIEWS[view].schema, SECONDS_MAX):
            use(batch)

    def query(self, view: str) -> None:
        with Connection(self._remote) as connection:
            _, answer = connection.piece(QUERY, {"view": view}, timeout=SECONDS_MAX)
        with refusing_malformed(self._remote.address):
            for batch in answer_of(answer).to_batches():
                use(batch)

    def subscribe(self, view: str) -> None:
        with Connection(self._remote) as connection:

            def ask(fields: Mapping[str, Any], timeout: float) -> tuple[dict[str, Any], pa.RecordBatch | None]:
                told, rows = connection.piece("changes", fields, timeout=timeout)
                if rows is not None:
                    check_schema(connection.address, rows, CHANGES.schema)
                return told, rows

            subscription = Subscription(ask, threading.Event(), view, None, ChangePosition(), 0.0)
            batch = subscription.step()
            assert subscription.position.skip >= 0 or batch is None


def main(seed: int, count: int) -> None:
    rng, taken = random.Random(seed), 0
    routing = Routing(VnodeMap.initial(4, [WorkerId(0)]), {}, ROUTES, Epoch(1), FRESHNESS)
    services: dict[Purpose, Service] = {
        Purpose.LOOKUPS: Changing(LookupService(Answering(looked_up)), rng),
        Purpose.CALLS: Changing(calls(routing), rng),
    }
    with Server(KEYS, services) as server:
        client = Client(server.address, replace(routing, addresses={WorkerId(0): server.address}), rng)
        for _ in range(count):
            ask, view = rng.choice(client.asks), rng.choice(list(VIEWS))
            try:
                ask(view)
                taken += 1
            except UpriverError:
                continue
    print(f"{count} answers, {taken} taken")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
