"""Files of a lake whose changes end in a crash after some number of them."""

from collections.abc import Iterable
from typing import Any


class Interrupted(Exception):
    """The process ends here."""


class FailingFiles:
    """Files whose n-th change does not come to pass, and none after it. Else as the lake's own."""

    def __init__(self, files: Any, changes: int) -> None:
        self._files = files
        self.left = changes

    def _change(self) -> None:
        if not self.left:
            raise Interrupted
        self.left -= 1

    def create(self, path: str, content: Any) -> None:
        self._change()
        self._files.create(path, content)

    def remove(self, path: str) -> None:
        self._change()
        self._files.remove(path)

    def remove_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.remove(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)
