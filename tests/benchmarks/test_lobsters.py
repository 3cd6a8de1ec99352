"""``python -m benchmarks lobsters``: what is asked and written, that wrong answers are found, what it reports."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb

from benchmarks.hand_fed import HandFedApp
from benchmarks.lobsters import LobstersOptions, page_figures, site_views
from benchmarks.lobsters_answers import FAILED, PAGES, SiteAnswers, SiteLookup
from benchmarks.lobsters_load import bear
from benchmarks.lobsters_model import TABLES, VIEWS, Shares, Site, vote_rows
from benchmarks.lobsters_requests import FRONT, MIX, STORY, WRITES, draw_requests
from benchmarks.lobsters_truth import LobstersTruth, Published, wrong_lookups
from upriver.errors import UserError
from upriver.ids import Epoch

SITE = Site.of(0.004, seed=3)
BEGAN = Epoch(4)


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def truth() -> LobstersTruth:
    found = LobstersTruth()
    for table, rows in SITE.rows.items():
        found.add(table, rows)
    return found


# What is asked -----------------------------------------------------------------------------------------------------


def test_pages_come_in_the_mix_of_the_reference() -> None:
    requests = draw_requests(SITE, 20_000, seed=1)
    counts = Counter(request.page for request in requests)
    assert counts.keys() <= MIX.keys()
    assert counts[STORY] / len(requests) == pytest.approx(0.558, abs=0.02)
    assert counts[FRONT] / len(requests) == pytest.approx(0.301, abs=0.02)


def test_requests_follow_from_the_seed() -> None:
    assert draw_requests(SITE, 500, seed=1) == draw_requests(SITE, 500, seed=1)
    assert draw_requests(SITE, 500, seed=1) != draw_requests(SITE, 500, seed=2)


def test_a_writer_adds_rows_with_new_ids_that_belong_together() -> None:
    written: dict[str, list[pa.Table]] = {table: [rows] for table, rows in SITE.rows.items()}
    for request in draw_requests(SITE, 20_000, seed=1):
        assert bool(request.writes()) == (request.page in WRITES)
        for table, rows in request.writes().items():
            written[table].append(rows)
    tables = {table: pa.concat_tables(rows) for table, rows in written.items()}
    for table in ("stories", "comments"):
        assert tables[table].num_rows > SITE.rows[table].num_rows
        assert tables[table]["id"].to_pylist() == list(range(tables[table].num_rows))
    story_of = dict(zip(*(tables["comments"][name].to_pylist() for name in ("id", "story_id")), strict=True))
    votes = [tables["votes"][name].to_pylist() for name in ("story_id", "comment_id")]
    assert all(story == story_of[comment] for story, comment in zip(*votes, strict=True) if comment is not None)


def test_with_more_skew_few_ids_are_most() -> None:
    rng = np.random.default_rng(1)
    top = [np.sort(np.bincount(Shares(1000, sigma, rng).draw(50_000, rng)))[-100:].sum() for sigma in (0.5, 2.0)]
    assert top[0] < 0.35 * 50_000 < 0.6 * 50_000 < top[1]


# Whether it is right -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_the_truth_is_what_the_views_say_in_duckdb(view: str) -> None:
    rows = by_duckdb(VIEWS[view][0], **SITE.rows)
    expected: dict[int, list[tuple[object, ...]]] = {}
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        expected.setdefault(row[0], []).append(row)
    known = truth()
    asked = range(max(expected) + 2)
    assert {key: sorted(known.rows(view, key)) for key in asked} == {
        key: sorted(expected.get(key, [])) for key in asked
    }


def lookup(found: list[tuple[int, ...]] | None, *asked: int, epoch: int = BEGAN, at: float = 0.0) -> SiteLookup:
    """Of karma, at some time."""
    names = ("author", "karma")
    table = None if found is None else pa.table({n: [row[i] for row in found] for i, n in enumerate(names)})
    told = FAILED if found is None else epoch
    return SiteLookup(page=0, view="karma", keys=keys(*asked), at_least=0, epoch=told, answered_at=at, found=table)


STORY_OF_AUTHOR = 0
AUTHORS = SITE.rows["stories"]["author"].to_pylist()
AUTHOR = AUTHORS[STORY_OF_AUTHOR]
OTHER = next(author for author in AUTHORS if author != AUTHOR)
VOTED = Published(Epoch(5), "votes", vote_rows(keys(9), keys(STORY_OF_AUTHOR), None, keys(1)), at=10.0)


def test_only_answers_that_were_true_as_of_their_epoch_or_later_are_right() -> None:
    karma, others = (truth().rows("karma", key)[0][1] for key in (AUTHOR, OTHER))
    old, new, other = (AUTHOR, karma), (AUTHOR, karma + 1), (OTHER, others)
    right = [
        lookup([old], AUTHOR),
        lookup([old, other], AUTHOR, OTHER),
        lookup([new], AUTHOR, epoch=5, at=11.0),
        lookup([new], AUTHOR, at=11.0),
        lookup([new, other], AUTHOR, OTHER, epoch=5, at=11.0),
        lookup([], 10**6),
    ]
    wrong = [
        lookup([new], AUTHOR, at=9.0),  # before it was published
        lookup([new, other], AUTHOR, OTHER, at=11.0),  # several keys are as of the epoch told
        lookup([old], AUTHOR, epoch=5, at=11.0),
        lookup([old, old], AUTHOR),
        lookup([], AUTHOR),
        lookup([old, other], AUTHOR),
        lookup(None, AUTHOR),
        lookup([old], AUTHOR, epoch=BEGAN - 1),
        lookup([new], AUTHOR, epoch=6, at=11.0),
    ]
    found = wrong_lookups(SITE.rows, BEGAN, [VOTED], [*right, *wrong])
    assert {id(one) for one in found} == {id(one) for one in wrong}
    assert len(found) == len(wrong)


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    asked = [lookup([(AUTHOR, 5)], AUTHOR), lookup(None, OTHER), lookup([(OTHER, 7), (AUTHOR, 5)], OTHER, AUTHOR)]
    SiteAnswers(pa.table([[0], [1.0], [2.0]], schema=PAGES), asked).write(tmp_path)
    read = SiteAnswers.read(tmp_path)
    assert read.pages.to_pylist() == [{"number": 0, "began_at": 1.0, "ended_at": 2.0}]
    assert [(one.keys.tolist(), one.epoch, one.found) for one in read.lookups] == [
        (one.keys.tolist(), one.epoch, one.found) for one in asked
    ]


# The whole ---------------------------------------------------------------------------------------------------------


def test_a_site_has_some_size() -> None:
    with pytest.raises(UserError, match="above 0"):
        LobstersOptions(scale=0, requests=1, warm_up=1, clients=1, workers=1)
    assert {table: rows.schema for table, rows in SITE.rows.items()} == {
        name: table.schema for name, table in TABLES.items()
    }


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("partial", [False, True])
def test_all_pages_of_a_small_site_are_right(spark: Any, tmp_path: Path, partial: bool) -> None:
    requests = [request for request in draw_requests(SITE, 2_000, seed=1) if request.number < 60 or request.writes()]
    asked = [replace(request, number=number) for number, request in enumerate(requests)]
    with HandFedApp(spark, tmp_path / "lake", 2, site_views(partial)) as cluster:
        for table, rows in SITE.rows.items():
            cluster.publish(rows, table)
        began = cluster.wait(60)
        forgetful = list(VIEWS) if partial else []
        load = bear(cluster, asked, 30, 2, forgetful, tmp_path)
    assert [plan.full_because is None for plan in cluster.plans] == [partial] * len(VIEWS)
    assert wrong_lookups(SITE.rows, began, load.published, load.answers.lookups) == []
    assert {request.number for request in asked} == set(load.answers.pages["number"].to_pylist())
    assert {lookup.view for lookup in load.answers.lookups} == VIEWS.keys()
    assert len(load.published) >= sum(bool(request.writes()) for request in asked) > 20
    assert (sum(load.missed.values()) > 0) == partial
    assert page_figures(load, asked, 30)["pages"][STORY]["count"] > 0


@pytest.mark.spark
@pytest.mark.long
def test_a_small_site_is_measured_and_all_answers_are_right() -> None:
    arguments = "--scale 0.002 --requests 100 --warm-up 50 --clients 2 --workers 1 --json"
    command = [sys.executable, "-m", "benchmarks", "lobsters", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong_answers"] == 0
    assert found["answers_checked"] > 600
    assert {view["kept"] for view in found["full"]["views"].values()} == {"full"}
    assert {view["kept"] for view in found["partial"]["views"].values()} == {"partial"}
    assert found["full"]["miss_share"] == 0 < found["partial"]["miss_share"]
    assert found["partial"]["views"]["story"]["rows"] < found["full"]["views"]["story"]["rows"]
