"""Parts of URLs, by the grammar of Java's ``java.net.URI``, as Spark takes them.

A part is found by where the first ``:``, ``/``, ``?`` and ``#`` stand, once the text as a whole is known to be a URI.
"""

import re
from collections.abc import Callable, Mapping

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.sql.functions.nested_values import once
from upriver.sql.functions.scalars import Context, opaque, string_sql
from upriver.sql.functions.signatures import Function, OperandKind, Operands, Special, take

# A letter beyond ASCII may stand where one behind % may.
_OTHER = r"%[0-9A-Fa-f]{2}|[^\x00-\x{9F}\p{Z}]"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
_PLAIN = r"A-Za-z0-9_.!~*\x27()-"
_ANY = rf"(?:[;/?:@&=+$,\[\]{_PLAIN}]|{_OTHER})"
_IN_PATH = rf"(?:[;/:@&=+$,{_PLAIN}]|{_OTHER})"
_USER = rf"((?:[;:&=+$,{_PLAIN}]|{_OTHER})*)@"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_LAST_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.?"
_BYTE = "0*(?:[0-9]{1,2}|[01][0-9]{2}|2[0-4][0-9]|25[0-5])"
_HOST = rf"(?:{_BYTE}(?:\.{_BYTE}){{3}}|(?:{_LABEL}\.)+{_LAST_LABEL}|{_LABEL}\.?)"
_PORT = "(?::0*[0-9]{0,9})?"
_NAMED_SERVER = f"{_USER}({_HOST}){_PORT}"
_SERVER = f"(?:{_USER})?({_HOST}){_PORT}"
_REGISTRY = rf"(?:[;:@&=+$,{_PLAIN}]|{_OTHER})+"
_FRAGMENT = rf"(?:#{_ANY}*)?"
_TAIL = rf"(?:\?{_ANY}*)?{_FRAGMENT}"
_AT_HOST = rf"//(?:(?:{_SERVER}|{_REGISTRY})(?:/{_IN_PATH}*)?{_TAIL}|/{_IN_PATH}*{_TAIL}|\?{_ANY}*{_FRAGMENT}|#{_ANY}*)"
_AT_ROOT = rf"/(?:(?:[;:@&=+$,{_PLAIN}]|{_OTHER}){_IN_PATH}*)?{_TAIL}"
_RELATIVE = rf"(?:(?:[;@&=+$,{_PLAIN}]|{_OTHER})+(?:/{_IN_PATH}*)?)?{_TAIL}"
_OPAQUE = rf"{_SCHEME}(?:[;?:@&=+$,\[\]{_PLAIN}]|{_OTHER}){_ANY}*{_FRAGMENT}"
_URI = rf"(?:{_SCHEME})?(?:{_AT_HOST}|{_AT_ROOT})|{_RELATIVE}|{_OPAQUE}"

_BEFORE = r"^(?:[^:/?#]*:)?"
_UNREAD = rf"{_BEFORE}//[^/?#]*(?:[\[\]]|:0*[0-9]{{10}})[\s\S]*"
"""Of an address of IPv6, and of a port that may be too large."""


Part = Callable[[str], str]
"""DuckDB SQL of a part of the URL, from that of the URL; NULL if there is none."""


def _found(url: str, pattern: str, group: int = 1) -> str:
    quoted = string_sql(pattern)
    return f"CASE WHEN regexp_matches({url}, {quoted}) THEN regexp_extract({url}, {quoted}, {group}) END"


def _behind_scheme(pattern: str) -> Part:
    """Of a URL with a path; ``mailto:a`` and its kin have none."""
    is_opaque = string_sql(f"^{_SCHEME}[^/]")
    return lambda url: f"CASE WHEN NOT regexp_matches({url}, {is_opaque}) THEN {_found(url, pattern)} END"


def _of_server(group: int) -> Part:
    """The user, or the host. An authority that is not of a server has neither."""
    return lambda url: _found(url, rf"{_BEFORE}//{_SERVER if group == 2 else _NAMED_SERVER}(?:[/?#]|\z)", group)


_path = _behind_scheme(rf"{_BEFORE}(?://[^/?#]*)?([^?#]*)")
_query = _behind_scheme(r"^[^?#]*\?([^#]*)")
_PARTS: Mapping[str, Part] = {
    "PROTOCOL": lambda url: _found(url, "^([^:/?#]+):"),
    "HOST": _of_server(2),
    "USERINFO": _of_server(1),
    "AUTHORITY": lambda url: _found(url, rf"{_BEFORE}//([^/?#]+)"),
    "PATH": _path,
    "QUERY": _query,
    "FILE": lambda url: f"({_path(url)} || coalesce('?' || {_query(url)}, ''))",
    "REF": lambda url: _found(url, r"^[^#]*#([\s\S]*)"),
}


def _part(context: Context, place: Place, name: str, operands: Operands) -> Part:
    """The part that is asked for."""
    title = operands[1].constant
    if not isinstance(title, str) or title not in _PARTS:
        raise context.unsupported(place, f"this part in {name}()", f"Write one in quotes: {', '.join(_PARTS)}.")
    if len(operands) == 2:
        return _PARTS[title]
    key = operands[2].constant
    if not isinstance(key, str) or not re.fullmatch("[A-Za-z0-9_-]+", key) or title != "QUERY":
        instead = f"Write {name}(url, 'QUERY', 'key'), with a key of letters, digits, _ and -."
        raise context.unsupported(place, f"{name}() by this key", instead)
    return lambda url: once(_query(url), lambda query: _found(query, f"(?:&|^){key}=([^&]*)"))


def _parsed(name: str, otherwise: Callable[[str], str]) -> Special:
    """``parse_url(url, part[, key])``. otherwise: what it gives where a text is no URL."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        part, url = _part(context, place, name, operands), take(context, place, OperandKind.STRING, operands[0])

        def found(one: str) -> str:
            unread = f"error('A URL with [ or a long port is too far to compute with: ' || {one})"
            is_url, is_unread = (f"regexp_full_match({one}, {string_sql(form)})" for form in (_URI, _UNREAD))
            tests = f"WHEN {is_url} THEN {part(one)} WHEN {is_unread} THEN {unread}"
            return f"CASE WHEN {one} IS NULL THEN NULL {tests} ELSE {otherwise(one)} END"

        return opaque(Scalar(once(url.sql, found), pa.string(), fails=True))

    return rule


_WRITTEN, _TEXT = OperandKind.WRITTEN, OperandKind.STRING
_SAMPLES = (*(f"{{0}}(urls, '{part}')" for part in _PARTS), "{0}(urls, 'QUERY', 'a')", "{0}('http://h/' || u, 'FILE')")

URLS: tuple[Function, ...] = (
    Function(
        "parse_url",
        (_TEXT, _WRITTEN, _WRITTEN),
        _parsed("parse_url", lambda url: f"error('The text ''' || {url} || ''' is no URL')"),
        "STRING",
        2,
        nulls="also without such a part",
        fails="where the text is no URL",
        samples="; ".join(_SAMPLES).format("parse_url"),
    ),
    Function(
        "try_parse_url",
        (_TEXT, _WRITTEN, _WRITTEN),
        _parsed("try_parse_url", lambda url: "NULL"),
        "STRING",
        2,
        nulls="also without such a part, and where the text is no URL",
        samples="; ".join(_SAMPLES[-4:]).format("try_parse_url"),
    ),
)
"""Of URLs."""
