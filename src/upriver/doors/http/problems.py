"""Errors as problem details (RFC 9457): the error's own text, and never a traceback."""

from dataclasses import dataclass, field
from typing import Any

from upriver import errors
from upriver.doors.doors import ERROR_CHARS_MAX
from upriver.errors import UpriverError

PROBLEM_TYPE = "application/problem+json"
RETRY_S = 1
"""Seconds after which a caller may try again what was refused because the app is busy or not ready."""

STATUSES: tuple[tuple[type[UpriverError], int], ...] = (
    (errors.UnknownView, 404),
    (errors.UnknownTable, 404),
    (errors.ChangesGone, 410),
    (errors.BudgetExceeded, 409),
    (errors.RowError, 409),
    (errors.FunctionFailed, 409),
    (errors.ViewCrashed, 409),
    (errors.AccessDenied, 502),  # the app's servers have refused the gateway, not this caller
    (errors.UserError, 400),
    (errors.TooFewSlots, 409),
    (errors.WaitTimeout, 504),
    (errors.ClusterError, 503),
    (errors.LakeError, 503),
)
"""The status of each error; the first match counts. Any other error is our fault: 500."""


@dataclass(eq=False)  # a frozen exception could not take its traceback
class HttpProblem(Exception):
    """A refusal by the door itself. kind: its name. headers: besides the usual ones."""

    status: int
    kind: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {
            "type": f"urn:upriver:error:{self.kind}",
            "title": self.kind,
            "status": self.status,
            "detail": self.detail[:ERROR_CHARS_MAX],
        }


def problem_of(error: UpriverError) -> HttpProblem:
    """The problem that an error of the app is for an HTTP client."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    headers = {"retry-after": str(RETRY_S)} if status == 503 else {}
    return HttpProblem(status, type(error).__name__, str(error), headers)


def fault() -> HttpProblem:
    """For an exception that no handler expects; the log has it."""
    return HttpProblem(
        500, "InternalFault", "an unexpected fault of Upriver: the driver's log has it. Please report it"
    )
