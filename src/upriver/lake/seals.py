"""Seals: which files of earlier drivers count (docs/internals/lake.md, "Succession").

::

    seals/<term>.json   the files of earlier terms that count from this driver on

An object store may carry out a create long after the driver that sent it was succeeded. A late epoch, or a late commit
of the change log, finds its slot taken. Other files have no slot that a successor could take: segments, indexes, folds.
Their names have the term of the driver that wrote them. A successor opens its term, lists what is there, and seals it:
of earlier terms, what is not in the newest seal does not count. No clock takes part in this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from upriver.ids import Term
from upriver.records import typed

SEALS = "seals"
RETRACTED = "retracted"
"""Directory of records of tables that do not count."""
SEALED = ("segments", "indexes", "supplements", "sources", "changes/folds", "checkpoints", RETRACTED)
"""The directories whose JSON files count by the newest seal."""
_OF_TERM = re.compile(r"(.+)@(\d{8})\.json")


def of_term(path: str, term: Term) -> str:
    """The path of a term's file."""
    return f"{path.removesuffix('.json')}@{term:08d}.json"


def split_term(path: str) -> tuple[str, Term]:
    """A path or name without its term, and the term; 0 if it has none."""
    match = _OF_TERM.fullmatch(path)
    return (path, Term(0)) if match is None else (f"{match[1]}.json", Term(int(match[2])))


@dataclass(frozen=True, slots=True)
class Seal:
    """term: of the driver that sealed. files: of earlier terms, those that count."""

    term: Term
    files: frozenset[str]

    def counts(self, path: str) -> bool:
        return path in self.files or split_term(path)[1] >= self.term

    def to_json(self) -> dict[str, Any]:
        return {"term": self.term, "files": sorted(self.files)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return typed(cls(Term(record["term"]), frozenset(record["files"])))


NO_SEAL = Seal(Term(0), frozenset())
"""All files count."""
