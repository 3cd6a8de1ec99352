"""Which lookups make a page, each by what those before have found."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa

from benchmarks.lobsters_model import PAGE_STORIES, KeyArray
from benchmarks.lobsters_requests import (
    COMMENT,
    COMMENT_DOWN,
    COMMENT_UP,
    COMMENTS,
    FRONT,
    LOGIN,
    RECENT,
    REPLY,
    STORY,
    STORY_DOWN,
    STORY_UP,
    SUBMIT,
    USER,
    Request,
    last_days,
)


class PageSite(Protocol):
    """What a page can do."""

    def look(self, view: str, keys: KeyArray, at_least: int = 0) -> pa.Table:
        """The view's rows of these keys, each once. at_least: the epoch that they reflect; 0 for any."""

    def write(self) -> int:
        """Have the request's rows written; returns the epoch that has them all."""


def show(request: Request, site: PageSite) -> None:
    """Do all that the request's page takes."""
    _PAGES[request.page](request, site)


def _story(request: Request, site: PageSite, at_least: int = 0) -> None:
    """The story, its comments, and their authors."""
    story = site.look("story", _one(request.story), at_least)
    comments = site.look("story_comments", _one(request.story), at_least)
    _users(site, story, comments)


def _front(request: Request, site: PageSite) -> None:
    """The best stories of the last two days."""
    best = site.look("front_page", last_days(request.story_day)).sort_by(
        [("score", "descending"), ("id", "descending")]
    )
    _stories(site, best["id"].slice(0, PAGE_STORIES))


def _recent(request: Request, site: PageSite) -> None:
    """The newest stories."""
    newest = site.look("recent", last_days(request.story_day)).sort_by([("id", "descending")])
    _stories(site, newest["id"].slice(0, PAGE_STORIES))


def _comments(request: Request, site: PageSite) -> None:
    """The newest comments, their stories, and their authors."""
    newest = site.look("recent_comments", last_days(request.comment_day))
    stories = site.look("story", _distinct(newest["story_id"]))
    _users(site, newest, stories)


def _user(request: Request, site: PageSite) -> None:
    site.look("user", _one(request.user))
    site.look("karma", _one(request.user))
    site.look("user_stories", _one(request.user))


def _login(request: Request, site: PageSite) -> None:
    site.look("user", _one(request.user))


def _vote_for_story(request: Request, site: PageSite) -> None:
    site.look("story", _one(request.story))
    site.look("story", _one(request.story), site.write())


def _vote_for_comment(request: Request, site: PageSite) -> None:
    site.look("story_comments", _one(request.story))
    site.look("story_comments", _one(request.story), site.write())


def _comment(request: Request, site: PageSite) -> None:
    """A user that writes is shown the story's page with what was written."""
    site.look("story", _one(request.story))
    _story(request, site, site.write())


def _submit(request: Request, site: PageSite) -> None:
    site.look("user", _one(request.user))
    _story(request, site, site.write())


_PAGES: Mapping[str, Callable[[Request, PageSite], None]] = {
    STORY: _story,
    FRONT: _front,
    RECENT: _recent,
    COMMENTS: _comments,
    USER: _user,
    LOGIN: _login,
    STORY_UP: _vote_for_story,
    STORY_DOWN: _vote_for_story,
    COMMENT_UP: _vote_for_comment,
    COMMENT_DOWN: _vote_for_comment,
    COMMENT: _comment,
    REPLY: _comment,
    SUBMIT: _submit,
}


def _stories(site: PageSite, ids: pa.ChunkedArray) -> None:
    """A list of stories, and their authors."""
    _users(site, site.look("story", _distinct(ids)))


def _users(site: PageSite, *written: pa.Table) -> None:
    """The authors of these."""
    site.look("user", _distinct(pa.chunked_array([chunk for rows in written for chunk in rows["author"].chunks])))


def _one(key: int) -> KeyArray:
    return np.array([key], np.int64)


def _distinct(keys: pa.ChunkedArray) -> KeyArray:
    return np.unique(keys.to_numpy())
