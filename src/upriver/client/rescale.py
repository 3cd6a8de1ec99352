"""A rescale from the client's side: the request, the progress, the report."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from upriver.arguments import seconds, whole
from upriver.errors import ClusterError, DeclarationError, UserError, WaitTimeout
from upriver.logs import with_short_errors
from upriver.protocol.strategies import Strategy

STRATEGIES = tuple(map(str, Strategy))
"""The values of ``strategy``."""
FOLLOW_S_MIN, FOLLOW_S_MAX = 0.005, 0.5
"""Seconds between two reports of a followed rescale while its state stays the same; doubled each time."""
ANSWER_S_MIN = 0.5
"""At least how many seconds the coordinator has for an answer, however little time is left."""
GOING_ON = frozenset({"queued", "starting", "moving"})
"""States of a rescale that has not ended."""

Act = Callable[[str, Mapping[str, Any], float | None], dict[str, Any]]
"""An action of the coordinator: its name, its fields, seconds to wait (``None``: as many as the client waits)."""


def rescale_fields(
    vnodes: int, workers: int | None, moves: Mapping[int, int] | None, strategy: str, keys_max: int | None
) -> dict[str, Any]:
    """The request to the coordinator, as JSON; ``App.rescale`` explains the arguments.

    Raises DeclarationError for a rescale that no app of so many vnodes can do, without asking the coordinator.
    """
    if workers is None and moves is None:
        raise DeclarationError("rescale to what? Give workers (how many there shall be), or moves (worker by vnode)")
    if workers is not None and moves is not None:
        raise DeclarationError("workers and moves: give one of them; moves leaves the number of workers as it is")
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise DeclarationError(f"strategy={strategy!r}: give one of {', '.join(map(repr, STRATEGIES))}")
    return {
        "workers": None if workers is None else _workers(workers, vnodes),
        "moves": None if moves is None else _moves(moves, vnodes),
        "strategy": strategy,
        "keys_max": None if keys_max is None else _keys_max(keys_max),
    }


def _workers(workers: int, vnodes: int) -> int:
    number = whole("workers", workers)
    if not 1 <= number <= vnodes:
        raise DeclarationError(
            f"workers={number}: give at least 1, and at most {vnodes}: each owns a vnode, and the lake has {vnodes}"
        )
    return number


def _moves(moves: Mapping[int, int], vnodes: int) -> dict[str, int]:
    if not isinstance(moves, Mapping):
        raise DeclarationError(f"moves={moves!r}: give a mapping, {{vnode: worker}}")
    if not moves:
        raise DeclarationError("moves={}: give at least one vnode and the worker that it moves to")
    checked: dict[str, int] = {}
    for vnode, worker in moves.items():
        vnode_number, worker_number = whole("moves: vnode", vnode), whole(f"moves: worker of vnode {vnode}", worker)
        if not 0 <= vnode_number < vnodes:
            raise DeclarationError(f"moves: there is no vnode {vnode_number}: give vnodes from 0 to {vnodes - 1}")
        if worker_number < 0:
            raise DeclarationError(f"moves: there is no worker {worker_number}: give workers from 0 on")
        checked[str(vnode_number)] = worker_number
    return checked


def _keys_max(keys_max: int) -> int:
    number = whole("keys_max", keys_max)
    if number < 1:
        raise DeclarationError(
            f"keys_max={number}: give at least 1 key at a time, or None for as many as the time allows"
        )
    return number


@with_short_errors
class Rescale:
    """One rescale of a running app; ``App.rescale`` and ``Client.rescale`` begin it.

    ticket: its number; any client finds the rescale by it (``Client.rescale_of``). Usable by many threads.
    """

    def __init__(self, act: Act, ticket: int) -> None:
        self._act = act
        self.ticket = ticket

    def progress(self) -> dict[str, Any]:
        """How far it is, as a plain dict.

        ``state`` (queued, starting, moving; finished, aborted, refused, failed), ``strategy``, ``from`` and ``to``
        (workers; ``None`` while not known yet), ``vnodes_moving`` and ``vnodes_moved``, ``keys_moved`` and
        ``keys_left``, ``bytes_moved`` and ``bytes_left``, ``seconds``, ``seconds_left`` (``None`` if not known),
        ``waits_for`` (a text: what it waits for before keys move; else ``None``), ``error``; and ``workers``: for each
        worker and view its ``phase`` and its share of keys and bytes.
        """
        return self._ask("rescale_progress")

    def follow(self, timeout: float = 60.0) -> Iterator[dict[str, Any]]:
        """The progress again and again until the rescale has ended: at once when its state changes, otherwise ever more
        slowly. The last progress says how the rescale has ended.

        Raises WaitTimeout after ``timeout`` seconds; the rescale goes on.
        """
        timeout = seconds("timeout", timeout)
        give_up_at = time.monotonic() + timeout
        known, pause = None, FOLLOW_S_MIN
        while True:
            seconds_left = max(0.0, give_up_at - time.monotonic())
            answer_s, wait_s = max(ANSWER_S_MIN, seconds_left), min(pause, seconds_left)
            progress = self._ask("rescale_progress", answer_s, unless=known, wait_s=wait_s)
            yield progress
            if progress["state"] not in GOING_ON:
                return
            if time.monotonic() >= give_up_at:
                raise WaitTimeout(f"{self._stands_at(progress)} after {timeout:g} s; it goes on")
            known, pause = progress["state"], min(2 * pause, FOLLOW_S_MAX)

    def wait(self, timeout: float = 60.0) -> dict[str, Any]:
        """Block until the rescale has ended; returns its report, also if it was aborted.

        Raises WaitTimeout after ``timeout`` seconds, UserError if it was refused, ClusterError if it failed.
        """
        for _ in self.follow(timeout):
            pass
        return self.outcome()

    def outcome(self) -> dict[str, Any]:
        """The report, once the rescale has ended. Raises UserError if it was refused, ClusterError if it failed."""
        report = self.report()
        if report["outcome"] == "refused":
            raise UserError(f"rescale {self.ticket} was refused: {report['error']}")
        if report["outcome"] == "failed":
            raise ClusterError(f"rescale {self.ticket} failed: {report['error']}")
        return report

    def report(self) -> dict[str, Any]:
        """The report of the rescale, as a plain dict, however it ended. Raises UserError while it is going on.

        ``outcome`` (finished, aborted, refused, failed), ``strategy``, ``from`` and ``to`` (workers), ``moved_keys``,
        ``moved_bytes``, ``moved_vnodes``, ``seconds``, ``max_hold_ms`` (the longest that any key was out of service),
        ``max_stall_ms`` (the longest step of any worker), ``rows_forwarded``, ``rows_bounced`` and ``error``.
        """
        return self._ask("rescale_report")

    def abort(self) -> None:
        """Request its end; returns at once. Vnodes that are on their way arrive, those not begun stay.

        Vnodes that have arrived stay where they are; by ``learner``, workers that joined for it give theirs back.
        """
        self._ask("rescale_abort")

    def _ask(self, action: str, seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        return self._act(action, {"ticket": self.ticket, **fields}, seconds)

    def _stands_at(self, progress: Mapping[str, Any]) -> str:
        moved, keys = progress["keys_moved"], progress["keys_moved"] + progress["keys_left"]
        return f"rescale {self.ticket} is {progress['state']}, {moved:,} of {keys:,} keys moved,"

    def __repr__(self) -> str:
        return f"Rescale(ticket={self.ticket})"
