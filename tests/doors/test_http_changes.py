"""A view's changes as server-sent events, from a real log."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from client_kit import PLANES
from http_kit import HttpApp

from upriver.doors.http.changes import EVENT_ROWS_MAX
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.lake.change_log import LogRecord, commit_changes
from upriver.lake.change_parts import write_parts
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.state.changes import ChangeCommit, part_schema

AT = datetime(2026, 1, 2, tzinfo=UTC)
ORDER = [("_commit_version", "ascending"), ("hash64", "ascending")]
Change = tuple[str, int, str, int]
"""tail, flights, type of the change, version."""
Event = tuple[str | None, str, Any]
"""id, name, data."""

BASE: list[Change] = [("N1", 10, "insert", 3), ("N2", 20, "insert", 3)]
FIFTH: list[Change] = [("N1", 10, "update_preimage", 5), ("N1", 11, "update_postimage", 5)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    owned = OwnedLake(str(tmp_path / "lake"), LakeRecord(16, (), {}), {})
    commit(owned, 1, 3, BASE)
    commit(owned, 2, 5, FIFTH)
    yield owned
    owned.release()


@pytest.fixture
def http(lake: OwnedLake) -> Iterator[httpx.Client]:
    app = HttpApp(lake.root)
    with app.caller() as caller:
        yield caller
    app.stop()


def commit(lake: OwnedLake, number: int, through: int, changes: list[Change]) -> None:
    """Append to the log of the view of planes."""
    record = LogRecord(view="planes", begins=Epoch(3), key=("tailnum",), schema=PLANES.route.schema, fingerprint="f")
    tails = pa.array([change[0] for change in changes])
    columns = [
        pa.array(hash64([tails], len(changes))),
        tails,
        pa.array([change[1] for change in changes], pa.int64()),
        pa.array([change[2] for change in changes]),
        pa.array([change[3] for change in changes], pa.int64()),
        pa.array([AT] * len(changes), pa.timestamp("us", tz="UTC")),
    ]
    rows = pa.Table.from_arrays(columns, schema=part_schema(PLANES.route.schema))
    made = ChangeCommit(
        number=number,
        through=Epoch(through),
        term=lake.term,
        made_at=float(through),
        begins={"planes": Epoch(3)},
        parts=write_parts(lake, "planes", "test", rows.sort_by(ORDER)),
        first=number,
    )
    commit_changes(lake, made, [record])


def events(answer: httpx.Response) -> Iterator[Event]:
    id, name = None, ""
    for line in answer.iter_lines():
        field, _, value = line.partition(": ")
        if field == "id":
            id = value
        elif field == "event":
            name = value
        elif field == "data":
            yield id, name, json.loads(value)
            id = None


def follow(http: httpx.Client, query: str = "", count: int = 1, **headers: str) -> list[Event]:
    """The first events of a stream."""
    with http.stream("GET", f"/v1/views/planes/changes{query}", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(islice(events(answer), count))


def told(found: list[Event]) -> list[Change]:
    return sorted(
        (row["tailnum"], row["flights"], row["_change_type"], data["version"])
        for _, name, data in found
        if name == "changes"
        for row in data["changes"]
    )


def test_changes_come_by_version_from_the_start(http: httpx.Client) -> None:
    found = follow(http, count=3)
    assert told(found) == sorted(BASE + FIFTH)
    assert [(id, name) for id, name, _ in found] == [("3", "changes"), ("5", "changes"), ("5", "through")]
    assert found[1][2] == {
        "version": 5,
        "committed_at": "2026-01-02T00:00:00.000000Z",
        "is_last": True,
        "changes": [
            {"tailnum": "N1", "flights": 10, "_change_type": "update_preimage"},
            {"tailnum": "N1", "flights": 11, "_change_type": "update_postimage"},
        ],
    }


def test_a_client_resumes_behind_the_last_event_that_it_has(http: httpx.Client) -> None:
    assert told(follow(http, count=1, **{"last-event-id": "3"})) == FIFTH
    assert told(follow(http, "?since=3")) == FIFTH


def test_keys_pick_changes(http: httpx.Client) -> None:
    assert told(follow(http, "?key=N2", count=2)) == [BASE[1]]


def test_later_changes_follow_and_large_versions_come_in_pieces(http: httpx.Client, lake: OwnedLake) -> None:
    with http.stream("GET", "/v1/views/planes/changes?since=now") as answer:
        assert answer.status_code == 200
        many: list[Change] = [(f"T{number:04}", number, "insert", 6) for number in range(EVENT_ROWS_MAX + 1)]
        commit(lake, 3, 6, many)
        found = list(islice(events(answer), 3))
    assert [(id, data.get("is_last")) for id, _, data in found] == [(None, False), ("6", True), ("6", None)]
    assert told(found) == many


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("planes/changes?since=1", 410, "oldest version"),
        ("planes/changes?since=99", 410, "is not there yet: the last is 5"),
        ("planes/changes?since=yesterday", 400, "give a version, or now"),
        ("planes/changes?after=1", 400, "'after': it takes key, since, tailnum"),
        ("days/changes", 404, "changes=True"),
        ("plains/changes", 404, "there are: days, planes, routes"),
    ],
)
def test_what_cannot_be_followed_is_refused(http: httpx.Client, path: str, status: int, said: str) -> None:
    answer = http.get(f"/v1/views/{path}")
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
