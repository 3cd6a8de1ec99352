"""The command line.

``upriver lake``: what a root has, and compaction and collection of a root whose app is stopped.
"""

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cli_page import PAGE, page

import upriver
from simulator.__main__ import main as simulator
from upriver.app import App
from upriver.cli import main
from upriver.client.client import TOKEN_VARIABLE, connect
from upriver.client.rescale import STRATEGIES
from upriver.errors import UnknownView, UnsupportedSql, UserError
from upriver.ids import Epoch, Term, VnodeId
from upriver.lake.checkpoints import newest, publish
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, epoch_path, term_path
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.checkpoint import Checkpoint, CheckpointPlace
from upriver.state.runs import describe_run, encode_run, run_schema
from upriver.text import ROWS_SHOWN_MAX, print_json, progress_bar, render_table


@pytest.fixture(scope="module")
def running(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    rows = spark.createDataFrame(
        [("JFK", 1, 10), ("JFK", 1, 20), ("LAX", 2, 5), (None, 3, 1)], "o string, n int, v int"
    )
    with App(spark, str(tmp_path_factory.mktemp("cli")), workers=1) as app:
        app.table("flights", rows, key="o")
        app.view("sums", "SELECT o, sum(v) AS total FROM flights GROUP BY o", key="o", partial=False)
        app.view("partials", "SELECT o, max(v) AS most FROM flights GROUP BY o", key="o")
        app.view("pairs", "SELECT o, n, count(*) AS c FROM flights GROUP BY o, n", key=["o", "n"], partial=False)
        app.start()
        app.wait()
        yield app


def settled(status: dict[str, Any]) -> dict[str, Any]:
    """A status without what changes with time alone."""
    varying = ("epoch_age_s", "rows_per_s", "state_for_s")
    tables = {name: {k: v for k, v in told.items() if k not in varying} for name, told in status["tables"].items()}
    return {**status, "tables": tables}


def run(app: App, *arguments: str) -> int:
    command, *rest = arguments
    return main([command, "--address", app.address, "--token", app.token, *rest])


@pytest.mark.spark
def test_lookup_prints_a_table(running: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, "lookup", "sums", "LAX", "JFK") == 0
    assert capsys.readouterr().out.splitlines() == ["o    total", "---  -----", "LAX      5", "JFK     30"]


@pytest.mark.spark
def test_lookup_takes_json_for_nulls_and_for_several_columns(running: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, "lookup", "sums", "[null]", "--json") == 0
    assert run(running, "lookup", "pairs", '["JFK", 1]', "--json") == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(answer["view"], answer["rows"]) for answer in printed] == [
        ("sums", [{"o": None, "total": 1}]),
        ("pairs", [{"o": "JFK", "n": 1, "c": 2}]),
    ]
    assert {answer["metadata"]["upriver.sources"] for answer in printed} == {"running"}


@pytest.mark.spark
def test_lookup_passes_on_how_fresh_an_answer_must_be(running: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, "lookup", "sums", "LAX", "--max-age", "60", "--allow-warming") == 0
    assert run(running, "lookup", "sums", "LAX", "--max-age", "0") == 1
    assert "StaleView: view 'sums': an answer is" in capsys.readouterr().err


@pytest.mark.spark
def test_query_looks_keys_up_or_scans_full_and_partial_views(running: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, "query", "SELECT o, total / 2 AS half FROM sums WHERE o IN ('LAX', 'JFK') ORDER BY o") == 0
    assert capsys.readouterr().out.splitlines() == ["o    half", "---  ----", "JFK  15.0", "LAX   2.5"]
    assert run(running, "query", "SELECT count(*) AS n, sum(total) AS t FROM sums", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [{"n": 3, "t": "36"}]}
    assert run(running, "query", "SELECT * FROM partials ORDER BY o NULLS FIRST", "--csv") == 0
    assert capsys.readouterr().out.splitlines() == ['"o","most"', ",1", '"JFK",20', '"LAX",5']
    assert run(running, "query", "SELECT * FROM sums WHERE o = :o", "-p", "o=JFK", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [{"o": "JFK", "total": 30}]}


@pytest.mark.spark
def test_queries_from_python(running: App) -> None:
    assert running.query("SELECT total FROM sums WHERE o = ?", ["JFK"]).to_pylist() == [{"total": 30}]
    with connect(running.address, running.token) as client:
        answer = client.query("SELECT o, most FROM partials WHERE o IN (:names) ORDER BY o", {"names": ["LAX", "JFK"]})
        assert answer.to_pydict() == {"o": ["JFK", "LAX"], "most": [20, 5]}
        assert client.query("SELECT o FROM sums WHERE o = 'no'").to_pylist() == []
        with pytest.raises(UnknownView, match="no view 'nothing'; there are: pairs, partials, sums"):
            client.query("SELECT * FROM nothing")
        with pytest.raises(UnsupportedSql, match="views are only read here"):
            client.query("DELETE FROM sums")


@pytest.mark.spark
def test_a_root_says_where_its_app_answers(running: App, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = str(running.root)
    assert main(["lookup", "--root", root, "--token", running.token, "sums", "LAX"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "LAX      5"
    with connect(token=running.token, root=root) as client:
        assert client.query("SELECT count(*) AS n FROM sums").to_pylist() == [{"n": 3}]
    with pytest.raises(UserError, match="no app has recorded an address there"):
        connect(token="any", root=tmp_path)
    with pytest.raises(UserError, match="give address= or root=, not both"):
        connect("127.0.0.1:1", "any", root=root)
    assert not [file for file in Path(root).rglob("*.json") if running.token in file.read_text()]


AWKWARD = "SELECT CAST('NaN' AS DOUBLE) AS x, X'00FF' AS b, '' AS t, NULL AS n, 1.50 AS p, 9007199254740993 AS l"


@pytest.mark.spark
def test_rows_are_printed_as_http_has_them(running: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, "query", AWKWARD, "--json") == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    values = {"x": "NaN", "b": "X'00FF'", "t": "", "n": None, "p": "1.50", "l": "9007199254740993"}
    assert told == {"rows": [values]}
    assert run(running, "query", AWKWARD, "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1] == """NaN,"X'00FF'","",,1.50,9007199254740993"""


def test_json_is_utf8_on_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, "ascii"))
    print("first")
    print_json({"ä": float("inf")})
    assert content.getvalue() == 'first\n{"ä":"Infinity"}\n'.encode()


@pytest.mark.spark
def test_status_and_explain_as_text_and_as_json(
    running: App, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, running.token)
    assert main(["status", "--address", running.address]) == 0
    text = capsys.readouterr().out
    assert "epoch 1 of 1 published" in text
    (flights,) = (line.split() for line in text.splitlines() if line.startswith("flights "))
    assert flights[:3] == ["flights", "finished", "1"]
    assert flights[-2] == "4"
    assert "sums" in text
    assert main(["status", "--address", running.address, "--json"]) == 0
    assert settled(json.loads(capsys.readouterr().out)) == settled(running.status())
    assert main(["explain", "--address", running.address, "pairs"]) == 0
    assert "keyed by (o, n)" in capsys.readouterr().out
    assert main(["explain", "--address", running.address, "pairs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == ["o", "n"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lookup", "nothing", "JFK"], "UnknownView: no view 'nothing'"),
        (["query", "SELECT * FROM nothing"], "UnknownView: no view 'nothing'; there are: pairs, partials, sums"),
        (["query", "DELETE FROM sums"], "UnsupportedSql: DELETE: views are only read here"),
        (["query", "SELECT 1", "--csv", "--json"], "UserError: give --json or --csv, not both"),
        (["lookup", "pairs", "JFK"], "KeyTypeError"),
        (["lookup", "pairs", '["JFK"]'], "KeyTypeError"),
        (
            ["lookup", "pairs", '["JFK", "one"]'],
            "KeyTypeError: view 'pairs': 'one' is no value of key column 'n', which is int32",
        ),
    ],
)
def test_wrong_questions_end_with_status_2(
    running: App, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(running, *arguments) == 2
    assert said in capsys.readouterr().err


def test_without_a_token_nothing_is_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert main(["status", "--address", "127.0.0.1:1"]) == 2
    assert TOKEN_VARIABLE in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lookup", "v", "1", "--max-age", "-1"], "--max-age=-1.0: give a number of seconds, 0 or more"),
        (["lookup", "v", "1", "--max-age", "nan"], "--max-age=nan: give a number of seconds, 0 or more"),
        (["rescale", "2", "--timeout", "-1"], "--timeout=-1.0: give a number of seconds, 0 or more"),
        (["status", "--watch", "--interval", "0"], "--interval 0: give seconds, more than 0"),
    ],
)
def test_wrong_numbers_are_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([*arguments, "--address", "127.0.0.1:1", "--token", "secret"]) == 2
    assert said in capsys.readouterr().err


def test_an_app_that_is_not_there_ends_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--address", "127.0.0.1:1", "--token", "secret"]) == 1
    error = capsys.readouterr().err
    assert "cannot be reached" in error
    assert "secret" not in error


def test_simulate_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator(["--seed", "3", "--runs", "2", "--steps", "50", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["runs"], result["violations"]) == (2, 0)


def simulated(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> dict[str, Any]:
    assert simulator([*arguments, "--json"]) == status
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_simulate_finds_every_fault_of_icadd_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(capsys, 1, "--protocol", "icadd", "--rules", "published")
    names = ["R1", "R2", "R3", "R4", "R5", "R7", "R8", "R10", "R11", "R14"]
    assert [fault["name"] for fault in result["faults"]] == names
    assert (result["found"], result["missing"]) == (len(names), [])
    for fault in result["faults"]:
        assert fault["trace"][-1].startswith(f"{fault['violation']}: ")
        assert len(fault["trace"]) == fault["steps"] + 1
        assert fault["claim"]


def test_simulate_tells_the_faults_to_a_person_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator(["--protocol", "icadd", "--rules", "published"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("R1: ")
    assert lines[1] == "    1  0 hears of the rescale [Interrogation]"
    assert lines[-1] == "10 of 10 known faults of icadd as published were found."


def test_simulate_plays_random_rescales_by_the_rules_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--protocol", "icadd", "--rules", "fixed", "--seed", "5", "--runs", "20", "--workers", "4"]
    result = simulated(capsys, 0, *asked)
    assert (result["protocol"], result["rules"], result["runs"], result["violations"]) == ("icadd", "fixed", 20, 0)
    assert result["counters"]["workers before 4"] == 20
    assert simulated(capsys, 0, *asked) == result


def test_simulate_goes_again_from_a_seed_to_the_same_violation(capsys: pytest.CaptureFixture[str]) -> None:
    published = ["--protocol", "icadd", "--rules", "published"]
    found = simulated(capsys, 1, *published, "--seed", "0", "--runs", "10")
    again = simulated(capsys, 1, *published, "--seed", str(found["seed"]))
    assert found["violations"] > 5
    assert (again["runs"], again["trace"]) == (1, found["trace"])
    assert simulator([*published, "--seed", "0", "--runs", "10"]) == 1
    replay = capsys.readouterr().out.splitlines()[-1]
    assert replay == f"python -m simulator --protocol icadd --rules published --seed {found['seed']}"


def test_simulate_does_the_same_for_redistribute(capsys: pytest.CaptureFixture[str]) -> None:
    searched = simulated(capsys, 1, "--protocol", "redistribute", "--rules", "published")
    assert (searched["protocol"], searched["missing"]) == ("redistribute", [])
    assert {fault["name"] for fault in searched["faults"]} >= {"P1", "P2", "P3", "P4", "P5"}
    fixed = simulated(capsys, 0, "--protocol", "redistribute", "--runs", "10")
    assert (fixed["protocol"], fixed["rules"], fixed["runs"], fixed["violations"]) == ("redistribute", "fixed", 10, 0)
    assert simulated(capsys, 1, "--protocol", "redistribute", "--rules", "published", "--runs", "5")["violations"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rules", "fixed"], "--rules goes with --protocol icadd or redistribute"),
        (["--protocol", "redistribute", "--workers", "0"], "--workers of redistribute is 1 to 5, not 0"),
        (["--protocol", "icadd", "--steps", "3"], "--steps is for the cluster"),
        (["--protocol", "icadd", "--workers", "6"], "--workers of icadd is 1 to 5, not 6"),
        (["--protocol", "icadd", "--runs", "0"], "--runs is 1 or more, not 0"),
    ],
)
def test_simulate_refuses_what_does_not_go_together(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert simulator([*arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_tables_are_cut_and_say_so() -> None:
    table = pa.table({"n": pa.array(range(ROWS_SHOWN_MAX + 2)), "x": pa.array([0.5] * (ROWS_SHOWN_MAX + 2))})
    lines = render_table(table).splitlines()
    assert lines[0].split() == ["n", "x"]
    assert lines[2].split() == ["0", "0.5"]
    assert lines[-1] == "(2 more rows)"
    assert len(lines) == ROWS_SHOWN_MAX + 3


def test_a_table_s_numbers_are_python_s_and_its_letters_are_shown() -> None:
    values = [0.0004, 1e-300, -0.0, math.nan, math.inf, 1234567.125]
    lines = render_table(pa.table({"x": values})).splitlines()
    assert [line.strip() for line in lines[2:]] == [repr(value) for value in values]
    texts = ["a\nb", "\x1b[31mred", "tab\there", "\u202egnp", "caf\u00e9"]
    lines = render_table(pa.table({"t\n": texts, "list": [[text] for text in texts]})).splitlines()
    assert len(lines) == 2 + len(texts)
    assert lines[0].split() == ["t\\n", "list"]
    assert [line.split()[0] for line in lines[2:]] == ["a\\nb", "\\x1b[31mred", "tab\\there", "\\u202egnp", "caf\u00e9"]
    assert all(line.isprintable() for line in lines)


def run_python(*arguments: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def test_the_page_of_the_command_line_is_made_from_its_parsers() -> None:
    assert PAGE.read_text() == page(), "run: python tests/support/cli_page.py"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], *([name, "--help"] for name in ("status", "lookup", "explain", "rescale"))]
)
def test_help_and_version_load_neither_arrow_nor_spark(arguments: list[str]) -> None:
    """Which is what takes seconds."""
    program = (
        "import atexit, sys; from upriver.cli import main\n"
        "atexit.register(lambda: print('loaded:', [name for name in sys.modules if name.split('.')[0] in "
        "('pyarrow', 'numpy', 'duckdb', 'sqlglot', 'pyspark', 'pandas')]))\n"
        "main(sys.argv[1:])"
    )
    said = run_python("-c", program, *arguments)
    assert said.splitlines()[-1] == "loaded: []"
    assert "upriver" in said


def test_the_version_is_told() -> None:
    assert run_python("-m", "upriver", "--version") == f"upriver {upriver.__version__}\n"
    assert upriver.__version__ == version("upriver")
    assert {"App", "connect", "__version__"} <= set(dir(upriver))


def test_the_help_names_each_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rescale", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert [strategy for strategy in STRATEGIES if strategy not in said] == []


def test_a_bar_is_full_at_the_end() -> None:
    assert progress_bar(0, 4).count("#") == 0
    assert progress_bar(2, 4).endswith("] 2/4")
    assert "." not in progress_bar(4, 4)
    assert progress_bar(0, 0).endswith("0/0")


VNODES, EPOCHS = 4, 40
TABLE = TableSpec("events", pa.schema([("k", pa.uint64()), ("n", pa.int64())]), ("k",))
RECORD = LakeRecord(VNODES, (TABLE,), {"events": (("k",),)})
CHANNEL = lake_channel("events", ("k",))
ALL = frozenset(map(VnodeId, range(VNODES)))
KEYS = np.array([1, 2**62, 2**63, 2**64 - 1], np.uint64)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A stopped app's root: 40 epochs of four rows each."""
    lake = OwnedLake(str(tmp_path / "lake"), RECORD, {"set_aside": ["events"], "workers": 3})
    for epoch in range(1, EPOCHS + 1):
        rows = pa.table([KEYS, KEYS, [epoch] * len(KEYS)], schema=run_schema(TABLE.schema))
        encoded, path = encode_run(rows), f"tables/{CHANNEL}/{epoch:012d}-x-0.arrow"
        lake.files.create(path, encoded)
        runs = {CHANNEL: (describe_run(path, encoded, KEYS, VNODES),)}
        lake.publish(Manifest(epoch=Epoch(epoch), term=lake.term, table="events", query="q", batch=epoch, runs=runs))
    lake.release()
    return lake.root


@pytest.fixture
def in_use(root: str) -> Iterator[OwnedLake]:
    lake = OwnedLake(root, RECORD, {})
    yield lake
    lake.release()


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["lake", *arguments, "--json"]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def rows_of(lake: Lake) -> list[tuple[int, int]]:
    """All rows, as a view that is new would read them."""
    found: list[tuple[int, int]] = []
    for span in lake.spans(lake.last_epoch()):
        for batch in lake.read(lake.epochs(span), CHANNEL, ALL, TABLE):
            found += zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True)
    return sorted(found)


PLACE = CheckpointPlace("0" * 32, ())


def checkpoint_at(lake: OwnedLake, epoch: int) -> None:
    publish(lake, PLACE, Checkpoint(epoch=Epoch(epoch), base=None, regions={}, files=()))


@pytest.mark.parametrize("action", ["compact", "collect"])
def test_an_action_without_a_root_is_no_root(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", action]) == 2
    said = f"upriver: UserError: upriver lake {action} ROOT: the root is missing. One of that name is ./{action}\n"
    assert capsys.readouterr() == ("", said)


def test_a_report_names_runs_by_index_and_level(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = told(capsys, root)
    assert (before["epochs"], before["spans"], before["manifests"], before["segments"]) == (40, 40, 40, 0)
    assert before["due"] == 2
    (level,) = before["indexes"][CHANNEL].items()
    assert level[0] == "0"
    assert (level[1]["spans"], level[1]["runs"], level[1]["rows"]) == (40, 40, 160)
    assert before["removable"] == {"epochs": 0, "runs": 0, "bytes": 0}


def test_compaction_and_collection_leave_all_rows(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(Lake(root))
    assert told(capsys, "compact", root) == {"horizon": 40, "made": 2, "spans": 10}
    report = told(capsys, root, "--grace", "0")
    assert (report["manifests"], report["segments"], report["due"]) == (40, 2, 0)
    assert {level: tier["runs"] for level, tier in report["indexes"][CHANNEL].items()} == {"0": 8, "1": 2}
    assert told(capsys, "collect", root)["removed"]["epochs"] == 0  # the usual grace is an hour
    assert told(capsys, "collect", root, "--grace", "0")["removed"] == report["removable"]
    lake = Lake(root)
    assert sorted(lake.numbers("epochs")) == list(range(33, 41))
    assert len(lake.files.names(f"tables/{CHANNEL}")) == 10
    assert rows_of(lake) == before


def test_collection_removes_runs_that_nothing_names(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    Lake(root).files.create(f"tables/{CHANNEL}/litter.arrow", b"of a batch that was never published")
    assert told(capsys, "collect", root)["removed"]["runs"] == 1
    assert len(Lake(root).files.names(f"tables/{CHANNEL}")) == EPOCHS


def test_compact_names_a_damaged_run_and_compacts_all_other_epochs(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, name = rows_of(Lake(root)), Lake(root).manifest(Epoch(20)).runs[CHANNEL][0].path
    content = Path(root, name).read_bytes()
    Path(root, name).write_bytes(content[: len(content) // 2])
    assert main(["lake", "compact", root, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"horizon": 40, "made": 1, "spans": 25}
    assert f"epochs 17 to 32 stay as they are: {name}" in printed.err
    Path(root, name).write_bytes(content)
    assert told(capsys, "compact", root) == {"horizon": 40, "made": 1, "spans": 10}
    assert rows_of(Lake(root)) == before


def test_a_damaged_segment_is_made_again_from_its_epochs(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, segment = rows_of(Lake(root)), Path(root, "segments/000000000032-000000000017.json")
    told(capsys, "compact", root)
    segment.write_bytes(b"")
    assert main(["lake", root]) == 1
    error = capsys.readouterr().err
    assert str(segment) in error
    assert "the next start of the app" in error
    assert told(capsys, "compact", root)["made"] == 1
    told(capsys, "collect", root, "--grace", "0")
    assert rows_of(Lake(root)) == before


def test_no_segment_contains_the_end_of_the_newest_checkpoint(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    owned = OwnedLake(root, RECORD, {})
    checkpoint_at(owned, 5)
    checkpoint_at(owned, 20)
    owned.release()
    assert told(capsys, "compact", root) == {"horizon": 20, "made": 1, "spans": 25}
    told(capsys, "collect", root, "--grace", "0")
    assert Lake(root).ends_a_span(Epoch(20))
    assert newest(Lake(root), PLACE) == 20
    assert newest(Lake(root), PLACE, before=Epoch(20)) is None  # checkpoints.not_within_a_segment


def test_the_next_driver_finds_what_the_last_one_recorded(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "compact", root)
    lake = Lake(root)
    facts = lake.read_record(term_path(Term(lake.last_number("control"))))
    assert (lake.sets_aside(), facts["workers"]) == (frozenset({"events"}), 3)
    assert lake.files.names("schemas") == []


def test_a_root_in_use_is_refused(in_use: OwnedLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "compact", in_use.root]) == 1
    error = capsys.readouterr().err
    assert "is in use by process" in error
    assert "a running app compacts and collects by itself" in error
    assert told(capsys, in_use.root)["spans"] == EPOCHS  # a report needs no lock
    in_use.check_owner()


def test_lost_manifests_are_found_before_anything_is_removed(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(root)
    lake.files.remove(epoch_path(Epoch(40)))
    lake.files.create("ingest/events/commits/40", b"")
    assert main(["lake", "collect", root, "--grace", "0"]) == 1
    assert "the last manifests are gone" in capsys.readouterr().err
    assert len(lake.files.names(f"tables/{CHANNEL}")) == EPOCHS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{root}/none"], "there is no app's lake"),
        (["compact", "{root}/none"], "there is no app's lake"),
        (["compact", "{root}", "--grace", "1"], "--grace goes without compact"),
        (["collect", "{root}", "--grace", "-1"], "--grace=-1.0: give a number of seconds, 0 or more"),
        (["collect", "s3://bucket/lake"], "stop it, and give --stopped"),
    ],
)
def test_wrong_requests_end_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["lake", *(argument.format(root=tmp_path) for argument in arguments)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_person_gets_tables(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([root], ["compact", root], ["collect", root]):
        assert main(["lake", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{root}: 40 epochs in 40 spans (40 manifests, 0 segments)"
    assert lines[2].split() == ["index", "level", "spans", "runs", "rows", "size"]
    assert lines[4].split()[:5] == ["events/k", "0", "40", "40", "160"]
    assert lines[-2:] == [
        "made 2 segments up to epoch 40: 10 spans",
        "removed 0 manifests and segments, 0 runs (0 B of those named)",
    ]
