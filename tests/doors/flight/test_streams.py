"""The streams of the Flight door: what a caller that does not read, or goes at once, costs."""

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from upriver.doors.flight.streams import STALL_S_MAX, STREAMS_MAX, RowStreams

BATCHES = pa.table({"x": [1, 2, 3]}).to_batches(max_chunksize=1)


def test_callers_that_do_not_read_lose_their_places_to_others() -> None:
    now = [0.0]
    streams = RowStreams(lambda: now[0])
    working = streams.open()
    reading, *stalled = [streams.open().begin(iter(BATCHES)) for _ in range(STREAMS_MAX - 1)]
    with pytest.raises(flight.FlightUnavailableError, match="32 streams are under way already: try again soon"):
        streams.open()
    now[0] = STALL_S_MAX
    assert next(reading)["x"].to_pylist() == [1]
    others = [streams.open().begin(iter(BATCHES)) for _ in stalled]
    with pytest.raises(flight.FlightUnavailableError, match="under way"):
        streams.open()
    with pytest.raises(flight.FlightTimedOutError, match="not read for 60 s, and its place was taken"):
        next(stalled[0])
    assert [len(list(each)) for each in (reading, others[0], working.begin(iter(BATCHES)))] == [2, 3, 3]
    assert [streams.open() for _ in range(3)]


def test_a_stream_that_is_never_read_or_fails_leaves_its_place() -> None:
    streams = RowStreams()
    for _ in range(2 * STREAMS_MAX):
        streams.open().begin(iter(BATCHES))
    failing = streams.open().begin(each["nothing"] for each in BATCHES)
    with pytest.raises(flight.FlightInternalError, match="KeyError"):
        next(failing)
    assert len([streams.open() for _ in range(1)]) == 1
