"""Every error that Upriver raises, grouped by its origin.

``UserError``: the request is impossible; change it.
``LakeError``: the files under the root are not what they should be.
``ClusterError``: Spark, a worker or the network has failed; the same call may succeed later.
``ProtocolError``: a fault of ours. Please report it.

The trace of an error that a public call raises has the caller's own lines alone, and no other exception. A program
finds the cause in ``error.__context__``, if there is one. The logger ``upriver.errors`` has the whole trace, at
``DEBUG``. A ProtocolError keeps its own.
"""

from collections.abc import Iterable, Mapping
from typing import Self


class UpriverError(Exception):
    """The root of all errors of this package."""

    is_logged = False
    """Whether the log has its trace."""


class UpriverWarning(UserWarning):
    """What the caller should know, and what stops nothing: a source that has failed for good, an option without an
    effect."""


class UserError(UpriverError):
    """The caller has requested something impossible."""


class DeclarationError(UserError):
    """A table, a view or an option is declared wrongly, or differently from the lake's record."""


class UnknownTable(DeclarationError):
    """SQL reads a table or a view that is not declared."""


class UnsupportedSql(UserError):
    """A view's SQL uses a construct that is not supported; the message gives its place."""


class KeyTypeError(UserError):
    """Keys do not fit the view's key columns."""


class UnknownView(UserError):
    """There is no view of that name."""

    @classmethod
    def among(cls, view: str, views: Mapping[str, Iterable[str]], tables: Iterable[str] = ()) -> Self:
        """``view`` was requested, and only ``views`` exist. views: the tables that each reads. tables: more of them."""
        readers = sorted(name for name, read in views.items() if view in read)
        if readers:
            why = f": it is a table, and tables are read through views. These read it: {', '.join(readers)}"
        elif view in list(tables):  # by equality: a value of any type may be given
            why = f": it is a table, and tables are read through views. None reads it; {_there_are(views)}"
        else:
            why = f"; {_there_are(views)}"
        return cls(f"no view {view!r}{why}")


class ChangesGone(UserError):
    """Changes of a view were asked for that its log has no more; the message says how to start anew."""


class QueryCancelled(UserError):
    """The caller has cancelled the query."""


class RowError(UserError):
    """An expression failed on a row of the input: overflow, a bad cast, division by zero."""


class FunctionFailed(UserError):
    """A function of the user's did not return within ``function_timeout``, or has ended its process."""


class ViewCrashed(UserError):
    """The process of a worker has died several times running while it computed the view."""


class BudgetExceeded(UserError):
    """State that must be kept takes more memory than the app's budget, or more rows than its bound."""


class AccessDenied(UserError):
    """The caller has not proved that it knows a token of the app, or the cluster's secret; or its token does not open
    what it asks for; or the server's certificate is not to be trusted."""


class LakeError(UpriverError):
    """The lake's files are not what they should be."""


class CorruptFile(LakeError):
    """A file is torn, damaged, foreign or of another schema; the message names it."""


class CorruptCheckpoint(CorruptFile):
    """A file of a checkpoint is torn, damaged or gone. Its state can be computed again from the tables."""


class NotRead(LakeError):
    """The lake cannot be read now: its disk or the network fails, or the process has too many files open. The message
    names the file. Another read may succeed."""


class NotWritten(LakeError):
    """The lake refused a write: its disk is full, or fails. The message names the file and gives advice."""


class LakeInUse(LakeError):
    """Another driver owns the root."""


class ClusterError(UpriverError):
    """Spark, a worker or the network has failed."""


class TooFewSlots(ClusterError):
    """Spark has not enough task slots for the workers and the ingest beside them."""


class WorkerLost(ClusterError):
    """A worker is gone, or cannot be reached."""


class DuplicateAttempt(WorkerLost):
    """Spark runs a worker's task twice, and the other attempt is the worker."""


class SealBroken(ClusterError):
    """A frame on a connection between two processes lacks its seal: what lies between them has changed, added,
    repeated or dropped bytes. Nothing of the frame was used."""


class WrongOwner(ClusterError):
    """A worker got keys that it does not own, or does not own yet: fetch the routing again."""


class IngestFailed(ClusterError):
    """A table's source has failed; the message says in one line why, and gives advice."""


class NotReady(ClusterError):
    """A view does not yet reflect all rows that existed when the app started; the message says what is lacking."""


class StaleView(ClusterError):
    """An answer may be older than the caller allows; the message says how old, and why."""


class Busy(ClusterError):
    """A server is too busy for this call: the same call may succeed soon."""


class WaitTimeout(ClusterError):
    """An awaited event did not happen in time."""


class ProtocolError(UpriverError):
    """A fault of Upriver itself."""


class IllegalEvent(ProtocolError):
    """A machine was given an event that its phase does not allow."""


def _there_are(names: Iterable[str]) -> str:
    return f"there are: {', '.join(sorted(names)) or 'none'}"
