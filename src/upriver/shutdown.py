"""Ending what runs, whatever fails on the way."""

import logging
from collections.abc import Callable

_LOG = logging.getLogger("upriver.app")


def run_all(*steps: Callable[[], object]) -> None:
    """Run each step, also after one that was interrupted or has failed; then raise the first error. Later ones are
    logged."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            if first is None:
                first = error
            else:
                _LOG.warning("stopping: %s: %s", type(error).__name__, error)
    if first is not None:
        raise first
