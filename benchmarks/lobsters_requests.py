"""Requests to the site: which pages, how often, of what; drawn from a seed, the same however views are kept."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.lobsters_model import (
    COMMENTS_A_DAY,
    STORIES_A_DAY,
    KeyArray,
    Site,
    comment_rows,
    story_rows,
    vote_rows,
)

STORY, FRONT, USER, COMMENTS, RECENT, LOGIN = "story", "front_page", "user", "comments", "recent", "login"
COMMENT_UP, COMMENT_DOWN, STORY_UP, STORY_DOWN = "comment_up", "comment_down", "story_up", "story_down"
COMMENT, REPLY, SUBMIT = "comment", "reply", "submit"
MIX = {
    STORY: 55_842,
    FRONT: 30_105,
    USER: 6_702,
    COMMENTS: 4_674,
    RECENT: 967,
    COMMENT_UP: 630,
    STORY_UP: 475,
    COMMENT: 316,
    LOGIN: 87,
    REPLY: 71,
    COMMENT_DOWN: 54,
    SUBMIT: 53,
    STORY_DOWN: 21,
}
"""Of 100,000 requests; the few that are left are logouts, which read and write nothing."""
STORY_VOTES = {STORY_UP: 1, STORY_DOWN: -1}
COMMENT_VOTES = {COMMENT_UP: 1, COMMENT_DOWN: -1}
COMMENTING = (COMMENT, REPLY)
WRITES = (*STORY_VOTES, *COMMENT_VOTES, *COMMENTING, SUBMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One page. number: from 0 up. user: the user that asks or, of a user's page, its owner. story, comment: which it
    is about; of what is written, the new one. story_day, comment_day: of the newest story and comment there can be."""

    number: int
    page: str
    user: int
    story: int
    comment: int
    story_day: int
    comment_day: int

    def writes(self) -> Mapping[str, pa.Table]:
        """The rows that it adds to each table; a user that writes something votes for it."""
        user, story, comment = (np.array([number]) for number in (self.user, self.story, self.comment))
        one = np.ones(1, np.int64)
        if self.page in STORY_VOTES:
            return {"votes": vote_rows(user, story, None, one * STORY_VOTES[self.page])}
        if self.page in COMMENT_VOTES:
            return {"votes": vote_rows(user, story, comment, one * COMMENT_VOTES[self.page])}
        if self.page in COMMENTING:
            return {"comments": comment_rows(comment, story, user), "votes": vote_rows(user, story, comment, one)}
        if self.page == SUBMIT:
            return {"stories": story_rows(story, user), "votes": vote_rows(user, story, None, one)}
        return {}


def draw_requests(site: Site, count: int, seed: int) -> list[Request]:
    """So many, in order. Users are drawn by their votes, stories by their votes or comments, comments by theirs."""
    rng = np.random.default_rng([seed, 1])
    shares = np.array(list(MIX.values()), np.float64)
    pages = rng.choice(list(MIX), count, p=shares / shares.sum()).tolist()
    users = site.users.draw(count, rng).tolist()
    voted = site.voted_stories.draw(count, rng).tolist()
    commented = site.commented_stories.draw(count, rng).tolist()
    comments = site.voted_comments.draw(count, rng)
    of_comment = site.rows["comments"]["story_id"].to_numpy()[comments].tolist()
    next_story, next_comment = site.rows["stories"].num_rows, site.rows["comments"].num_rows
    requests = []
    for number, page in enumerate(pages):
        story, comment = voted[number], int(comments[number])
        if page in COMMENT_VOTES:
            story = of_comment[number]
        elif page in COMMENTING:
            story, comment, next_comment = commented[number], next_comment, next_comment + 1
        elif page == SUBMIT:
            story, next_story = next_story, next_story + 1
        requests.append(
            Request(
                number=number,
                page=page,
                user=users[number],
                story=story,
                comment=comment,
                story_day=(next_story - 1) // STORIES_A_DAY,
                comment_day=(next_comment - 1) // COMMENTS_A_DAY,
            )
        )
    return requests


def last_days(day: int) -> KeyArray:
    """A day and the one before, if there is one."""
    return np.arange(max(0, day - 1), day + 1)
