"""Changes of a view as server-sent events: one event for each version, in order.

A version with many changes comes in several events, and the last has the version as its id. So a client that was cut
off resumes behind the last version that it has in full (``Last-Event-ID``); it may get the beginning of the next one
again.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from upriver.client.json_values import json_values, rows_of
from upriver.client.keys import key_batch
from upriver.doors.http.messages import Events, HttpQuestion, Json, bad_request, event_bytes
from upriver.doors.http.views import check_count, query_keys
from upriver.errors import ChangesGone
from upriver.ids import Epoch
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.runtime.change_feed import ChangeFeed
from upriver.state.changes import COMMIT_TIMESTAMP, COMMIT_VERSION, NOW
from upriver.state.key_filter import KeyFilter

EVENT_ROWS_MAX = 1_000
"""Changes of one event."""
THROUGH_EVERY_S = 5.0
"""Seconds between two events that say only through which version there were no changes."""
OTHERS = ("since",)
"""Parameters beside keys."""


def changes(question: HttpQuestion) -> Events:
    """The events of a view's changes: checks the request, and opens the stream."""
    view = question.path["view"]
    key_schema = question.gateway.route(view).key_schema
    keys = None
    if question.query.keys() - set(OTHERS):
        texts = query_keys(question, key_schema, OTHERS)
        check_count(len(texts))
        if key_schema != EVERYTHING_KEY:
            given = question.gateway.keys_of_texts(view, texts)
            keys = KeyFilter(key_batch(view, key_schema, given))
    feed = question.gateway.changes()
    last = feed.last(view)
    since = question.headers.get("last-event-id") or question.one("since")
    after = None if since is None else last if since == NOW else _version(since)
    if after is not None and after > last:
        raise ChangesGone(f"view {view!r}: version {after} is not there yet: the last is {last}")
    if after is not None:
        next(feed.changes(view, after, after), None)  # raises ChangesGone if they are in the log no more
    return _events(feed, view, after, keys)


def _version(text: str) -> Epoch:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise bad_request(f"since={text[:20]!r}: give a version, or {NOW}")
    return Epoch(int(text))


def _events(feed: ChangeFeed, view: str, after: Epoch | None, keys: KeyFilter | None) -> Events:
    told_at = time.monotonic()
    while True:
        through = feed.last(view)
        if after is not None and through <= after:
            yield None
            continue
        has_told = False
        for head, rows, is_last in _with_ends(_pieces(feed.changes(view, after, through, keys))):
            has_told = True
            data = {**head, "is_last": is_last, "changes": rows}
            yield event_bytes("changes", data, str(head["version"]) if is_last else None)
        if has_told or time.monotonic() >= told_at + THROUGH_EVERY_S:
            yield event_bytes("through", {"version": int(through)}, str(through))
            told_at = time.monotonic()
        after = through


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Json, msgspec.Raw]]:
    """The changes of one version at a time, ``EVENT_ROWS_MAX`` at most, with the version and its time."""
    for batch in batches:
        versions = batch.column(COMMIT_VERSION).to_numpy()
        ends = (np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist()
        for begin, end in pairwise([0, *ends, batch.num_rows]):
            for first in range(begin, end, EVENT_ROWS_MAX):
                rows = batch.slice(first, min(EVENT_ROWS_MAX, end - first))
                (committed_at,) = json_values(rows.column(COMMIT_TIMESTAMP).slice(0, 1))
                head = {"version": int(versions[first]), "committed_at": committed_at}
                bare = pa.Table.from_batches([rows]).drop_columns([COMMIT_VERSION, COMMIT_TIMESTAMP])
                yield head, rows_of(bare)


def _with_ends(pieces: Iterator[tuple[Json, msgspec.Raw]]) -> Iterator[tuple[Json, msgspec.Raw, bool]]:
    """Each piece, and whether it is the last of its version."""
    before = next(pieces, None)
    while before is not None:
        after = next(pieces, None)
        yield (*before, after is None or after[0]["version"] != before[0]["version"])
        before = after
