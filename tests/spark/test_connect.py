"""The demo's reader runs in a session of Spark Connect: views as DataFrames, and a stream of changes. An app does not.

The server runs in the JVM of the tests' session, as Spark's plugin for it has it. So it costs no start of a JVM.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest

from upriver import App, connect
from upriver.demo import VIEWS
from upriver.demo_data import TABLE_KEYS, demo_tables, write_tables
from upriver.errors import AccessDenied, DeclarationError
from upriver.options import Tokens

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/support/programs/connect_reader.py"
EXAMPLE = ROOT / "examples/spark_connect.py"
SESSION_S_MAX = 240.0
NEEDS = ("grpc", "grpc_status", "google.protobuf", "pandas")
READER = "only-reads"


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


with_connect = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


@pytest.fixture(scope="module")
def remote(spark: Any) -> Iterator[str]:
    """The URL of a server of Spark Connect."""
    context, scala = spark.sparkContext._jsc.sc(), spark._jvm.scala
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", "0")
    package = spark._jvm.org.apache.spark.sql.connect.service
    package.SparkConnectService.start(context)
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(scala.Option.empty(), scala.Option.empty())


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    """Those of New Year's Day."""
    every = demo_tables()["flights"]
    return every.filter(pc.and_(pc.equal(every["month"], 1), pc.equal(every["day"], 1)))


@pytest.fixture(scope="module")
def app(spark: Any, flights: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Two of the demo's views, over its flights of a day; the changes of one are kept."""
    folder = tmp_path_factory.mktemp("demo")
    tables = {"flights": flights, "airports": demo_tables()["airports"]}
    made = App(spark, folder / "lake", workers=1, vnodes=8, tokens=Tokens(reader=READER))
    for name, path in write_tables(tables, folder, batches=1).items():
        made.table(name, spark.read.parquet(str(path)), key=TABLE_KEYS[name])
    made.view("aircraft", VIEWS["aircraft"].sql, key="tailnum", partial=True)
    made.view("routes", VIEWS["routes"].sql, key=VIEWS["routes"].key, changes=True)
    with made.start(wait=True, timeout=SESSION_S_MAX):
        yield made


def of_aircraft(flights: pa.Table, tail: str) -> str:
    own = flights.filter(pc.equal(flights["tailnum"], tail))
    return f"{tail} flew {own.num_rows} times, {pc.sum(own['distance'])} miles"


def test_a_reader_subscribes_looks_up_and_operates_nothing(app: App, flights: pa.Table) -> None:
    with connect(app.address, READER) as client:
        counts: dict[tuple[str, str], int] = {}
        subscription = client.subscribe("routes")
        while sum(counts.values()) < flights.num_rows:
            for row in next(subscription).to_pylist():
                if row["_change_type"] in ("insert", "update_postimage"):
                    counts[row["origin"], row["dest"]] = row["flights"]
        assert sum(counts.values()) == flights.num_rows
        assert (client.lookup_one("routes", ("JFK", "LAX")) or {})["flights"] == counts["JFK", "LAX"]
        assert client.lookup_rows("routes", [("JFK", "LAX")]).sources == "running"
        with pytest.raises(AccessDenied, match="'rescale' needs the operator's token"):
            client.rescale(2)
        assert app.status()["rescale"] is None


@with_connect
def test_the_demos_reader_runs_on_spark_connect(app: App, flights: pa.Table, remote: str) -> None:
    known = {"SPARK_REMOTE": remote, "UPRIVER_ADDRESS": app.address, "UPRIVER_TOKEN": READER}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(EXAMPLE)],
        env=os.environ | known,
        capture_output=True,
        text=True,
        timeout=SESSION_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *said, refused = done.stdout.splitlines()
    routes = {(row["origin"], row["dest"]) for row in flights.select(["origin", "dest"]).to_pylist()}
    said = [line for line in said if "update_" not in line]  # there are some if the airports come after the flights
    assert sorted(said) == sorted(
        [
            *(of_aircraft(flights, tail) for tail in ("N14228", "N24211")),
            f"{len(routes)} changes are of the type insert",
        ]
    )
    assert refused.startswith("upriver.App runs where Spark's driver is")
    assert 'spark.read.format("upriver")' in refused


@with_connect
def test_an_app_on_spark_connect_is_refused_in_its_first_line(tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession

    session: Any = object.__new__(SparkSession)  # as it is before it asks its server anything
    with pytest.raises(DeclarationError, match=r'cannot run an app.*master\(.*spark\.read\.format\("upriver"\)'):
        App(session, tmp_path / "lake", workers=1)
