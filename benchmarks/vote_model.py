"""The vote workload of the Noria papers: articles, votes for them, and a view of each article with its votes.

Every answer can be checked: an article's title follows from its id, and the publisher of the votes knows their number.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import UserError
from upriver.plan.plan import TableSpec

KeyArray = npt.NDArray[np.int64]

ARTICLE = TableSpec("article", pa.schema([("id", pa.int64()), ("title", pa.string())]), ("id",))
VOTE = TableSpec("vote", pa.schema([("article_id", pa.int64()), ("user", pa.int64())]), ("article_id",))
VIEW = "vote_count"
KEY = "id"
SQL = """
SELECT a.id, a.title, v.n
FROM article a LEFT JOIN (SELECT article_id, count(*) AS n FROM vote GROUP BY article_id) v ON a.id = v.article_id
"""
"""One region, whose key is the article; ``n`` is null where there is no vote."""
USERS = 1_000_000
"""Votes are of so many users, drawn at random; nothing depends on them."""
DISTRIBUTIONS = ("zipf", "uniform")


def titles(ids: KeyArray) -> pa.Array:
    """Of these articles: some forty characters each."""
    numbers = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 12, padding="0")
    return pc.binary_join_element_wise("Article", numbers, "of all that there are", " ")


def articles(ids: KeyArray) -> pa.Table:
    """Rows of the table ``article``."""
    return pa.table([pa.array(ids), titles(ids)], schema=ARTICLE.schema)


def votes(ids: KeyArray, rng: np.random.Generator) -> pa.Table:
    """Rows of the table ``vote``, one for each id."""
    return pa.table([ids, rng.integers(0, USERS, len(ids))], schema=VOTE.schema)


class Popularity:
    """Which articles are read and voted for: ids from 0 up, of which under ``zipf`` the lowest are the most popular.

    skew: of the zipf distribution; the article of rank r has a share in proportion to r ** -skew. Document 004's
    successors use 1.15: with a million articles, 9 of 10 reads are of the first 25,000.
    """

    def __init__(self, distribution: str, articles: int, skew: float) -> None:
        if distribution not in DISTRIBUTIONS:
            raise UserError(f"distribution {distribution!r}: there are {', '.join(DISTRIBUTIONS)}")
        self._articles = articles
        self._until: npt.NDArray[np.float64] | None = None
        """By article: the share of all up to and including it; ``None`` if all are alike."""
        if distribution == "zipf":
            shares = np.arange(1, articles + 1, dtype=np.float64) ** -skew
            self._until = np.cumsum(shares) / shares.sum()

    def draw(self, count: int, rng: np.random.Generator) -> KeyArray:
        """So many ids, each by itself."""
        if self._until is None:
            return rng.integers(0, self._articles, count)
        return np.minimum(np.searchsorted(self._until, rng.random(count)), self._articles - 1).astype(np.int64)
