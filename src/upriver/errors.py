"""Every error that Upriver raises, split by whose fault it is.

``UserError``: what was asked cannot be done; ask differently.
``LakeError``: the files under the root are not what they should be.
``ClusterError``: Spark, a worker or the network let us down; the same call may succeed later.
``ProtocolError``: a fault of ours. Please report it.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Self


class UpriverError(Exception):
    """The root of all errors of this package."""


class UserError(UpriverError):
    """The caller asked for something that cannot be done."""


class DeclarationError(UserError):
    """A table, a view or an option is declared wrongly, or not as the lake remembers it."""


class UnknownTable(DeclarationError):
    """SQL reads a table or a view that is not declared."""


class UnsupportedSql(UserError):
    """A view's SQL uses a construct that is not supported; the message gives its place."""


class KeyTypeError(UserError):
    """Keys do not fit the view's key columns."""


class UnknownView(UserError):
    """No view of that name."""

    @classmethod
    def among(cls, view: str, views: Iterable[str]) -> Self:
        """``view`` was asked for, and there are only ``views``."""
        return cls(f"no view {view!r}; there are: {', '.join(sorted(views)) or 'none'}")


class RowError(UserError):
    """An expression failed on a row of the input: overflow, a bad cast, division by zero."""


class BudgetExceeded(UserError):
    """What must be kept takes more memory than the app was given."""


class AccessDenied(UserError):
    """The caller has not proved that it knows the app's token, or the cluster's secret."""


class LakeError(UpriverError):
    """The lake's files are not what they should be."""


class CorruptFile(LakeError):
    """A file is torn, damaged, foreign or of another schema; the message names it."""


class CorruptCheckpoint(CorruptFile):
    """A file of a checkpoint is torn, damaged or gone. What it has can be computed again from the tables."""


class NotRead(LakeError):
    """The lake cannot be read now: its disk or the network fails, or the process has too many files open. The message
    names the file. To read it again may help."""


class NotWritten(LakeError):
    """The lake took no more: its disk is full, or fails. The message names the file and says what helps."""


class LakeInUse(LakeError):
    """Another driver owns the root."""


class ClusterError(UpriverError):
    """Spark, a worker or the network let us down."""


class TooFewSlots(ClusterError):
    """Spark has not enough task slots for the workers and the ingest beside them."""


class WorkerLost(ClusterError):
    """A worker is gone, or cannot be reached."""


class DuplicateAttempt(WorkerLost):
    """Spark runs a worker's task twice, and the other attempt is the worker."""


class WrongOwner(ClusterError):
    """A worker was asked for keys that it does not own, or does not own yet: ask for the routing again."""


class IngestFailed(ClusterError):
    """A table's source has failed; the message says in one line why, and what helps."""


class NotReady(ClusterError):
    """A view does not reflect yet what there was when the app started; the message says what is lacking."""


class StaleView(ClusterError):
    """An answer may be older than the caller allows; the message says how old, and why."""


class Busy(ClusterError):
    """A server has too much under way for this call: the same call may succeed soon."""


class WaitTimeout(ClusterError):
    """What was waited for did not happen in time."""


class ProtocolError(UpriverError):
    """A fault of Upriver itself."""


class IllegalEvent(ProtocolError):
    """A machine was given an event that its phase does not allow."""


def exit_status(program: str, run: Callable[[], int]) -> int:
    """Run a command; what it raises becomes one line on stderr, and the exit status of its kind."""
    try:
        return int(run())
    except UpriverError as error:
        print(f"{program}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130
