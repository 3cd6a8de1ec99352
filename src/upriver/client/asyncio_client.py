"""The client for asyncio: it never blocks the event loop.

Lookups take no thread: those of all tasks share the client's lines (:mod:`.async_lines`). Any other call runs on one of
a bounded number of threads. A cancelled call's answer is dropped. Its thread is free again when the call ends, which
its timeout bounds. Waiting for changes takes no thread: the client asks, and sleeps in the event loop.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar, Unpack

import pyarrow as pa

from upriver.arguments import whole
from upriver.client.async_lines import AsyncLines
from upriver.client.client import CONNECT_S, SCAN_S, Client, LookupLimits, connect
from upriver.client.dated_rows import DatedRows
from upriver.client.keys import Keys
from upriver.client.lookups import Asked, Delay, Steps
from upriver.client.queries import QUERY_S, Parameters
from upriver.client.rescale import Rescale
from upriver.client.subscriptions import UNREACHABLE_S
from upriver.errors import ClusterError
from upriver.logs import shorten_errors, with_short_errors

THREADS = 16
"""Calls of a client that are under way at a time, unless the caller says otherwise; more wait their turn."""
POLL_S = 0.25
"""Seconds between two questions for newer changes."""

P = ParamSpec("P")
T = TypeVar("T")


@shorten_errors
async def connect_async(
    address: str | None = None,
    token: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    tls: bytes | str | os.PathLike[str] | bool | None = None,
    timeout: float = CONNECT_S,
    threads: int = THREADS,
) -> "AsyncClient":
    """Connect to a running app; as ``connect``. threads: calls that may be under way at a time."""
    pool = ThreadPoolExecutor(whole("threads", threads), "upriver-async")
    connecting = pool.submit(connect, address, token, root=root, tls=tls, timeout=timeout)
    try:
        return AsyncClient(await asyncio.wrap_future(connecting), pool)
    except BaseException:  # also if it is cancelled: the connection that is made meanwhile is closed again
        connecting.add_done_callback(_close_made)
        pool.shutdown(wait=False)
        raise


def _close_made(connecting: "asyncio.Future[Client] | Any") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


@with_short_errors
class AsyncClient:
    """A client of one event loop, also an async context manager. Use :func:`connect_async`.

    Its methods are those of :class:`.Client`, which documents arguments and errors.
    """

    def __init__(self, client: Client, pool: ThreadPoolExecutor) -> None:
        self._client = client
        self._pool = pool
        remote, routes, self._steps = client.lookups
        self._lines = AsyncLines(remote, self.run, routes.recheck)
        routes.listen(lambda routing, _: self._lines.keep_only(routing.addresses.values()))

    async def run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a call that blocks, such as ``rescale.wait``, on a thread of this client."""
        try:
            running = self._pool.submit(partial(call, *args, **named))
        except RuntimeError:
            raise ClusterError("the client is closed") from None
        return await asyncio.wrap_future(running)

    async def lookup(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> pa.Table:
        """The view's rows of those keys."""
        table, _ = await self._take(self._steps.table(view, keys, limits))
        return table

    async def lookup_one(self, view: str, key: Any, **limits: Unpack[LookupLimits]) -> dict[str, Any] | None:
        """The only row of a key; ``None`` if there is none."""
        return await self._take(self._steps.row(view, key, limits))

    async def lookup_rows(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> DatedRows:
        """The view's rows of those keys, and how old they are."""
        return DatedRows.of(*await self._take(self._steps.table(view, keys, limits)))

    async def lookup_with_epoch(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> tuple[pa.Table, int]:
        """The view's rows of those keys, and the epoch that they reflect."""
        return await self._take(self._steps.table(view, keys, limits))

    async def _take(self, steps: Steps[T]) -> T:
        """Take a lookup's steps in the event loop."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Asked):
                    await self._lines.ask(step.requests)
                    step = next(steps)
                elif isinstance(step, Delay):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                else:
                    try:
                        result = await self.run(step.function)
                    except Exception as error:  # of any class: it is the steps' to take
                        step = steps.throw(error)
                    else:
                        step = steps.send(result)
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            steps.close()

    async def query(self, sql: str, parameters: Parameters | None = None, *, timeout: float = QUERY_S) -> pa.Table:
        """As ``Client.query``."""
        return await self.run(self._client.query, sql, parameters, timeout=timeout)

    async def subscribe(
        self, view: str, keys: Keys | None = None, since: int | str | None = None, *, timeout: float = UNREACHABLE_S
    ) -> AsyncIterator[pa.RecordBatch]:
        """The view's changes, in Arrow batches, without end."""
        subscription = await self.run(self._client.subscribe, view, keys, since, timeout=timeout)
        while True:
            before = subscription.position
            batch = await self.run(subscription.step, 0.0)
            if batch is not None:
                yield batch
            elif subscription.position == before:
                await asyncio.sleep(POLL_S)

    async def scan(
        self, view: str, *, timeout: float = SCAN_S, store: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator[pa.RecordBatch]:
        """All rows of a view as of the end of one epoch, in Arrow batches."""
        batches = iter(await self.run(self._client.scan, view, timeout=timeout, store=store))
        while (batch := await self.run(next, batches, None)) is not None:
            yield batch

    async def status(self) -> dict[str, Any]:
        """As ``Client.status``."""
        return await self.run(self._client.status)

    async def views(self) -> list[dict[str, Any]]:
        """As ``Client.views``."""
        return await self.run(self._client.views)

    async def explain(self, view: str) -> dict[str, Any]:
        """As ``Client.explain``."""
        return await self.run(self._client.explain, view)

    async def key_schema(self, view: str) -> pa.Schema:
        """As ``Client.key_schema``."""
        return await self.run(self._client.key_schema, view)

    async def rescales(self) -> list[dict[str, Any]]:
        """As ``Client.rescales``."""
        return await self.run(self._client.rescales)

    async def rescale(
        self,
        workers: int | None = None,
        *,
        moves: Mapping[int, int] | None = None,
        strategy: str = "icadd",
        keys_max: int | None = None,
    ) -> Rescale:
        """As ``Client.rescale``. Its methods block: ``await client.run(rescale.wait)``."""
        return await self.run(self._client.rescale, workers, moves=moves, strategy=strategy, keys_max=keys_max)

    async def evict(self, view: str, keys: Keys | None = None) -> None:
        """As ``Client.evict``."""
        await self.run(self._client.evict, view, keys)

    async def close(self) -> None:
        """End all connections; calls under way fail. A second call does nothing."""
        self._lines.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
