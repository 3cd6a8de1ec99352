"""Tickets and descriptors of plain Flight: what a caller wants, as JSON."""

import json
from dataclasses import dataclass
from typing import Any, Self

import pyarrow.flight as flight

from upriver.client.key_texts import Numeral, json_text
from upriver.doors.queries import QUERY_CHARS_MAX
from upriver.errors import DeclarationError

KEYS_MAX = 100_000
"""Keys of one ticket."""


@dataclass(frozen=True, slots=True)
class RowsTicket:
    """What a caller wants. One of view and query is given. keys: texts of the keys, ``None`` for all rows."""

    view: str | None
    keys: tuple[str, ...] | None
    query: str | None

    @classmethod
    def of(cls, text: bytes) -> Self:
        """From a ticket, or a descriptor's command. Raises DeclarationError."""
        try:
            told = json.loads(text, parse_float=Numeral)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or set(told) - {"view", "keys", "query"}:
            raise DeclarationError(f"{text[:100]!r} is no ticket: give {_FORMS}")
        view, keys, query = told.get("view"), told.get("keys"), told.get("query")
        is_of_query = isinstance(query, str) and view is None and keys is None
        is_of_view = isinstance(view, str) and query is None and isinstance(keys, list | None)
        if not (is_of_query or is_of_view):
            raise DeclarationError(f"{text[:100]!r} is no ticket: give {_FORMS}")
        if keys is not None and len(keys) > KEYS_MAX:
            raise DeclarationError(f"{len(keys):,} keys in one ticket: at most {KEYS_MAX:,} are taken")
        texts = None if keys is None else tuple(json_text(key if isinstance(key, list) else [key]) for key in keys)
        return cls(view, texts, query)

    @classmethod
    def of_descriptor(cls, descriptor: Any) -> Self:
        """Raises DeclarationError."""
        if descriptor.descriptor_type == flight.DescriptorType.PATH:
            if len(descriptor.path) != 1:
                raise DeclarationError(f"a path of {len(descriptor.path)} parts: it is the name of a view")
            return cls(descriptor.path[0].decode("utf-8", "replace"), None, None)
        command = descriptor.command
        if command.lstrip()[:1] == b"{":
            return cls.of(command)
        if len(command) > 4 * QUERY_CHARS_MAX:
            raise DeclarationError(f"a query of {len(command):,} bytes is too long")
        return cls(None, None, command.decode("utf-8", "replace"))

    def to_json(self) -> bytes:
        if self.query is not None:
            return json.dumps({"query": self.query}).encode()
        keys = "" if self.keys is None else f', "keys": [{", ".join(self.keys)}]'
        return f'{{"view": {json.dumps(self.view)}{keys}}}'.encode()


_FORMS = '{"view": name}, {"view": name, "keys": [[value of each key column], ...]} or {"query": "SELECT ..."}'
