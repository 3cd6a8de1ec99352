"""ViewFailure: why a view has failed, as workers learn it and checkpoints record it."""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from upriver import errors
from upriver.errors import ProtocolError, UnknownView, UpriverError

ERROR_CHARS_MAX = 4_000
"""Characters of an error that are kept: every worker gets them, and every caller sees them."""
_KINDS: Mapping[str, type[UpriverError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, UpriverError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFailure:
    """Why a view has failed. kind: class name of the error, a class of :mod:`upriver.errors`. error: text for
    people."""

    kind: str
    error: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> "ViewFailure":
        """where: the view, and its current step. An error of another package counts as a fault of Upriver."""
        if isinstance(error, UpriverError):
            kind, text = type(error).__name__, f"{where}: {error}"
        else:
            kind, text = ProtocolError.__name__, f"{where}: {_told(error)}"
        if len(text) > ERROR_CHARS_MAX:
            text = f"{text[:ERROR_CHARS_MAX]}... ({len(text) - ERROR_CHARS_MAX} more characters)"
        return cls(kind=kind, error=text)

    @classmethod
    def dropped(cls, view: str) -> "ViewFailure":
        """What stands for a view that is dropped, while others of its flow stay."""
        return cls.of(UnknownView("it was dropped"), f"view {view!r}")

    @property
    def is_dropped(self) -> bool:
        """Whether it stands for a dropped view."""
        return self.kind == UnknownView.__name__

    def of_reader(self, reader: str, view: str) -> "ViewFailure":
        """The failure of what reads this one's view. reader, view: their names."""
        return ViewFailure(kind=self.kind, error=f"view {reader!r} reads {view!r}, which has failed: {self.error}")

    def with_readers(self, view: str, readers: Iterable[str]) -> "dict[str, ViewFailure]":
        """The failures that follow from this one, by view: its own first, and those of what reads the view."""
        return {view: self, **{reader: self.of_reader(reader, view) for reader in readers}}

    def raised(self) -> UpriverError:
        """The error, for a caller."""
        return _KINDS.get(self.kind, ProtocolError)(self.error)


def told_with_place(error: BaseException) -> str:
    """An unexpected error in one line, with the place in the code."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{' '.join(_told(error).split())} (at {frame.f_globals.get('__name__')}:{line})"


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of any class: a user's code may make the error's text
        return f"{type(error).__name__}, which cannot be told"
