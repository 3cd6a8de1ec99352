"""Ending what runs, whatever fails on the way; and how a program ends."""

import logging
import os
import sys
from collections.abc import Callable

from upriver.errors import UpriverError, UserError

READER_GONE_STATUS = 141
"""128 + SIGPIPE: what a shell reports of a program that the signal has ended."""
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


def exit_status(program: str, run: Callable[[], int]) -> int:
    """Run a command; what it raises becomes one line on stderr, and the exit status of its kind. If the reader of its
    output has gone, it ends without a word."""
    try:
        status = _run(program, run)
        print(end="", flush=True)
        return status
    except OSError:
        try:
            print(flush=True)
        except OSError as error:  # stdout is what has failed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it at the end
            if isinstance(error, BrokenPipeError):
                return READER_GONE_STATUS
            print(f"{program}: stdout cannot be written: {error.strerror or error}", file=sys.stderr)
            return 1
        raise


def _run(program: str, run: Callable[[], int]) -> int:
    try:
        return int(run())
    except UpriverError as error:
        print(f"{program}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
