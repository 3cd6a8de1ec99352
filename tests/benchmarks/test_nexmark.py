"""NEXMark: its events are as the model says, its queries have answers, and both sides of the comparison find them."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.commands import render_nexmark, render_stateful_map
from benchmarks.nexmark import NexmarkMeasured, NexmarkOptions, measure_nexmark, report
from benchmarks.nexmark_contestant import NexmarkTask, Ran, run_spark, run_upriver
from benchmarks.nexmark_events import BLOCK_EVENTS, NexmarkSpec, write_nexmark
from benchmarks.nexmark_model import AUCTIONS, PEOPLE, START_MS, TABLES
from benchmarks.nexmark_queries import QUERIES, Refused, Streaming
from upriver.errors import UserError

SPEC = NexmarkSpec(events=2 * BLOCK_EVENTS + 20_000)
SLOW = NexmarkSpec(events=20_000, events_per_s=200)
"""100 seconds of events: windows of 10 seconds begin and end."""


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return {name: SPEC.rows(name) for name in TABLES}


def numbers(table: pa.Table, column: str) -> Any:
    """A column of ids, as numbers from 0 on."""
    return table[column].to_numpy() - 1_000


def events(name: str, table: pa.Table) -> Any:
    """Which of all events the rows are."""
    return TABLES[name].kind.events_of(np.arange(table.num_rows))


# Events ----------------------------------------------------------------------------------------------------------


def test_of_each_50_events_one_is_a_person_and_three_are_auctions(tables: dict[str, pa.Table]) -> None:
    cycles = SPEC.events // 50
    assert {name: table.num_rows for name, table in tables.items()} == {
        "person": cycles,
        "auction": 3 * cycles,
        "bid": 46 * cycles,
    }
    every = np.sort(np.concatenate([events(name, table) for name, table in tables.items()]))
    assert every.tolist() == list(range(SPEC.events))


@settings(max_examples=15)
@given(st.lists(st.integers(0, 3 * BLOCK_EVENTS), min_size=2, max_size=4).map(sorted), st.sampled_from([*TABLES]))
def test_rows_do_not_depend_on_how_they_are_cut(cuts: list[int], name: str) -> None:
    spec = NexmarkSpec(events=3 * BLOCK_EVENTS)
    parts = [spec.rows(name, first, end) for first, end in pairwise(cuts)]
    assert pa.concat_tables(parts).equals(spec.rows(name, cuts[0], cuts[-1]))


def test_every_event_is_in_one_table() -> None:
    for first, end in ((0, 1), (0, 7), (3, 53), (51, 52), (49_999, 50_001)):
        assert sum(SPEC.rows(name, first, end).num_rows for name in TABLES) == end - first


def test_a_seed_gives_the_same_events_however_many_there_are() -> None:
    few, more, other = NexmarkSpec(events=500), NexmarkSpec(events=5_000), NexmarkSpec(events=500, seed=2)
    for name in TABLES:
        rows = few.rows(name)
        assert rows.num_rows > 0
        assert rows.equals(few.rows(name))
        assert rows.equals(more.rows(name).slice(0, rows.num_rows))
        assert not rows.equals(other.rows(name))


@pytest.mark.parametrize("asked", [{"events": 0}, {"events": 1, "events_per_s": 0}])
def test_impossible_events_are_refused(asked: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least one"):
        NexmarkSpec(**asked)


def test_time_advances_at_a_fixed_rate_and_ids_count(tables: dict[str, pa.Table]) -> None:
    for name, table in tables.items():
        ms = table["ts"].cast(pa.int64()).to_numpy() // 1_000
        assert ms.tolist() == (START_MS + events(name, table) // 10).tolist()  # 10,000 events a second
    for name in ("person", "auction"):
        assert numbers(tables[name], "id").tolist() == list(range(tables[name].num_rows))


def check_mostly(found: Any, hot: Any, least: Any, most: Any, share: float) -> None:
    """The hot one in about a share of the events, and one between the least and the most in the others."""
    assert ((found >= least) & (found <= most)).all()
    assert (found == hot).mean() == pytest.approx(share, abs=0.02)


def test_sellers_bidders_and_auctions_are_hot_or_of_the_latest_or_to_come(tables: dict[str, pa.Table]) -> None:
    for name, column, hot_offset in (("auction", "seller", 0), ("bid", "bidder", 1)):
        latest = PEOPLE.latest(events(name, tables[name]))
        hot = latest // 100 * 100 + hot_offset
        check_mostly(numbers(tables[name], column), hot, np.maximum(latest - 999, 0), latest + 10, share=3 / 4)
    latest = AUCTIONS.latest(events("bid", tables["bid"]))
    hot, least = latest // 100 * 100, np.maximum(latest - 100, 0)
    check_mostly(numbers(tables["bid"], "auction"), hot, least, latest + 10, share=1 / 2)
    assert (numbers(tables["bid"], "auction") > latest).any()  # bid on before it is opened


def test_prices_times_and_categories_are_the_models(tables: dict[str, pa.Table]) -> None:
    prices = np.log10(tables["bid"]["price"].to_numpy())
    assert (prices.min(), prices.max()) == (pytest.approx(2, abs=0.01), pytest.approx(8, abs=0.01))
    assert np.quantile(prices, [0.25, 0.5, 0.75]) == pytest.approx([3.5, 5, 6.5], abs=0.05)
    auctions = tables["auction"]
    assert pc.all(pc.greater(auctions["reserve"], auctions["initial_bid"])).as_py()
    assert sorted(pc.unique(auctions["category"]).to_pylist()) == [10, 11, 12, 13, 14]
    open_ms = pc.subtract(auctions["expires"], auctions["ts"]).cast(pa.int64()).to_numpy() / 1_000
    assert open_ms.min() >= 1
    assert open_ms.max() <= 2 * 167
    assert open_ms.mean() == pytest.approx(100 * 50 / 3 / 10, rel=0.05)  # until the 100th auction after it


def test_events_are_as_large_as_the_models(tables: dict[str, pa.Table]) -> None:
    counted = {
        "person": ["name", "email", "credit_card", "city", "state"],
        "auction": ["item", "description"],
        "bid": [],
    }
    numbers_and_times = {"person": 8, "auction": 48, "bid": 32}
    for (name, columns), average in zip(counted.items(), (200, 500, 100), strict=True):
        texts = sum(pc.sum(pc.binary_length(tables[name][column])).as_py() for column in [*columns, "extra"])
        assert numbers_and_times[name] + texts / tables[name].num_rows == pytest.approx(average, rel=0.02)


def test_channels_have_addresses(tables: dict[str, pa.Table]) -> None:
    bids = tables["bid"]
    is_hot = pc.is_in(bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    assert pc.mean(is_hot.cast(pa.int8())).as_py() == pytest.approx(0.5, abs=0.02)
    assert bids.group_by(["channel", "url"]).aggregate([]).num_rows == bids.group_by("channel").aggregate([]).num_rows
    tells = pc.match_substring(bids["url"].filter(pc.invert(is_hot)), "&channel_id=")
    assert pc.mean(tells.cast(pa.int8())).as_py() == pytest.approx(0.9, abs=0.02)


def test_events_are_written_once_in_order_and_other_ones_are_refused(tmp_path: Path) -> None:
    spec = NexmarkSpec(events=1_000)
    write_nexmark(tmp_path / "a", spec, 3)
    for name in TABLES:
        paths = sorted((tmp_path / "a" / name).glob("*.parquet"))
        assert pa.concat_tables([pq.read_table(path) for path in paths]).equals(spec.rows(name))
        modified = [path.stat().st_mtime for path in paths]
        assert modified == sorted(set(modified))
    written = [path.stat().st_ino for path in paths]
    write_nexmark(tmp_path / "a", spec, 3)
    assert [path.stat().st_ino for path in paths] == written
    with pytest.raises(UserError, match="holds something else"):
        write_nexmark(tmp_path / "a", spec, 4)
    with pytest.raises(UserError, match="each file has one"):
        write_nexmark(tmp_path / "b", spec, 1_001)


def test_only_the_tables_that_are_asked_for_are_written(tmp_path: Path) -> None:
    spec = NexmarkSpec(events=1_000)
    write_nexmark(tmp_path, spec, 2, ("person", "auction"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_nexmark.json", "auction", "person"]
    assert pq.read_table(tmp_path / "auction").equals(spec.rows("auction"))
    with pytest.raises(UserError, match="holds something else"):
        write_nexmark(tmp_path, spec, 2)


def test_queries_read_about_as_many_rows() -> None:
    shares = [query.times * sum(TABLES[table].kind.share for table in query.sources) for query in QUERIES.values()]
    assert max(shares) <= 1.1 * min(shares)


def test_a_query_that_keeps_few_rows_runs_longer_over_files_of_the_same_size() -> None:
    assert {name for name, query in QUERIES.items() if query.longer > 1} == {"q3"}


# Queries ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nexmark")
    write_nexmark(directory, SLOW, 4)
    return directory


def streams(spark: Any, data: Path, query: str) -> None:
    for name, source in QUERIES[query].sources.items():
        rows = spark.readStream.schema(spark.read.parquet(str(data / name)).schema).parquet(str(data / name))
        rows.select(*source.columns).withWatermark("ts", "0 seconds").createOrReplaceTempView(name)


@pytest.mark.long
@pytest.mark.spark
def test_every_query_has_an_answer_from_the_columns_it_names(spark: Any, data: Path) -> None:
    for name, query in QUERIES.items():
        for table, source in query.sources.items():
            spark.read.parquet(str(data / table)).select(*source.columns).createOrReplaceTempView(table)
        answer = spark.sql(query.sql)
        assert answer.count() > 0, name
        assert set(query.key) <= set(answer.columns), name


def sellers_averages() -> dict[int, float]:
    """Query 6 the slow way: of each seller's auctions the 10 that were won last, and their prices' average."""
    auctions = {row["id"]: row for row in SLOW.rows("auction").to_pylist()}
    best: dict[int, tuple[Any, ...]] = {}
    for bid in SLOW.rows("bid").select(["auction", "price", "ts"]).to_pylist():
        auction = auctions.get(bid["auction"])
        if auction is not None and auction["ts"] <= bid["ts"] <= auction["expires"]:
            offer = (-bid["price"], bid["ts"])
            best[auction["id"]] = min(best.get(auction["id"], offer), offer)
    won = defaultdict(list)
    for number, (minus_price, at) in best.items():
        won[auctions[number]["seller"]].append((at, number, -minus_price))
    return {seller: float(np.mean([price for *_, price in sorted(all_)[-10:]])) for seller, all_ in won.items()}


@pytest.mark.long
@pytest.mark.spark
def test_query_6_is_what_it_says(spark: Any, data: Path) -> None:
    for table in ("auction", "bid"):
        spark.read.parquet(str(data / table)).createOrReplaceTempView(table)
    answer = {row.seller: row.price for row in spark.sql(QUERIES["q6"].sql).collect()}
    assert answer == pytest.approx(sellers_averages())
    assert len(answer) > 100


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if isinstance(query.streaming, Refused)])
def test_what_spark_cannot_stream_is_refused_in_every_mode(spark: Any, data: Path, tmp_path: Path, name: str) -> None:
    from pyspark.errors import AnalysisException

    streams(spark, data, name)
    for mode in ("append", "update", "complete"):
        writer = spark.sql(QUERIES[name].sql).writeStream.format("noop").outputMode(mode)
        with pytest.raises(AnalysisException, match=r"(?i)not supported|correctness"):
            writer.option("checkpointLocation", str(tmp_path / mode)).start()


# Sides -----------------------------------------------------------------------------------------------------------


def task(data: Path, work: Path, query: str, **changed: Any) -> NexmarkTask:
    fields = dict[str, Any](side="upriver", workers=1, cores=1, warm_up_files=2, state_store="default") | changed
    return NexmarkTask(query=query, data=str(data), work=str(work), result=str(work / "outcome.json"), **fields)


def check_ran(outcome: Any) -> None:
    assert isinstance(outcome, Ran), outcome
    assert outcome.differing == 0
    assert outcome.rows > 0
    assert outcome.reflected_at > outcome.started_at


@pytest.mark.long
@pytest.mark.spark
def test_an_app_keeps_the_answer(spark: Any, data: Path, tmp_path: Path) -> None:
    outcome = run_upriver(spark, task(data, tmp_path, "q2"))
    check_ran(outcome)
    assert isinstance(outcome, Ran)
    assert outcome.events == SLOW.rows("bid").num_rows


@pytest.mark.long
@pytest.mark.spark
def test_a_stream_of_spark_finds_the_answer_put_in_its_own_way(spark: Any, data: Path, tmp_path: Path) -> None:
    assert isinstance(QUERIES["q5"].streaming, Streaming)
    assert QUERIES["q5"].streaming.sql is not None
    check_ran(run_spark(spark, task(data, tmp_path, "q5", side="spark")))


@pytest.mark.spark
def test_what_an_app_refuses_is_an_outcome(spark: Any, data: Path, tmp_path: Path) -> None:
    outcome = run_upriver(spark, task(data, tmp_path, "q2", workers=0))
    assert outcome == Refused(
        "DeclarationError: workers=0: there must be at least 1 and at most as many as vnodes (256)"
    )


def options(queries: tuple[str, ...], **changed: Any) -> NexmarkOptions:
    fields: dict[str, Any] = {"has_spark": False, "state_store": "default", "map_keys": ()} | changed
    return NexmarkOptions(
        spec=NexmarkSpec(events=2_000),
        queries=queries,
        workers=1,
        cores=1,
        files=2,
        warm_up_files=1,
        data=None,
        **fields,
    )


@pytest.mark.long
@pytest.mark.spark
def test_a_side_runs_in_a_process_of_its_own() -> None:
    measured = json.loads(json.dumps(measure_nexmark(options(("q2",)), lambda _: None)))
    figures = measured["queries"]["q2"]
    assert (measured["equal"], figures["equal"], figures["stateful"]) == (True, True, False)
    assert figures["events_per_s"] > 0
    assert figures["cpu_us_per_event"] > 0
    assert (figures["spark_events_per_s"], figures["ratio"], figures["why"]) == (None, None, "Spark: not asked for")
    assert measured["stateful_map"] == {"cases": [], "equal": True, "why": "not asked for"}


@pytest.mark.long
@pytest.mark.spark
def test_stateful_maps_run_in_a_process_of_their_own() -> None:
    measured = json.loads(json.dumps(measure_nexmark(options((), map_keys=(1_000,)), lambda _: None)))
    (case,) = measured["stateful_map"]["cases"]
    assert (measured["equal"], case["keys"], case["equal"], case["why"]) == (True, 1_000, True, "not asked for")
    assert case["upriver_rows_per_s"]["batch"] > 0
    shown = render_nexmark(measured).splitlines()
    assert [line.split()[:2] for line in shown[-3:]] == [["1,000", form] for form in ("row", "key", "batch")]


@pytest.mark.verify
def test_a_side_that_fails_is_reported() -> None:
    said: list[str] = []
    measured = measure_nexmark(options(("q0",), state_store="none"), said.append)
    assert measured["equal"] is False
    assert measured["queries"]["q0"]["equal"] is None
    assert measured["queries"]["q0"]["why"].startswith("Upriver: failed (1): KeyError: 'none'")
    assert any("failed" in line for line in said)
    assert any("Traceback" in line for line in said)


def test_queries_and_cores_that_there_are_not_are_refused() -> None:
    with pytest.raises(UserError, match="no query q9; there are: q0, q1"):
        measure_nexmark(options(("q0", "q9")))
    with pytest.raises(UserError, match=r"over \[7\] keys; there are: \[1000, 10000, 1000000\]"):
        measure_nexmark(options(("q0",), map_keys=(7, 1_000)))


# Figures and commands --------------------------------------------------------------------------------------------


def measured(rate: float, *, is_equal: bool = True) -> NexmarkMeasured:
    return NexmarkMeasured(events=100, events_per_s=rate, cpu_us_per_event=1e6 / rate, is_equal=is_equal)


def test_a_query_is_reported_with_what_there_is() -> None:
    both = report("q5", measured(400_000), measured(160_000))
    assert (both["ratio"], both["equal"], both["spark_equal"], both["why"]) == (2.5, True, True, None)
    assert (both["events"], both["events_per_s"], both["cpu_us_per_event"]) == (100, 400_000, 2.5)
    refused = report("q4", Refused("no joins"), Refused("no average of maxima"))
    assert (refused["equal"], refused["ratio"], refused["events_per_s"], refused["spark_events_per_s"]) == (None,) * 4
    assert refused["why"] == "Upriver: no joins; Spark: no average of maxima"
    assert report("q4", measured(1, is_equal=False), Refused("no"))["equal"] is False


def test_figures_are_shown_to_a_person() -> None:
    queries = {
        "q4": report("q4", measured(400_000), Refused("cannot")),
        "q6": report("q6", Refused("no"), Refused("not")),
    }
    stateful_map = {"cases": [], "equal": False, "why": "failed (1): no"}
    shown = render_nexmark({"queries": queries, "stateful_map": stateful_map}).splitlines()
    assert shown[-4].split()[:3] == ["q4", "400,000", "2.5"]
    assert "Spark: cannot" in shown[-4]
    assert "Upriver: no; Spark: not" in shown[-3]
    assert shown[-1] == "stateful maps: failed (1): no"


def test_figures_of_stateful_maps_are_shown_to_a_person() -> None:
    case = {
        "keys": 1_000_000,
        "spark_rows_per_s": 459,
        "why": None,
        "upriver_rows_per_s": {"batch": 600_000},
        "ratio": {"batch": 1_307.2},
        "alone": {"batch": 900_000},
        "equal": True,
    }
    alone = case | {"spark_rows_per_s": None, "ratio": None, "why": "not asked for"}
    first, second = render_stateful_map({"cases": [case, alone]}).splitlines()[-2:]
    assert first.split() == ["1,000,000", "batch", "600,000", "459", "1,307.2", "900,000", "True"]
    assert second.split() == ["1,000,000", "batch", "600,000", "900,000", "True", "not", "asked", "for"]
