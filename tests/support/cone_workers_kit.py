"""Two workers that keep cones of a small lake, for tests that say what happens in which order.

The machines are real. What their cones ask for is read, and what they say to each other carried, when a test says so.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial

from cone_kit import EVALUATOR, Lake, planned
from machines_kit import FLOW, HALVES, announce, asked, assign, opened, owners_with, vnode_map
from workers_kit import SteppedWorkers, vnode_of

from upriver.engine.region import Region
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import Answer, EpochRead, FetchRows, ReadEpoch, RowsFetched, ShareAction
from upriver.worker.memory import MemoryBudget
from upriver.worker.share import FlowShare

PLAN = planned("fans")
WORKERS = (0, 1)
PAGE, OTHER_PAGE = (next(page for page in map(str, range(100)) if vnode_of(page) == vnode) for vnode in (3, 2))
"""Kept by worker 0, the first in the vnode that moves."""
GIVES_3 = owners_with(HALVES, v3=1)
"""Worker 0 gives vnode 3 to worker 1."""


class Workers(SteppedWorkers):
    """Workers 0 and 1, which keep cones of the view of the fans of each page."""

    def __init__(self, rules: Rules = ALL_RULES, memory_budget: int | None = None) -> None:
        self.lake = Lake(PLAN)
        build = partial(Region.build, evaluator=EVALUATOR)
        super().__init__([FlowShare(FLOW, build, rules, MemoryBudget(memory_budget, rules)) for _ in WORKERS])
        self.fetches: list[deque[FetchRows]] = [deque() for _ in WORKERS]
        """By worker: what was asked for and is not read."""
        self.answers: dict[int, tuple[list[tuple[str, int]], int]] = {}
        """By ticket: the rows, and the answer's epoch."""
        self._tickets = 0
        for worker in WORKERS:
            self.step(worker, assign(HALVES, worker, plans=(PLAN,), maps={PLAN.name: vnode_map(HALVES)}))

    def take(self, worker: int, action: ShareAction) -> None:
        match action:
            case FetchRows():
                self.fetches[worker].append(action)
            case ReadEpoch(epoch=epoch, channels=channels):
                assert channels == (), "a cone reads by itself"
                self.step(worker, EpochRead(epoch=epoch, promised={}))
            case Answer():
                rows = [(row["page"], row["n"]) for row in action.rows.to_pylist()]
                self.answers[action.ticket] = rows, action.epoch

    def open(self, worker: int, epoch: int, mixed: bool = False) -> None:
        self.step(worker, opened(epoch, mixed))

    def fetch(self, worker: int) -> None:
        """All that the worker asks for is read."""
        while self.fetches[worker]:
            wish = self.fetches[worker].popleft()
            rows = tuple(self.lake.answer(wish.reads))
            self.step(worker, RowsFetched(generation=wish.generation, view=wish.view, task=wish.task, rows=rows))

    def look_up(self, worker: int, page: str) -> int:
        self._tickets += 1
        self.step(worker, asked(page, ticket=self._tickets, view=PLAN.name, key=PLAN.key[0]))
        return self._tickets

    def rescale(self, after: Sequence[int]) -> None:
        for worker in WORKERS:
            self.step(worker, announce(HALVES, after, *WORKERS, view=PLAN.name))
        self.carry_all()

    def present(self, worker: int) -> list[int]:
        """What the worker's cone keeps."""
        keys: list[int] = self.phase(worker).regions.cones[PLAN.name].keys_of(0, 1).tolist()
        return keys
