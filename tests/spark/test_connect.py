"""Sessions of Spark Connect read views and streams of changes; and clients subscribe to an app's changes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from upriver import App, connect
from upriver.errors import AccessDenied

pytestmark = [pytest.mark.spark, pytest.mark.long]

PROGRAM = Path(__file__).parents[1] / "support/programs/connect_reader.py"
SESSION_S_MAX = 240.0
NEEDS = ("grpc", "grpc_status", "google.protobuf", "pandas")


def why_not() -> str | None:
    """Why no server of Spark Connect can be started here."""
    for module in NEEDS:
        try:
            is_there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            return f"the package {module} is not installed: pip install 'pyspark[connect]'"
    if not list((Path(pyspark.__file__).parent / "jars").glob("spark-connect_*.jar")):
        return "this PySpark comes without the server of Spark Connect"
    return None


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Any:
    app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=8, reader_token="only-reads")
    app.table("orders", spark.range(12).selectExpr("id", "id % 4 AS customer"), key="id")
    app.view("counts", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", "customer", changes=True)
    with app.start(wait=True):
        yield app


def test_a_reader_subscribes_looks_up_and_operates_nothing(app: App) -> None:
    with connect(app.address, "only-reads") as client:
        rows: dict[int, int] = {}
        subscription = client.subscribe("counts")
        while len(rows) < 4:
            for row in next(subscription).to_pylist():
                if row["_change_type"] in ("insert", "update_postimage"):
                    rows[row["customer"]] = row["n"]
        assert rows == {0: 3, 1: 3, 2: 3, 3: 3}
        assert client.lookup_one("counts", 2) == {"customer": 2, "n": 3}
        assert client.lookup_rows("counts", [2]).sources == "running"
        with pytest.raises(AccessDenied, match="'rescale' needs the operator's token"):
            client.rescale(2)
        assert app.status()["rescale"] is None


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_a_session_of_spark_connect_reads_a_view_and_its_changes(app: App, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), app.address, "only-reads", "counts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SESSION_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert ".connect." in said["session"]
    assert "session of Spark Connect, which is not supported" in said["app"]
    assert said["rows"] == [[customer, 3] for customer in range(4)]
    assert said["some"] == [[2, 3]]
    assert [row for row in said["changes"] if row[2] != "update_preimage"][-1][1] == 3
    assert {row[0] for row in said["changes"]} == set(range(4))
