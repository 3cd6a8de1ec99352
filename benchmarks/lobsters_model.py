"""The site that the lobsters workload reads: its tables, its views, and what is there before the first request.

Shapes and counts are of Lobsters as the Noria papers' load generator (trawler) has them; rows are made up from a seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.plan.plan import TableSpec

KeyArray = npt.NDArray[np.int64]

STORIES, COMMENTS, USERS = 40_650, 121_270, 5_797
"""There before the first request, at scale 1."""
STORY_VOTES, COMMENT_VOTES = 10, 5
"""There before, for each story and comment on average."""
DOWN_VOTES = 0.04
"""Share of the votes."""
STORIES_A_DAY, COMMENTS_A_DAY = 100, 300
"""A story's or comment's day follows from its id."""
PAGE_STORIES, PAGE_COMMENTS, USER_STORIES = 25, 20, 20
"""How many a page shows of a day, and of a user."""
TEXT_CHARACTERS = 120
SKEW = {"story_votes": 0.75, "comment_votes": 0.57, "story_comments": 0.97, "user_votes": 2.11}
"""How uneven things are: counts go by a log-normal distribution with this sigma, as fits trawler's histograms."""

TABLES = {
    spec.name: spec
    for spec in (
        TableSpec(
            "stories",
            pa.schema([("id", pa.int64()), ("title", pa.string()), ("author", pa.int64()), ("day", pa.int64())]),
            ("id",),
        ),
        TableSpec(
            "comments",
            pa.schema(
                [
                    ("id", pa.int64()),
                    ("story_id", pa.int64()),
                    ("author", pa.int64()),
                    ("text", pa.string()),
                    ("day", pa.int64()),
                ]
            ),
            ("id",),
        ),
        TableSpec(
            "votes",
            pa.schema(
                [("user", pa.int64()), ("story_id", pa.int64()), ("comment_id", pa.int64()), ("vote", pa.int64())]
            ),
            ("story_id",),
        ),
        TableSpec("users", pa.schema([("id", pa.int64()), ("name", pa.string())]), ("id",)),
    )
}
"""All append-only. A vote for a comment names its story too; one for a story has no comment. It is +1 or -1."""

_STORY_SCORES = "(SELECT story_id, sum(vote) AS score FROM votes WHERE comment_id IS NULL GROUP BY story_id)"
_COMMENT_SCORES = "(SELECT comment_id, sum(vote) AS score FROM votes WHERE comment_id IS NOT NULL GROUP BY comment_id)"
VIEWS: Mapping[str, tuple[str, str]] = {
    "story": (
        "SELECT s.id, s.title, s.author, coalesce(v.score, 0) AS score, coalesce(c.n, 0) AS comments FROM stories s"
        f" LEFT JOIN {_STORY_SCORES} v ON s.id = v.story_id"
        " LEFT JOIN (SELECT story_id, count(*) AS n FROM comments GROUP BY story_id) c ON s.id = c.story_id",
        "id",
    ),
    "story_comments": (
        "SELECT c.story_id, c.id, c.author, c.text, coalesce(v.score, 0) AS score FROM comments c"
        f" LEFT JOIN {_COMMENT_SCORES} v ON c.id = v.comment_id",
        "story_id",
    ),
    "user": (
        "SELECT u.id, u.name, coalesce(s.n, 0) AS stories, coalesce(c.n, 0) AS comments FROM users u"
        " LEFT JOIN (SELECT author, count(*) AS n FROM stories GROUP BY author) s ON u.id = s.author"
        " LEFT JOIN (SELECT author, count(*) AS n FROM comments GROUP BY author) c ON u.id = c.author",
        "id",
    ),
    "karma": (
        "SELECT author, sum(vote) AS karma FROM ("
        "SELECT s.author, v.vote FROM votes v JOIN stories s ON v.story_id = s.id WHERE v.comment_id IS NULL"
        " UNION ALL SELECT c.author, v.vote FROM votes v JOIN comments c ON v.comment_id = c.id) GROUP BY author",
        "author",
    ),
    "user_stories": (
        "SELECT author, id, title, score, place FROM (SELECT s.author, s.id, s.title, coalesce(v.score, 0) AS score,"
        " ROW_NUMBER() OVER (PARTITION BY s.author ORDER BY s.id DESC) AS place"
        f" FROM stories s LEFT JOIN {_STORY_SCORES} v ON s.id = v.story_id) WHERE place <= {USER_STORIES}",
        "author",
    ),
    "front_page": (
        "SELECT day, id, score, place FROM (SELECT s.day, s.id, coalesce(v.score, 0) AS score,"
        " ROW_NUMBER() OVER (PARTITION BY s.day ORDER BY coalesce(v.score, 0) DESC, s.id DESC) AS place"
        f" FROM stories s LEFT JOIN {_STORY_SCORES} v ON s.id = v.story_id) WHERE place <= {PAGE_STORIES}",
        "day",
    ),
    "recent": (
        "SELECT day, id, place FROM (SELECT day, id, ROW_NUMBER() OVER (PARTITION BY day ORDER BY id DESC) AS place"
        f" FROM stories) WHERE place <= {PAGE_STORIES}",
        "day",
    ),
    "recent_comments": (
        "SELECT day, id, story_id, author, text, score, place FROM (SELECT c.day, c.id, c.story_id, c.author, c.text,"
        " coalesce(v.score, 0) AS score, ROW_NUMBER() OVER (PARTITION BY c.day ORDER BY c.id DESC) AS place"
        f" FROM comments c LEFT JOIN {_COMMENT_SCORES} v ON c.id = v.comment_id) WHERE place <= {PAGE_COMMENTS}",
        "day",
    ),
}
"""Of each view its SQL, and the column that it is looked up by, which is its first."""


class Shares:
    """Ids from 0 up, some of which come up far more often than others."""

    def __init__(self, count: int, sigma: float, rng: np.random.Generator) -> None:
        shares = rng.lognormal(0.0, sigma, count)
        self._until = np.cumsum(shares) / shares.sum()

    def draw(self, count: int, rng: np.random.Generator) -> KeyArray:
        """So many ids, each by itself."""
        found = np.searchsorted(self._until, rng.random(count), side="right")
        return np.minimum(found, len(self._until) - 1).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is there before the first request. rows: of each table. voted_stories, voted_comments, commented_stories,
    users: by which ids are drawn for a request."""

    rows: Mapping[str, pa.Table]
    voted_stories: Shares
    voted_comments: Shares
    commented_stories: Shares
    users: Shares

    @classmethod
    def of(cls, scale: float, seed: int) -> "Site":
        """scale: of the counts of stories, comments, users."""
        rng = np.random.default_rng(seed)
        stories, comments, users = (max(1, round(count * scale)) for count in (STORIES, COMMENTS, USERS))
        by_votes = Shares(stories, SKEW["story_votes"], rng)
        by_comment_votes = Shares(comments, SKEW["comment_votes"], rng)
        by_comments = Shares(stories, SKEW["story_comments"], rng)
        by_user = Shares(users, SKEW["user_votes"], rng)
        ids = np.arange(comments)
        commented = by_comments.draw(comments, rng)
        rows = {
            "users": pa.table([pa.array(np.arange(users)), names(np.arange(users))], schema=TABLES["users"].schema),
            "stories": story_rows(np.arange(stories), by_user.draw(stories, rng)),
            "comments": comment_rows(ids, commented, by_user.draw(comments, rng)),
        }
        voted = by_comment_votes.draw(comments * COMMENT_VOTES, rng)
        for_stories = by_votes.draw(stories * STORY_VOTES, rng)
        rows["votes"] = pa.concat_tables(
            [
                vote_rows(by_user.draw(len(for_stories), rng), for_stories, None, _ups_and_downs(for_stories, rng)),
                vote_rows(by_user.draw(len(voted), rng), commented[voted], voted, _ups_and_downs(voted, rng)),
            ]
        )
        return cls(
            rows=rows,
            voted_stories=by_votes,
            voted_comments=by_comment_votes,
            commented_stories=by_comments,
            users=by_user,
        )


def story_rows(ids: KeyArray, authors: KeyArray) -> pa.Table:
    """Of the table ``stories``."""
    return pa.table([ids, _texts("Story", ids, 40), authors, ids // STORIES_A_DAY], schema=TABLES["stories"].schema)


def comment_rows(ids: KeyArray, stories: KeyArray, authors: KeyArray) -> pa.Table:
    """Of the table ``comments``."""
    texts = _texts("Comment", ids, TEXT_CHARACTERS)
    return pa.table([ids, stories, authors, texts, ids // COMMENTS_A_DAY], schema=TABLES["comments"].schema)


def vote_rows(users: KeyArray, stories: KeyArray, comments: KeyArray | None, votes: KeyArray) -> pa.Table:
    """Of the table ``votes``. comments: ``None`` for votes for stories."""
    named = pa.nulls(len(stories), pa.int64()) if comments is None else pa.array(comments)
    return pa.table([users, stories, named, votes], schema=TABLES["votes"].schema)


def names(users: KeyArray) -> pa.Array:
    """Of these users."""
    return _texts("user", users, 12)


def _texts(what: str, ids: KeyArray, characters: int) -> pa.Array:
    """So many characters each, which follow from the id."""
    return pc.binary_join_element_wise(what, pc.utf8_lpad(pa.array(ids).cast(pa.string()), characters, padding="."), "")


def _ups_and_downs(voted: KeyArray, rng: np.random.Generator) -> KeyArray:
    """A vote for each."""
    return np.where(rng.random(len(voted)) < DOWN_VOTES, -1, 1)
