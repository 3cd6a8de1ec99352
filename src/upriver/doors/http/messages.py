"""A request and its answer as handlers see them, and what the table of endpoints says of each endpoint."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upriver.client.json_values import json_bytes
from upriver.client.key_texts import Numeral
from upriver.doors.gateway import Gateway
from upriver.doors.http.problems import HttpProblem
from upriver.net.handshake import Role

JSON_TYPE = "application/json"
BODY_BYTES_MAX = 4 << 20
"""Bytes of a request's body."""
JSON_CHARS_SHOWN_MAX = 100
"""Characters of a request that an error shows."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HttpQuestion:
    """A request of a caller that may ask it. path: the parts of the path, by name. query: all values of each parameter,
    in order. headers: by name in lower case."""

    gateway: Gateway
    role: Role
    path: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)

    def one(self, name: str) -> str | None:
        """The value of a parameter that may be given once. Raises HttpProblem."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise bad_request(f"{name}: give it once")
        return values[0] if values else None

    def json(self, names: Sequence[str]) -> Json:
        """The body, a JSON object with no other fields than ``names``. Raises HttpProblem."""
        kind = self.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
        if kind != JSON_TYPE:
            raise HttpProblem(415, "UnsupportedMediaType", f"the body is {kind!r}: send {JSON_TYPE}")
        try:
            found = json.loads(self.body or b"{}", parse_constant=_no_constant, parse_float=Numeral)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"the body is not JSON: {str(error)[:JSON_CHARS_SHOWN_MAX]}") from None
        if not isinstance(found, dict):
            raise bad_request("the body is not a JSON object")
        check_names("the body", found, names)
        return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; write it as a text")


def bad_request(detail: str) -> HttpProblem:
    return HttpProblem(400, "BadRequest", detail)


def check_names(where: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse unknown names: a misspelt limit must not let too old an answer pass."""
    for name in given:
        if name not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise bad_request(f"{where} has {name[:JSON_CHARS_SHOWN_MAX]!r}: {known}")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer in full."""

    body: bytes
    content_type: str = JSON_TYPE
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> "HttpAnswer":
        return cls(json_bytes(value), status=status)


Events = Iterator[bytes | None]
"""Server-sent events as they come; ``None``: there is none now. Each step may block, though not for long."""


def event_bytes(name: str, data: Any, id: str | None = None) -> bytes:
    """A server-sent event."""
    head = b"" if id is None else f"id: {id}\n".encode()
    return head + f"event: {name}\ndata: ".encode() + json_bytes(data) + b"\n\n"


@dataclass(frozen=True, slots=True)
class HttpParameter:
    """A parameter of the query. schema: in JSON Schema."""

    name: str
    schema: Json
    description: str
    many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation. name: of the operation, for generated clients. role: that a caller needs. answer: handles it, on a
    thread; or events: gives server-sent events. takes_any: other parameters of the query are the handler's affair.
    body: JSON Schema of its body. gives: content types of the answer, each with the name of its schema, or ``None``.
    status: of its answer."""

    method: str
    path: str
    name: str
    summary: str
    description: str = ""
    role: Role = Role.READER
    answer: Callable[[HttpQuestion], HttpAnswer] | None = None
    events: Callable[[HttpQuestion], Events] | None = None
    parameters: tuple[HttpParameter, ...] = ()
    takes_any: bool = False
    body: Json | None = None
    gives: Mapping[str, str | None] = field(default_factory=dict)
    status: int = 200

    def check_query(self, question: HttpQuestion) -> None:
        """Refuse unknown parameters."""
        if not self.takes_any:
            check_names("the query", question.query, [parameter.name for parameter in self.parameters])
