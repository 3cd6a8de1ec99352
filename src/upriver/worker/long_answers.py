"""A worker's long answers: rows of a lookup that are read some at a time, between other lookups and epochs.

All rows, and the epoch that the answer tells, are as of the moment when the answer began (``lookups.one_moment``).
"""

from dataclasses import dataclass, field

import pyarrow as pa

from upriver.engine.operators.view import LongRead
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.ids import Epoch, WorkerId
from upriver.protocol.peers import PeerLookup
from upriver.protocol.rules import Rules
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions

ANSWER_ROWS_MAX = 32_768
"""Rows that a lookup reads at once at most. The rows of a longer answer are all read later, some at a time."""
LONG_ANSWERS_MAX = 4
"""Long answers of one flow under way at one worker: each takes the memory of its rows. More lookups wait."""


@dataclass(slots=True, eq=False)
class LongAnswer:
    """A lookup whose rows are read some at a time. epoch: of the answer. parts: the rows read so far."""

    view: str
    question: PeerLookup
    read: LongRead
    epoch: Epoch
    parts: list[pa.RecordBatch] = field(default_factory=list)


class LongAnswers:
    """The long answers that are being read, the oldest first."""

    def __init__(self, regions: Regions, progress: EpochProgress, rules: Rules) -> None:
        self._answers: list[LongAnswer] = []
        self._regions = regions
        self._progress = progress
        self._rules = rules

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def may_begin(self) -> bool:
        """Whether one more long answer may be under way."""
        return len(self._answers) < LONG_ANSWERS_MAX

    def begin(self, view: str, question: PeerLookup) -> None:
        """Begin to read a long answer. Raises as :meth:`Region.long_read`."""
        self._answers.append(LongAnswer(view, question, self._read(view, question), self._progress.reflected))

    def _read(self, view: str, question: PeerLookup) -> LongRead:
        return self._regions.shards[view].region.long_read(question.hash64, question.keys)

    @property
    def unread(self) -> int:
        """About how many rows of long answers are not read yet."""
        return sum(max(1, answer.read.left) for answer in self._answers)

    def read_on(self, rows_max: int) -> tuple[LongAnswer, UpriverError | None] | None:
        """Read about ``rows_max`` more rows of the oldest long answer. Returns the answer, and its error, if it is
        over."""
        answer = self._answers[0]
        if not self._rules.lookups_one_moment:  # lookups.one_moment
            row, answer.read = answer.read.row, self._read(answer.view, answer.question)
            answer.read.row = min(row, answer.read.rows)
        error: UpriverError | None = None
        try:
            answer.parts.append(answer.read.next(rows_max))
        except UpriverError as raised:
            error = raised
        except Exception as raised:  # a fault of ours, which fails only this lookup
            error = ProtocolError(f"view {answer.view!r}: {error_text(raised)}")
        if error is None and answer.read.left:
            return None
        del self._answers[0]
        return answer, error

    def drop(self, asker: WorkerId, ticket: int) -> int:
        """Stop reading for this lookup. Returns how many of its keys were being read here."""
        gone = [a for a in self._answers if (a.question.asker, a.question.ticket) == (asker, ticket)]
        self._answers = [a for a in self._answers if a not in gone]
        return sum(len(answer.question) for answer in gone)

    def take_view(self, view: str) -> list[PeerLookup]:
        """Stop reading for all lookups of this view. Returns them."""
        gone = [answer.question for answer in self._answers if answer.view == view]
        self._answers = [answer for answer in self._answers if answer.view != view]
        return gone

    def take_all(self) -> list[LongAnswer]:
        """Stop reading. Returns the answers that are not over."""
        gone, self._answers = self._answers, []
        return gone

    def forget_asker(self, asker: WorkerId | None) -> None:
        """Stop reading for worker ``asker``."""
        self._answers = [answer for answer in self._answers if answer.question.asker != asker]
