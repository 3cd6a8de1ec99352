"""``python -m benchmarks vote``: its load, that wrong answers are found, what it reports."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_kit import Cluster
from client_kit import View as Contents

from benchmarks.__main__ import make_parser
from benchmarks.rescale_figures import FedRows, Window
from benchmarks.vote import VoteMeasured, headline, report
from benchmarks.vote_command import options_of, render_vote
from benchmarks.vote_figures import VoteAnswers, VotesBefore, load_figures, wrong_answers
from benchmarks.vote_lookups import Asker, VoteLookupTask
from benchmarks.vote_model import VIEW, KeyArray, Popularity, titles
from benchmarks.vote_prober import ANSWERS, BATCHED, FRESH, HIT, MISS, SINGLE, WARM_UP, WRONG, VoteProber, VoteTask
from upriver.errors import UserError
from upriver.protocol.lookups import ViewRoute

ARTICLES, UNREAD = 50, 400
NAMED = ("state_mb", "rss_mb", "read_p50_ms", "read_p99_ms", "miss_p50_ms", "reads_per_s", "writes_per_s")
"""What both ways of keeping the view are compared by."""

Answer = tuple[int, float, float, int, int, int]


def answers(*found: Answer) -> VoteAnswers:
    """Of kind, due_at, answered_at, key, n, epoch."""
    table = pa.table([list(column) for column in zip(*found, strict=True)] or [[]] * 6, schema=ANSWERS)
    return VoteAnswers(*(column.to_numpy() for column in table.columns))


def keys(*numbers: int) -> KeyArray:
    return np.array(numbers, np.int64)


# What is read ------------------------------------------------------------------------------------------------------


def test_by_zipf_the_lowest_ids_are_read_most_and_all_are_alike_otherwise() -> None:
    rng = np.random.default_rng(1)
    zipf = np.bincount(Popularity("zipf", 1000, 1.15).draw(100_000, rng), minlength=1000)
    uniform = np.bincount(Popularity("uniform", 1000, 1.15).draw(100_000, rng), minlength=1000)
    assert len(zipf) == len(uniform) == 1000
    assert zipf[0] / zipf[9] == pytest.approx(10**1.15, rel=0.1)
    assert zipf[:100].sum() > 0.7 * zipf.sum()
    assert uniform.max() < 2 * uniform.min()
    with pytest.raises(UserError, match="normal"):
        Popularity("normal", 1000, 1.15)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two workers that keep all articles, each with as many votes as its id; nothing ever changes."""
    cluster = Cluster(2)
    schema = pa.schema([("id", pa.int64()), ("title", pa.string()), ("n", pa.int64())])
    names = titles(np.arange(ARTICLES + UNREAD)).to_pylist()
    cluster.views[VIEW] = Contents(
        ViewRoute(("id",), schema), [(number, name, number or None) for number, name in enumerate(names)]
    )
    yield cluster
    cluster.stop()


def spoil(cluster: Cluster, article: int) -> None:
    """Give an article another one's title."""
    view = cluster.views[VIEW]
    rows = [(row[0], "another", row[2]) if row[0] == article else row for row in view.rows]
    cluster.views[VIEW] = Contents(view.route, rows)


def probe(cluster: Cluster, prime_reads: int = 0) -> list[Answer]:
    task = VoteTask(
        address=cluster.coordinator.address,
        articles=ARTICLES,
        unread=UNREAD,
        distribution="uniform",
        skew=1.15,
        prime_reads=prime_reads,
        reads_per_s=20_000.0,
        batch_ms=1.0,
        singles_per_s=500.0,
        misses_per_s=500.0,
        result="",
        seed=1,
    )
    epochs = [json.dumps({"epoch": 2, "at": 0.5, "keys": [3, 4]})]
    with cluster.connect() as client:
        prober = VoteProber(client, task)
        prober.warm_up()
        return [tuple(row.values()) for row in prober.probe(epochs).to_pylist()]


def test_the_prober_reads_each_kind_and_has_the_votes_of_each_article(cluster: Cluster) -> None:
    found = probe(cluster)
    assert {kind for kind, *_ in found} == {BATCHED, SINGLE, MISS, HIT, FRESH}
    assert all(n == key for _, _, _, key, n, _ in found)
    assert all(due_at <= answered_at for _, due_at, answered_at, *_ in found)
    misses = [key for kind, _, _, key, *_ in found if kind == MISS]
    assert min(misses) >= ARTICLES
    assert len(set(misses)) == len(misses)
    assert sorted(misses) == sorted(key for kind, _, _, key, *_ in found if kind == HIT)
    assert sorted((key, epoch) for kind, *_, key, _, epoch in found if kind == FRESH) == [(3, 5), (4, 5)]


def test_the_prober_knows_another_articles_row(cluster: Cluster) -> None:
    spoil(cluster, 4)
    found = probe(cluster)
    assert all((n == WRONG) == (key == 4) for _, _, _, key, n, _ in found)
    assert any(n == WRONG for _, _, _, _, n, _ in found)


def test_what_is_read_often_is_read_before_the_load(cluster: Cluster) -> None:
    probe(cluster, prime_reads=12_000)
    asked = [worker.asked.queue for worker in cluster.workers.values()]
    primed = [sum(lookup for lookup in of_one if lookup > ARTICLES // 4) for of_one in asked]
    assert sum(len(of_one) for of_one in asked) > WARM_UP
    assert sum(primed) >= 2 * ARTICLES  # each of two lookups is of all articles: 10,000 reads, and 2,000


@pytest.mark.verify
def test_lookups_one_after_the_other_are_timed_and_checked(cluster: Cluster, tmp_path: Path) -> None:
    def asked(counts: KeyArray) -> dict[str, Any]:
        path = tmp_path / "counts.npy"
        np.save(path, counts)
        task = VoteLookupTask(
            address=cluster.coordinator.address,
            counts=str(path),
            singles=5,
            batches=5,
            fill_keys=10,
            is_partial=False,
            seed=1,
        )
        with cluster.connect() as client:
            return dict(Asker(client, task).measure())

    right, wrong = asked(np.arange(ARTICLES + UNREAD)), asked(np.arange(ARTICLES + UNREAD) + 1)
    assert right["wrong_answers"] == 0
    assert wrong["wrong_answers"] == wrong["answers_checked"] == right["answers_checked"] > 500
    assert right["batches"]["keys_per_s"] > 0
    assert right["hit_p50_ms"] > 0
    assert right["miss_p50_ms"] is None


# What is counted ---------------------------------------------------------------------------------------------------

BEFORE = VotesBefore(epochs=2, counts=keys(7, 0))
FED = FedRows.of(3, [(10.0, keys(0, 0, 1)), (11.0, keys(0))])
"""Epochs 3 and 4: at 10 seconds two votes for article 0 and one for 1, at 11 one more for 0."""


@pytest.mark.parametrize(
    ("answered_at", "n", "epoch", "is_wrong"),
    [
        (9.0, 7, 2, False),
        (9.0, 8, 2, True),
        (10.5, 7, 2, False),
        (10.5, 9, 2, False),
        (10.5, 7, 3, True),
        (10.5, 9, 3, False),
        (10.5, 10, 3, True),
        (11.5, 10, 3, False),
        (11.5, 9, 4, True),
        (11.5, WRONG, 0, True),
    ],
)
def test_an_answer_has_all_votes_up_to_its_epoch_and_none_of_the_future(
    answered_at: float, n: int, epoch: int, is_wrong: bool
) -> None:
    assert wrong_answers(answers((SINGLE, 8.0, answered_at, 0, n, epoch)), BEFORE, FED) == is_wrong


def test_a_load_has_figures_of_each_kind_of_read_that_was_due_in_its_window() -> None:
    found = answers(
        *((BATCHED, 10 + number / 100, 10.005 + number / 100, 0, 9, 3) for number in range(100)),
        (BATCHED, 9.0, 9.5, 0, 7, 2),
        (MISS, 10.5, 10.54, 1, 1, 3),
        (HIT, 10.54, 10.55, 1, 1, 3),
        (FRESH, 10.0, 10.25, 0, 9, 3),
    )
    figures = load_figures(found, FED, Window(10.0, 12.0))
    assert figures["reads_per_s"] == 51
    assert figures["read_p50_ms"] == figures["read_p99_ms"] == pytest.approx(5)
    assert (figures["loaded_miss_p50_ms"], figures["loaded_hit_p50_ms"]) == (pytest.approx(40), pytest.approx(10))
    assert figures["update_p50_ms"] == pytest.approx(250)
    assert figures["single_p50_ms"] is None


# What is reported --------------------------------------------------------------------------------------------------


def run(kept: str, budget_mb: int | None, state_mb: float, **others: Any) -> dict[str, Any]:
    figures = dict.fromkeys(
        [*NAMED, "read_p95_ms", "present_keys", "missed_keys_per_s", "loaded_hit_p50_ms", "loaded_miss_p50_ms"], 1
    )
    names = {"kept": kept, "budget_mb": budget_mb, "distribution": "zipf", "state_mb": state_mb}
    return figures | names | {"loaded_miss_p99_ms": None, "answers_checked": 10, "wrong_answers": 0} | others


def alone(partial: bool) -> dict[str, Any]:
    return {
        "hit_p50_ms": 1.0,
        "miss_p50_ms": 4.0 if partial else None,
        "fills": {"keys": 1000, "keys_per_s": 200_000},
        "batches": {"keys": 100, "keys_per_s": 90_000, "larger": {"1000": 600_000}, "threads": {"8": 300_000}},
        "grown": {"known_share": 0.99},
        "first_fill_mb": 7.5,
        "answers_checked": 5,
        "wrong_answers": 0,
    }


def reported(redis: int | None, wrong: int = 0) -> dict[str, Any]:
    ways = [
        VoteMeasured([run("full", None, 400.0)], alone(False)),
        VoteMeasured([run("partial", None, 60.0)], alone(True)),
        VoteMeasured([run("partial", 8, 16.0, wrong_answers=wrong)], None),
    ]
    why = "there is no server" if redis is None else None
    new_view = {"rows": 1000, "total_ms": 50.0, "answer_is_right": True}
    larger = {} if redis is None else {"1000": 300_000, "10000": 400_000}
    threads = {} if redis is None else {"8": 200_000}
    beside = {
        "redis": {"keys_per_s": redis, "larger": larger, "threads": threads, "parser": "Python", "skipped": why},
        "new_view": new_view,
    }
    return report(options_of(make_parser().parse_args(["vote", "--distributions", "zipf"])), ways, beside)


def test_the_report_names_what_both_ways_are_compared_by() -> None:
    found = reported(redis=100_000)
    assert found["answers_checked"] == 40
    assert found["wrong_answers"] == 0
    assert all(name in found[way] for way in ("full", "partial") for name in NAMED)
    assert (found["full"]["miss_p50_ms"], found["partial"]["miss_p50_ms"]) == (None, 4.0)
    assert (found["partial"]["budget_mb"], found["partial"]["state_share"]) == (8, 0.04)
    assert found["ratio_to_redis"] == 0.9
    assert found["larger_ratios_to_redis"] == {"1000": 2.0}
    assert found["threads_ratios_to_redis"] == {"8": 1.5}
    assert found["accounting"]["partial"] == {"known_share": 0.99, "first_fill_mb": 7.5}
    assert "Redis (Python): 100,000" in render_vote(found)
    assert "Of 1,000: 600,000 keys/s; Redis: 300,000." in render_vote(found)
    assert "On 8 threads: 300,000 keys/s; Redis: 200,000." in render_vote(found)
    assert "40 answers, all right" in render_vote(found)
    json.dumps(found)


def test_what_was_left_out_and_what_is_wrong_is_said() -> None:
    found = reported(redis=None, wrong=3)
    assert found["ratio_to_redis"] is None
    assert found["larger_ratios_to_redis"] == {}
    assert "there is no server" in render_vote(found)
    assert "3 WRONG" in render_vote(found)


@pytest.mark.parametrize(("states", "chosen"), [((60, 16, 8), 16), ((60, 40, 30), 30), ((20, 16, 8), 20)])
def test_the_partial_run_in_front_is_the_largest_that_is_small_or_else_the_smallest(
    states: tuple[float, ...], chosen: float
) -> None:
    runs = [run("partial", None, state) for state in states]
    assert headline(runs, run("full", None, 400.0))["state_mb"] == chosen


@pytest.mark.spark
@pytest.mark.long
def test_a_small_workload_is_measured_and_all_answers_are_right() -> None:
    arguments = "--articles 2000 --votes 2000 --budgets-mb 1 --distributions zipf --prime-reads 1000 --settle-s 1"
    more = "--steady-s 2 --singles 20 --batches 20 --fill-keys 1000 --new-view-rows 1000 --json"
    command = [sys.executable, "-m", "benchmarks", "vote", *arguments.split(), *more.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong_answers"] == 0
    assert found["answers_checked"] > 10_000
    assert found["partial"]["state_mb"] > 0
    assert found["partial"]["present_keys"] < found["full"]["present_keys"]
    assert found["new_view"]["answer_is_right"]
