"""A process without descriptors."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

FILES = 2048
"""That the process may open while it has none left."""


@contextmanager
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Meanwhile, this process cannot open anything; what it has open goes on. Gives a call that takes freed ones."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))
    try:
        take()
        yield take
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
