"""Checks an app's settings: each fault is one DeclarationError that names the setting."""

import math
import os
import re
import secrets
import warnings
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from upriver.arguments import some_text, whole
from upriver.coordinator.group import MembershipConfig
from upriver.errors import DeclarationError, UpriverWarning
from upriver.lake.address import object_address
from upriver.net.handshake import ClientTokens
from upriver.net.remote import check_token
from upriver.vnodes import check_vnodes

TOKEN_BYTES = 32
"""Random bytes of a generated token."""
MEMORY_BUDGET_MIN = 1 << 20
"""Bytes: with less, a worker would evict keys that it has just filled."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_CHARS_MAX = 128
"""Characters of a name: it becomes part of file names, which have at most 255."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
"""The beginning of a URI."""


def check_name(what: str, name: str, taken: Iterable[str]) -> None:
    """taken: by tables and views. For Spark, names that differ in case alone are the same."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DeclarationError(
            f"{what} {name!r}: a name is letters (a to z), digits and underscores, and starts with no digit"
        )
    if len(name) > NAME_CHARS_MAX:
        raise DeclarationError(
            f"{what} {name[:20]!r}...: a name has at most {NAME_CHARS_MAX} characters, not {len(name)}"
        )
    for other in taken:
        if other.lower() == name.lower():
            as_it_is = "of that name" if other == name else f"called {other!r}, which is the same name in SQL,"
            raise DeclarationError(f"{what} {name!r}: there is a table or a view {as_it_is} already")


def check_more_than_none(setting: str, value: object, unit: str) -> float:
    """The value, if it is a finite number above 0. Raises DeclarationError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (math.isfinite(value) and value > 0):  # type: ignore[arg-type, operator]
        raise DeclarationError(f"{setting}={value!r}: give {unit}, more than 0")
    return value  # type: ignore[return-value]


def check_sizes(
    workers: int | None, vnodes: int, ingest_tasks: int | None, step_budget_ms: object, memory_budget: object
) -> tuple[int | None, int, int | None]:
    """Workers, vnodes and ingest_tasks, which may be of any type of integers, as Python's own. Raises
    DeclarationError."""
    vnodes, workers, ingest_tasks = (
        whole("vnodes", vnodes),
        _whole("workers", workers),
        _whole("ingest_tasks", ingest_tasks),
    )
    check_vnodes(vnodes)
    if workers is not None and not 1 <= workers <= vnodes:
        raise DeclarationError(f"workers={workers}: there must be at least 1 and at most as many as vnodes ({vnodes})")
    if ingest_tasks is not None and ingest_tasks < 1:
        raise DeclarationError(f"ingest_tasks={ingest_tasks}: at least 1 is needed")
    check_more_than_none("migration_step_budget_ms", step_budget_ms, "milliseconds")
    _check_memory(memory_budget)
    return workers, vnodes, ingest_tasks


def _whole(what: str, number: int | None) -> int | None:
    return None if number is None else whole(what, number)


def _check_memory(budget: object) -> None:
    if budget is not None and not (_is_whole(budget) and budget >= MEMORY_BUDGET_MIN):  # type: ignore[operator]
        raise DeclarationError(
            f"memory_budget={budget!r}: give bytes for each worker, at least {MEMORY_BUDGET_MIN:,}, or None"
        )


def check_checkpoints(interval_s: object, interval_epochs: object) -> None:
    if interval_s is not None:
        check_more_than_none("checkpoint_interval_s", interval_s, "seconds")
    if interval_epochs is not None and not (_is_whole(interval_epochs) and interval_epochs >= 1):  # type: ignore[operator]
        raise DeclarationError(f"checkpoint_interval_epochs={interval_epochs!r}: give epochs, at least 1, or None")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def absolute(given: str | os.PathLike[str]) -> str:
    """A directory as an absolute path, so that processes with another working directory find it; the URI of an object
    store is unchanged. ``~`` is expanded, and ``file:`` URIs are directories.

    Raises DeclarationError for any other URI, for a name that is surely a mistake for a directory, and for a file.
    """
    root = some_text("root", str(given) if isinstance(given, os.PathLike) else given)
    if any(ord(letter) < ord(" ") for letter in root):
        raise DeclarationError(f"root={root!r}: give a directory whose name has no control characters")
    if root.lower().startswith("file:"):
        return _directory(root, _file_path(root))
    if root.lower().startswith("dbfs:/"):
        raise DeclarationError(
            f"root={root!r}: dbfs: is known to Databricks only; give the address of the store behind it, which begins "
            "with s3://, gs:// or abfss://"
        )
    if object_address(root) is not None:
        return root.rstrip("/")
    if (scheme := _SCHEME.match(root)) is not None:
        raise DeclarationError(f"root={root!r}: a URI begins with {scheme[0]}//; a directory of that name with ./")
    return _directory(root, os.path.expanduser(root))


def _file_path(root: str) -> str:
    """The path of a ``file:`` URI."""
    uri = urlsplit(root)
    if uri.netloc not in ("", "localhost") or not uri.path.startswith("/") or uri.query or uri.fragment:
        raise DeclarationError(f"root={root!r}: give file:///directory, or the directory itself")
    return unquote(uri.path)


def _directory(root: str, path: str) -> str:
    if path.startswith("~"):
        raise DeclarationError(f"root={root!r}: there is no user of that name; a directory of that name begins with ./")
    directory = existing = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise DeclarationError(f"root={root!r}: {existing} is a file; give a directory, which may be new")
    return directory


def tokens_of(operator: str | None, reader: str | None) -> ClientTokens:
    """The given tokens; the operator's is generated if it is ``None``. Raises UserError for a malformed one, and if
    both are the same."""
    token = secrets.token_hex(TOKEN_BYTES) if operator is None else operator
    for given in (token, *([] if reader is None else [reader])):
        check_token(given)
    if token == reader:
        raise DeclarationError("reader_token is the same as token, so readers could do all: give two tokens")
    return ClientTokens(token, reader)


def unused_lag(epochs: int) -> int:
    """``acceptable_lag_epochs`` as it was given. Warns the caller of ``App`` of one that is valid and not the default,
    because it has no effect yet."""
    if isinstance(epochs, int) and epochs >= 0 and epochs != MembershipConfig().acceptable_lag_epochs:
        warnings.warn("acceptable_lag_epochs has no effect yet: leave it out", UpriverWarning, stacklevel=3)
    return epochs
