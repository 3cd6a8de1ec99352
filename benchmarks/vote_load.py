"""Articles and votes for the app, and the load that it bears: votes from here, reads from a process of their own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.hand_fed import HandFedApp
from benchmarks.probed_load import ProbedLoad
from benchmarks.rescale_figures import FedRows
from benchmarks.vote_figures import VoteAnswers, VotesBefore
from benchmarks.vote_model import ARTICLE, VOTE, KeyArray, Popularity, articles, votes
from benchmarks.vote_prober import VoteTask

LOAD_ROWS_MAX = 100_000
"""Rows of an epoch of those that are there before the load begins."""
LOAD_S_MAX = 1_200.0
"""Seconds until the view must reflect them."""
PROBED_KEYS = 2
"""Votes of each epoch whose articles are looked up until the epoch shows."""


class Polls:
    """Publishes articles and votes, and knows how many votes each article has."""

    def __init__(self, app: HandFedApp, articles: int, seed: int) -> None:
        """articles: with ids from 0 up."""
        self._app = app
        self._articles = articles
        self._rng = np.random.default_rng(seed)
        self.counts: KeyArray = np.zeros(articles, np.int64)
        """Votes of each article."""
        self.epochs = 0

    def begin(self) -> None:
        """Publish an epoch of articles; returns when the view reflects it."""
        self._publish(articles(np.arange(min(LOAD_ROWS_MAX, self._articles))), ARTICLE.name)
        self._app.wait(LOAD_S_MAX)

    def fill(self, count: int) -> None:
        """Publish the other articles, and so many votes for any of them; returns when the view reflects them."""
        for first in range(LOAD_ROWS_MAX, self._articles, LOAD_ROWS_MAX):
            ids = np.arange(first, min(first + LOAD_ROWS_MAX, self._articles))
            self._publish(articles(ids), ARTICLE.name)
        for first in range(0, count, LOAD_ROWS_MAX):
            self.vote(self._rng.integers(0, self._articles, min(LOAD_ROWS_MAX, count - first)))
        self._app.wait(LOAD_S_MAX)

    def vote(self, ids: KeyArray) -> float:
        """Publish a vote for each of these; returns when that was."""
        self.counts += np.bincount(ids, minlength=self._articles)
        return self._publish(votes(ids, self._rng), VOTE.name)

    def _publish(self, rows: pa.Table, table: str) -> float:
        self.epochs += 1
        return self._app.publish(rows, table).at


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRates:
    """Of a load. reads_per_s: of which those of ``batch_ms`` go together in a lookup. singles_per_s: reads alone.
    misses_per_s: of articles that were never read. votes_per_s: in so many epochs a second."""

    reads_per_s: int
    batch_ms: int
    singles_per_s: int
    misses_per_s: int
    votes_per_s: int
    epochs_per_s: int


class VoteLoad(ProbedLoad):
    """Reads and votes, as long as its context is open. ``answers``, ``before`` and ``fed`` are there when it has ended.

    popular: articles that are read and voted for, with the lowest ids; those above are ``unread``.
    """

    answers: VoteAnswers
    fed: FedRows

    def __init__(
        self,
        app: HandFedApp,
        polls: Polls,
        directory: Path,
        rates: VoteRates,
        *,
        popular: int,
        unread: int,
        distribution: str,
        skew: float,
        prime_reads: int,
        seed: int,
    ) -> None:
        self._asked = VoteTask(
            address=app.address,
            articles=popular,
            unread=unread,
            distribution=distribution,
            skew=skew,
            prime_reads=prime_reads,
            reads_per_s=rates.reads_per_s,
            batch_ms=rates.batch_ms,
            singles_per_s=rates.singles_per_s,
            misses_per_s=rates.misses_per_s,
            result=str(directory / "answers.arrow"),
            seed=seed,
        )
        super().__init__("benchmarks.vote_prober", asdict(self._asked), app.token, directory, rates.epochs_per_s)
        self._polls = polls
        self._popularity = Popularity(distribution, popular, skew)
        self._votes = rates.votes_per_s // rates.epochs_per_s
        self._rng = np.random.default_rng([seed, 1])
        self._published: list[tuple[float, KeyArray]] = []
        self.before = VotesBefore(polls.epochs, polls.counts.copy())

    def publish(self) -> Mapping[str, Any]:
        ids = self._popularity.draw(self._votes, self._rng)
        at = self._polls.vote(ids)
        self._published.append((at, ids))
        return {"epoch": self._polls.epochs, "at": at, "keys": ids[:PROBED_KEYS].tolist()}

    def gather(self) -> None:
        self.answers = VoteAnswers.read(self._asked.result)
        self.fed = FedRows.of(self.before.epochs + 1, self._published)
