"""A view as it was written, with the place of each part for messages about it."""

from dataclasses import dataclass, field

from upriver.errors import DeclarationError, UnsupportedSql

Place = int | None
"""Where something stands in a view: an offset into its SQL; ``None`` if it stands nowhere."""
SHOWN_CHARS_MAX = 120
"""Characters of the faulty line that a message shows."""

ELSEWHERE = "Compute it in the DataFrame that you give to app.table() instead."
"""Advice about an expression that only Spark itself can evaluate."""


@dataclass(frozen=True, slots=True)
class Source:
    """A view's SQL. view: its name, with which messages begin; empty for a query that belongs to no view."""

    view: str
    sql: str

    def unsupported(self, place: Place, what: str, instead: str) -> UnsupportedSql:
        """The error for a construct that Spark supports and Upriver does not."""
        return UnsupportedSql(self._message(place, f"{what} is not supported", instead))

    def wrong(self, place: Place, what: str, instead: str) -> DeclarationError:
        """The error for a declaration that makes no sense."""
        return DeclarationError(self._message(place, what, instead))

    def _message(self, place: Place, what: str, instead: str) -> str:
        if place is None:
            return f"{self._begin('')}{what}. {instead}"
        line = self.sql.count("\n", 0, place) + 1
        start = self.sql.rfind("\n", 0, place) + 1
        end = self.sql.find("\n", place)
        text = self.sql[start : end if end >= 0 else len(self.sql)].rstrip()
        column = place - start
        left = max(0, column - SHOWN_CHARS_MAX // 2) if len(text) > SHOWN_CHARS_MAX else 0
        shown = text[left : left + SHOWN_CHARS_MAX]
        caret = "".join("\t" if letter == "\t" else " " for letter in text[left:column]) + "^"
        return f"{self._begin(f'line {line}, column {column + 1}')}{what}. {instead}\n{shown}\n{caret}"

    def _begin(self, place: str) -> str:
        parts = [f"view {self.view!r}"] if self.view else []
        parts += [place] if place else []
        return f"{', '.join(parts)}: " if parts else ""


@dataclass(frozen=True, slots=True)
class FrameSource(Source):
    """A view that is a DataFrame. sql: its plan in words. caller: the file and line in Python that declares it. places:
    of its expressions, by number, as the nodes of the plan have them. They are added when the plan is read."""

    caller: str = ""
    places: list[str] = field(default_factory=list)

    def _message(self, place: Place, what: str, instead: str) -> str:
        where = self.places[place] if place is not None else self.caller
        return f"{self._begin(where)}{what}. {instead}"
