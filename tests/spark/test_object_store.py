"""Apps on roots in S3, whose tables are loads: Spark needs no connector then. And roots that are refused at once."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_kit import KEY, SECRET, S3Server

from upriver.app import App
from upriver.errors import DeclarationError
from upriver.lake.address import Root
from upriver.lake.lake import Lake

pytestmark = pytest.mark.spark

EXECUTIONS_SHOWN = 12


@pytest.fixture
def root(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A root whose settings are in the environment of this process, and not of Spark's executors."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return s3.new_root()


def app_on(spark: Any, root: str, rows: Any, workers: int) -> App:
    app = App(spark, root, workers=workers)
    app.table("events", rows, key="k")
    app.view("sums", "SELECT k, count(*) AS n FROM events GROUP BY k", key="k", partial=False)
    app.view("partly", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k")
    return app


def shown_by_spark(spark: Any, rows: Any) -> str:
    """A DataFrame's plans in all forms, and what Spark's UI and event log have of the last executions."""
    rows.write.format("noop").mode("overwrite").save()
    query = rows._jdf.queryExecution()
    plans = [spark._jvm.PythonSQLUtils.explainString(query, mode) for mode in ("extended", "formatted", "cost")]
    plans += [plan.toJSON() for plan in (query.analyzed(), query.optimizedPlan(), query.executedPlan())]
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    for number in range(max(0, executions.size() - EXECUTIONS_SHOWN), executions.size()):
        each = executions.apply(number)
        plans += [each.description(), each.details(), each.physicalPlanDescription(), str(each.modifiedConfigs())]
    return "".join(plans)


def test_an_app_lives_in_s3(spark: Any, root: Root, capfd: pytest.CaptureFixture[str]) -> None:
    rows = spark.range(100).selectExpr("id % 10 AS k", "id AS v").localCheckpoint()
    with app_on(spark, root, rows, 1).start(wait=True) as app:
        app.rescale(2).wait(60)
        assert app.lookup("sums", [3]).column("n").to_pylist() == [10]
        assert app.lookup("partly", [3]).column("total").to_pylist() == [sum(range(3, 100, 10))]
        assert app.checkpoint() == 1
        assert app.read("partly").count() == 10
        shown = "".join(shown_by_spark(spark, app.read(name)) for name in ("sums", "partly", "events"))
        assert "BatchScan upriver" in shown
        assert [secret for secret in (KEY, SECRET, app.token) if secret in shown] == []
    with app_on(spark, root.replace("s3://", "s3a://"), rows, 2).start(wait=True) as app:
        assert app.lookup("sums", [3]).column("n").to_pylist() == [10]
        assert app.status()["checkpoint"]["epoch"] == 1
    lake = Lake(root)
    files = lake.files.tree("")
    assert not [path for path in files if path.startswith("unfinished")]
    written = b"".join(lake.files.read(path).to_pybytes() for path in files)
    assert SECRET.encode() not in written
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err


def test_a_stream_without_sparks_connector_is_refused(spark: Any, root: Root) -> None:
    app = App(spark, root)
    with pytest.raises(
        DeclarationError, match=r"cannot open s3a://\. Start Spark with org\.apache\.hadoop:hadoop-aws:3\."
    ):
        app.table("ticks", spark.readStream.format("rate").load(), key="value")


def test_foreign_files_are_refused_when_the_app_is_made(spark: Any, root: Root, tmp_path: Path) -> None:
    Lake(root).files.create("notes.txt", b"mine")
    (tmp_path / "notes.txt").write_text("mine")
    for foreign in (str(root), str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(DeclarationError, match=r"there are files already, and none of an app: notes\.txt"):
            App(spark, foreign)


def test_other_uris_are_refused_when_the_app_is_made(spark: Any) -> None:
    with pytest.raises(DeclarationError, match="dbfs: is known to Databricks only"):
        App(spark, "dbfs:/lake")


def test_what_spark_writes_lies_in_a_private_directory(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    pq.write_table(pa.table({"k": [1, 2], "v": [3, 4]}), tmp_path / "events" / "0.parquet")
    rows = spark.readStream.schema("k long, v long").parquet(str(tmp_path / "events"))
    with app_on(spark, str(tmp_path / "lake"), rows, 1).start() as app:
        assert app.wait(60) == 1
    runs = list((tmp_path / "lake" / "tables").rglob("*.arrow"))
    assert {path.stat().st_mode & 0o777 for path in runs} == {0o600}
    assert (tmp_path / "lake" / "ingest").stat().st_mode & 0o777 == 0o700
