"""Requests and their answers, as OpenAPI's examples; a test asks each of them."""

from dataclasses import dataclass

from upriver.doors.http.messages import Json

_DAY: Json = {"customer": 1, "day": "2026-01-01", "total": "17.50", "at": "2026-01-01T12:00:00.000000Z"}
_AGE: Json = {"epoch": 5, "committed_at": "2026-01-03T12:00:00.000000Z", "age_s": 0.4, "sources": "running"}


@dataclass(frozen=True, slots=True)
class HttpExample:
    """name: of the operation. request: method and path. answer: in JSON."""

    name: str
    request: str
    answer: Json
    body: Json | None = None


EXAMPLES: tuple[HttpExample, ...] = (
    HttpExample("getSession", "GET /v1/session", {"role": "operator"}),
    HttpExample(
        "getView",
        "GET /v1/views/days?customer=1&day=2026-01-01",
        {"view": "days", "rows": [_DAY], **_AGE},
    ),
    HttpExample(
        "lookUp",
        "POST /v1/views/days/lookup",
        {
            "view": "days",
            "rows": [_DAY, {"customer": "1152921504606846976", "day": "2026-01-02", "total": None, "at": None}],
            **_AGE,
        },
        {"keys": [[1, "2026-01-01"], {"customer": "1152921504606846976", "day": "2026-01-02"}], "timeout": 5},
    ),
    HttpExample("evict", "POST /v1/views/days/evict", {"view": "days", "evicted": 1}, {"keys": [[1, "2026-01-01"]]}),
    HttpExample(
        "beginRescale",
        "POST /v1/rescale",
        {
            "ticket": 7,
            "strategy": "icadd",
            "from": 2,
            "to": 3,
            "state": "starting",
            "error": None,
            "workers": [],
            "vnodes_moving": 5,
            "vnodes_moved": 0,
            "keys_moved": 0,
            "keys_left": 0,
            "bytes_moved": 0,
            "bytes_left": 0,
            "seconds": 0.5,
            "seconds_left": None,
            "waits_for": None,
        },
        {"workers": 3, "strategy": "icadd"},
    ),
    HttpExample("listRescales", "GET /v1/rescales", {"rescales": []}),
)
