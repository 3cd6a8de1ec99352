"""Checks an app's settings: each fault is one DeclarationError that names the setting."""

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from upriver.arguments import at_least, class_name, more_than_none, some_text, whole
from upriver.errors import DeclarationError
from upriver.lake.address import object_address
from upriver.logs import warn_caller
from upriver.options import Checkpoints, Compaction, Doors, Standbys, Tls, Tokens
from upriver.vnodes import check_vnodes

MEMORY_BUDGET_MIN = 1 << 20
"""Bytes: with less, a worker would evict keys that it has just filled."""
TASK_MEMORY_MIN = 512 << 20
"""Bytes: half of it is what Python and its libraries take."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME_CHARS_MAX = 128
"""Characters of a name: it becomes part of file names, which have at most 255."""
OPTIONS = (
    *("workers", "vnodes", "ingest_tasks", "ingest_task_memory", "memory_budget", "migration_step_budget_ms"),
    *("worker_silence_s", "clock_tick", "function_timeout", "replace"),
)
"""Parameters of ``App`` besides those of ``AppOptions``."""
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


def check_sizes(
    workers: int | None, vnodes: int, ingest_tasks: int | None, step_budget_ms: float, memory_budget: object
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
    if ingest_tasks is not None:
        at_least("ingest_tasks", ingest_tasks, 1)
    more_than_none("migration_step_budget_ms", step_budget_ms, "milliseconds")
    if memory_budget is not None:
        _check_bytes("memory_budget", memory_budget, "worker", MEMORY_BUDGET_MIN, ", or None")
    return workers, vnodes, ingest_tasks


def _whole(what: str, number: int | None) -> int | None:
    return None if number is None else whole(what, number)


def check_task_memory(memory: object) -> None:
    """Raise DeclarationError unless an ingest task can do with so many bytes of memory."""
    _check_bytes("ingest_task_memory", memory, "task", TASK_MEMORY_MIN)


def _check_bytes(what: str, given: object, of_each: str, least: int, or_else: str = "") -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise DeclarationError(f"{what}={given!r}: give bytes for each {of_each}, at least {least:,}{or_else}")


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


EARLIER: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bind": ("listen", ""),
        "token": ("tokens", "operator"),
        "reader_token": ("tokens", "reader"),
        "num_standby_replicas": ("standbys", "replicas"),
        "max_warmup_replicas": ("standbys", "warmup_replicas"),
        "scale_down_timeout_ms": ("standbys", "leave_timeout_ms"),
        "learner_partial_rebalance": ("standbys", "partial_rebalance"),
        "checkpoint_interval_s": ("checkpoints", "interval_s"),
        "checkpoint_interval_epochs": ("checkpoints", "interval_epochs"),
        "compaction": ("compaction", "enabled"),
        "compaction_grace_s": ("compaction", "grace_s"),
        "changes_retention": ("compaction", "changes_retention"),
        "http": ("doors", "http"),
        "postgres": ("doors", "postgres"),
        "flight": ("doors", "flight"),
        "tls_certificate": ("tls", "certificate"),
        "tls_key": ("tls", "key"),
    }
)
"""Options of ``App`` as earlier releases spelled them: the parameter that each is in now, and its name there."""
_NONE_BY_DEFAULT = ("bind", "token", "reader_token", "http", "postgres", "flight", "tls_certificate", "tls_key")
"""For these, ``None`` says as much as leaving them out."""
_WITHOUT_EFFECT = "acceptable_lag_epochs"
_GROUPS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "tokens": Tokens,
        "standbys": Standbys,
        "checkpoints": Checkpoints,
        "compaction": Compaction,
        "doors": Doors,
        "tls": Tls,
    }
)


class AppOptions(NamedTuple):
    """The groups of an app's options, and the address that it listens on; ``None``: the app's choice. tls: ``None``:
    the app does not encrypt."""

    listen: str | None
    tokens: Tokens
    standbys: Standbys
    checkpoints: Checkpoints
    compaction: Compaction
    doors: Doors
    tls: Tls | None


def groups_of(parameters: Mapping[str, Any], earlier: Mapping[str, Any]) -> AppOptions:
    """The groups as they were given, or by default. parameters: by name; ``None``: by default. earlier: options in
    earlier spellings: a warning names them, with the line that calls ``App``.

    Raises DeclarationError for an option that there is not, for something else in a group's place, and for an option in
    both spellings.
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    earlier = {name: value for name, value in earlier.items() if value is not None or name not in _NONE_BY_DEFAULT}
    if isinstance(given.get("compaction"), bool):
        earlier["compaction"] = given.pop("compaction")
    parts: dict[str, dict[str, Any]] = {}
    for name, value in earlier.items():
        if name == _WITHOUT_EFFECT:
            continue
        group, part = _now(name)
        parts.setdefault(group, {})[part] = value
        if group in given:
            raise DeclarationError(f"{name}= and {group}= are given: {_spelled(name)}")
    if earlier:
        warn_caller("; ".join(map(_spelled, earlier)))
    certificate = parts.pop("tls", {})
    if len(certificate) == 1:
        lacking = "tls_key" if "certificate" in certificate else "tls_certificate"
        raise DeclarationError(f"{lacking}= is missing: {_spelled(lacking)}")
    if certificate:
        given["tls"] = Tls(**certificate)
    bind = parts.pop("listen", {}).get("")
    listen = given.pop("listen", None) if bind is None else _listen_of(some_text("bind", bind))
    for name, value in given.items():
        if not isinstance(value, _GROUPS[name]):
            raise DeclarationError(f"{name}: give upriver.{_GROUPS[name].__name__}(...), not a {class_name(value)}")
    made = {name: kind(**parts.get(name, {})) for name, kind in _GROUPS.items() if name not in (*given, "tls")}
    return AppOptions(listen, **made, **{"tls": None, **given})


def _listen_of(bind: str) -> str:
    """The address of a host alone, as earlier releases took it."""
    return f"[{bind}]:0" if bind.count(":") > 1 and not bind.startswith("[") else f"{bind}:0"


def _now(name: str) -> tuple[str, str]:
    if name in EARLIER:
        return EARLIER[name]
    hint = ""
    if near := get_close_matches(name, [*OPTIONS, *AppOptions._fields], 1):
        hint = f"; did you mean {near[0]}=?"
    elif near := get_close_matches(name, EARLIER, 1):
        hint = f"; {_spelled(near[0])}"
    raise DeclarationError(f"{name}=: App has no such option{hint}")


def _spelled(name: str) -> str:
    """How an option of an earlier release is spelled now."""
    if name == _WITHOUT_EFFECT:
        return f"{name}= has no effect: leave it out"
    group, part = EARLIER[name]
    if group == "listen":
        return f'{name}= is listen="host:port" now'
    if group == "tls":
        return f"{name}= is tls=Tls(certificate=..., key=...) now, and is for everything that the app listens on"
    return f"{name}= is {group}={_GROUPS[group].__name__}({part}=...) now"
