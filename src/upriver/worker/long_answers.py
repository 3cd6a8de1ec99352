"""A worker's long answers: rows of a lookup that are read some at a time, between other lookups and epochs.

All rows, and the epoch that the answer tells, are as of the moment when the answer began (``lookups.one_moment``).
"""

from upriver.engine.operators.view import LongRead
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.ids import WorkerId
from upriver.protocol.peers import PeerLookup
from upriver.worker.serving import LongAnswer, Serving

ANSWER_ROWS_MAX = 32_768
"""Rows that a lookup reads at once at most. The rows of a longer answer are all read later, some at a time."""
LONG_ANSWERS_MAX = 4
"""Long answers under way at one worker at most: each takes the memory of its rows. More lookups wait."""


def may_begin(phase: Serving) -> bool:
    """Whether one more long answer may be under way."""
    return len(phase.long_answers) < LONG_ANSWERS_MAX


def begin(phase: Serving, view: str, question: PeerLookup) -> None:
    """Begin to read a long answer. Raises as :meth:`Region.long_read`."""
    phase.long_answers.append(LongAnswer(view, question, _read(phase, view, question), phase.reflected))


def _read(phase: Serving, view: str, question: PeerLookup) -> LongRead:
    return phase.shares[view].region.long_read(question.hash64, question.keys)


def unread(phase: Serving) -> int:
    """About how many rows of long answers are not read yet."""
    return sum(max(1, answer.read.left) for answer in phase.long_answers)


def read_on(phase: Serving, rows_max: int) -> tuple[LongAnswer, UpriverError | None] | None:
    """Read about ``rows_max`` more rows of the oldest long answer. Returns the answer, and its error, if it is over."""
    answer = phase.long_answers[0]
    if not phase.rules.lookups_one_moment:  # lookups.one_moment
        row, answer.read = answer.read.row, _read(phase, answer.view, answer.question)
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
    del phase.long_answers[0]
    return answer, error


def let_go(phase: Serving, asker: WorkerId, ticket: int) -> int:
    """Stop reading for this lookup. Returns how many of its keys were being read here."""
    gone = [a for a in phase.long_answers if (a.question.asker, a.question.ticket) == (asker, ticket)]
    phase.long_answers = [a for a in phase.long_answers if a not in gone]
    return sum(len(answer.question) for answer in gone)
