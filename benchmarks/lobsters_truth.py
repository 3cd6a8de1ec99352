"""What each view has of a key, computed without any of Upriver: the oracle that every answer is compared with."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmarks.lobsters_answers import FAILED, SiteLookup
from benchmarks.lobsters_model import PAGE_COMMENTS, PAGE_STORIES, USER_STORIES
from upriver.ids import Epoch

Row = tuple[Any, ...]


class LobstersTruth:
    """All rows that were written, by what they are asked for. Rows that it gives are as the view's columns are."""

    def __init__(self) -> None:
        self._stories: dict[int, Row] = {}
        self._comments: dict[int, Row] = {}
        self._names: dict[int, str] = {}
        self._scores: dict[int, int] = {}
        self._comment_scores: dict[int, int] = {}
        """Of those that a user has voted for."""
        self._stories_of: dict[str, defaultdict[int, list[int]]] = {by: defaultdict(list) for by in ("author", "day")}
        self._comments_of: dict[str, defaultdict[int, list[int]]] = {
            by: defaultdict(list) for by in ("story_id", "author", "day")
        }
        self._rows_of: Mapping[str, Callable[[int], list[Row]]] = {
            "story": self._story,
            "story_comments": self._story_comments,
            "user": self._user,
            "karma": self._karma,
            "user_stories": self._user_stories,
            "front_page": self._front_page,
            "recent": self._recent,
            "recent_comments": self._recent_comments,
        }

    def add(self, table: str, rows: pa.Table) -> None:
        """Rows of a table."""
        {"users": self._add_users, "stories": self._add_stories, "comments": self._add_comments, "votes": self._vote}[
            table
        ](rows)

    def rows(self, view: str, key: int) -> list[Row]:
        """All that the view has of this key, in order."""
        return self._rows_of[view](key)

    def _add_users(self, rows: pa.Table) -> None:
        self._names.update(_rows_in(rows))

    def _add_stories(self, rows: pa.Table) -> None:
        for number, title, author, day in _rows_in(rows):
            self._stories[number] = (title, author)
            self._stories_of["author"][author].append(number)
            self._stories_of["day"][day].append(number)

    def _add_comments(self, rows: pa.Table) -> None:
        for number, story, author, text, day in _rows_in(rows):
            self._comments[number] = (story, author, text)
            self._comments_of["story_id"][story].append(number)
            self._comments_of["author"][author].append(number)
            self._comments_of["day"][day].append(number)

    def _vote(self, rows: pa.Table) -> None:
        for _, story, comment, vote in _rows_in(rows):
            scores, number = (self._scores, story) if comment is None else (self._comment_scores, comment)
            scores[number] = scores.get(number, 0) + vote

    # What views have -------------------------------------------------------------------------------------------------

    def _story(self, number: int) -> list[Row]:
        if number not in self._stories:
            return []
        return [(number, *self._stories[number], self._score(number), len(self._comments_of["story_id"][number]))]

    def _story_comments(self, story: int) -> list[Row]:
        return [(story, number, *self._written(number)) for number in self._comments_of["story_id"][story]]

    def _user(self, number: int) -> list[Row]:
        if number not in self._names:
            return []
        counts = (len(written["author"][number]) for written in (self._stories_of, self._comments_of))
        return [(number, self._names[number], *counts)]

    def _karma(self, author: int) -> list[Row]:
        scores = [self._scores[number] for number in self._stories_of["author"][author] if number in self._scores]
        scores += [
            self._comment_scores[number]
            for number in self._comments_of["author"][author]
            if number in self._comment_scores
        ]
        return [(author, sum(scores))] if scores else []

    def _user_stories(self, author: int) -> list[Row]:
        newest = sorted(self._stories_of["author"][author], reverse=True)[:USER_STORIES]
        return [
            (author, number, self._stories[number][0], self._score(number), place)
            for place, number in enumerate(newest, 1)
        ]

    def _front_page(self, day: int) -> list[Row]:
        best = sorted(((self._score(number), number) for number in self._stories_of["day"][day]), reverse=True)
        return [(day, number, score, place) for place, (score, number) in enumerate(best[:PAGE_STORIES], 1)]

    def _recent(self, day: int) -> list[Row]:
        newest = sorted(self._stories_of["day"][day], reverse=True)[:PAGE_STORIES]
        return [(day, number, place) for place, number in enumerate(newest, 1)]

    def _recent_comments(self, day: int) -> list[Row]:
        newest = sorted(self._comments_of["day"][day], reverse=True)[:PAGE_COMMENTS]
        return [
            (day, number, self._comments[number][0], *self._written(number), place)
            for place, number in enumerate(newest, 1)
        ]

    def _score(self, story: int) -> int:
        return self._scores.get(story, 0)

    def _written(self, comment: int) -> Row:
        """Author, text and score."""
        _, author, text = self._comments[comment]
        return author, text, self._comment_scores.get(comment, 0)


def _rows_in(rows: pa.Table) -> Iterator[Row]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


@dataclass(frozen=True, slots=True)
class Published:
    """An epoch: the rows of a table, and when its publishing began (``time.perf_counter``)."""

    epoch: Epoch
    table: str
    rows: pa.Table
    at: float


def wrong_lookups(
    before: Mapping[str, pa.Table], began: Epoch, published: Sequence[Published], asked: Sequence[SiteLookup]
) -> list[SiteLookup]:
    """Those that were not answered, or not with just the rows that their keys have.

    An answer must be the truth as of the epoch that it tells, which is not before the one that was asked for. A single
    key's may be the truth as of a later epoch, if that one was being published by the time of the answer. before: the
    rows that were there as of the epoch ``began``; ``published`` came after that, one by one.
    """
    truth = LobstersTruth()
    for table, rows in before.items():
        truth.add(table, rows)
    by_epoch: defaultdict[int, list[SiteLookup]] = defaultdict(list)
    for lookup in asked:
        by_epoch[lookup.epoch if lookup.epoch >= lookup.at_least else FAILED].append(lookup)
    unlike = [lookup for lookup in by_epoch.pop(began, []) if not _is_true(lookup, truth)]
    wrong: list[SiteLookup] = []
    for epoch in published:
        truth.add(epoch.table, epoch.rows)
        may_be_later = [len(lookup.keys) == 1 and lookup.answered_at >= epoch.at for lookup in unlike]
        wrong += itertools.compress(unlike, [not may for may in may_be_later])
        again = [*itertools.compress(unlike, may_be_later), *by_epoch.pop(epoch.epoch, [])]
        unlike = [lookup for lookup in again if not _is_true(lookup, truth)]
    return [*wrong, *unlike, *itertools.chain.from_iterable(by_epoch.values())]


def _is_true(lookup: SiteLookup, truth: LobstersTruth) -> bool:
    """Whether it has found what is true now."""
    assert lookup.found is not None
    expected = [row for key in lookup.keys.tolist() for row in truth.rows(lookup.view, key)]
    return sorted(_rows_in(lookup.found)) == sorted(expected)
