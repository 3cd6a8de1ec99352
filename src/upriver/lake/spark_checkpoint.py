"""Removes what a killed driver has left in Spark's checkpoint of a table, before a start.

Spark writes each file of a checkpoint under a hidden name and renames it. It refuses a checkpoint that has no batch yet
and is not empty. So a driver that was killed in its first micro-batch could never start again. Rule
lake.unfinished_files_are_removed in ``docs/internals/lake.md``: hidden unfinished files are always removed. A
checkpoint that Spark cannot continue is removed as a whole, as long as neither Spark nor the lake has committed a batch
of the table: no row of it counts. A complete checkpoint stays. It records where the source was first read: for some
sources, wherever its end was then.
"""

import json
import re

from upriver.lake.files import Files

_UNFINISHED = re.compile(r"\..*\.tmp(\.crc)?")
"""Names of files that Spark, or Hadoop for it, was writing."""
_VERSION = re.compile(r"v\d+")
"""The first line of a Spark log's file."""


def query_of(files: Files, directory: str) -> str | None:
    """The id of the query whose checkpoint lies in a directory; ``None`` if there is none, or it cannot be read."""
    try:
        metadata = json.loads(_text(files, f"{directory}/metadata"))
    except (FileNotFoundError, ValueError):
        return None
    return str(metadata["id"]) if isinstance(metadata, dict) and "id" in metadata else None


def sweep_checkpoint(files: Files, directory: str, has_epochs: bool) -> int:
    """Remove files that keep a table's query from starting; returns how many. The query must not be running.

    directory: of the checkpoint. has_epochs: whether the lake has any epoch of its query.
    """
    paths = files.tree(directory)
    litter = [path for path in paths if _UNFINISHED.fullmatch(path.rpartition("/")[2])]
    finished = [path for path in paths if path not in set(litter)]
    has_commits = any(name.isdecimal() for name in files.names(f"{directory}/commits"))
    if not (has_epochs or has_commits or _is_whole(files, directory, finished)):
        litter = paths
    files.remove_all(litter)
    return len(litter)


def _is_whole(files: Files, directory: str, paths: list[str]) -> bool:
    """Whether Spark can continue a checkpoint of these files, or there is nothing to continue."""
    if not paths:
        return True
    if f"{directory}/metadata" not in paths or not _is_json(_text(files, f"{directory}/metadata")):
        return False
    if any(_is_empty(files, path) for path in paths):
        return False
    offsets = [path for path in paths if path.startswith(f"{directory}/offsets/") and _name(path).isdecimal()]
    return all(_is_log(_text(files, path)) for path in offsets)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _text(files: Files, path: str) -> str:
    return bytes(files.read(path)).decode("utf-8", "replace")


def _is_empty(files: Files, path: str) -> bool:
    return len(files.read(path)) == 0


def _is_log(text: str) -> bool:
    """A version, then a line of JSON for each logged item, or a dash for none."""
    version, *lines = text.split("\n")
    return bool(_VERSION.fullmatch(version)) and bool(lines) and all(line == "-" or _is_json(line) for line in lines)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
