"""Sessions with room for workers: what Spark has, what is needed, and what is said when it does not fit."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyspark
import pytest

from upriver.errors import DeclarationError, TooFewSlots, UserError
from upriver.spark.session import (
    check_java,
    free_slots,
    heap_mb,
    local_conf,
    local_session,
    memory_bytes,
    pandas_unwarned,
    require_slots,
    shortage,
    slots_ceiling,
)

DYNAMIC = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FILE_CONTEXTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
"""What Spark writes checkpoints with by default."""


def in_a_process_of_its_own(code: str, *arguments: str, **env: str) -> str:
    """Run ``code`` where no Spark session runs yet; what it prints."""
    return ended(code, *arguments, **env).stdout.strip()


def ended(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default", "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | env)
    assert run.returncode == 0, run.stderr
    return run


@pytest.mark.parametrize(
    ("conf", "slots"),
    [
        ({"spark.master": "local-cluster[2,2,1024]"}, 4),
        ({"spark.master": "local-cluster[ 3 , 4 , 1024 ]"}, 12),
        ({"spark.master": "local-cluster[2,5,1024]", "spark.task.cpus": "2"}, 4),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.executor.cores": "4"}, None),
        (DYNAMIC, None),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "5"}, None),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "5", "spark.executor.cores": "3"}, 15),
        (
            DYNAMIC
            | {"spark.dynamicAllocation.maxExecutors": "5", "spark.executor.cores": "3", "spark.task.cpus": "2"},
            5,
        ),
    ],
)
def test_the_ceiling_is_what_the_configuration_allows(conf: dict[str, str], slots: int | None) -> None:
    assert slots_ceiling(conf) == slots


@pytest.mark.parametrize(("gigabytes", "megabytes"), [(1, 1024), (8, 2048), (16, 4096), (512, 8192)])
def test_the_heap_is_a_quarter_of_the_memory_within_bounds(gigabytes: int, megabytes: int) -> None:
    assert heap_mb(gigabytes * 2**30) == megabytes


def test_the_memory_of_this_machine_is_found() -> None:
    assert 2**28 < memory_bytes() < 2**50


def test_a_local_session_has_a_slot_for_all_and_lets_tasks_fail() -> None:
    conf = local_conf(workers=3, ingest_slots=2, heap=2048)
    assert conf["spark.master"] == "local[5,4]"
    assert conf["spark.driver.memory"] == "2048m"
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.python.daemon.module"] == "upriver.spark.daemon"


def test_a_shortage_on_a_local_master_names_the_master_to_use() -> None:
    text = shortage("local[3]", slots=3, workers=2, ingest=2)
    assert text.startswith("4 task slots are needed and Spark (local[3]) has 3: ")
    assert "local[4,4] or more" in text
    assert "no more than 1 workers" in text


def test_a_shortage_on_a_cluster_asks_for_executors() -> None:
    text = shortage("spark://host:7077", slots=1, workers=2, ingest=1)
    assert "more executors" in text
    assert "or ask for" not in text


@pytest.mark.parametrize("sizes", [{"workers": 0}, {"workers": "2"}, {"workers": 1, "ingest_slots": -1}])
def test_a_session_without_workers_or_with_something_else_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"^(workers|ingest_slots)=.* (at least 1 is needed|not a str)$"):
        local_session(**sizes)


@pytest.mark.spark
def test_the_slots_of_the_running_session_are_counted(spark: Any) -> None:
    assert free_slots(spark) == 8


@pytest.mark.spark
@pytest.mark.parametrize(("workers", "ingest"), [(7, 1), (6, 2), (1, 1)])
def test_enough_slots_pass(spark: Any, workers: int, ingest: int) -> None:
    require_slots(spark, workers, ingest)
    assert free_slots(spark) >= workers + ingest


@pytest.mark.spark
def test_one_slot_too_few_is_refused(spark: Any) -> None:
    with pytest.raises(TooFewSlots, match=r"9 task slots are needed and Spark \(local\[8\]\) has 8"):
        require_slots(spark, 8)


@pytest.mark.spark
def test_local_session_is_on_loopback_quiet_and_runs_this_python_and_stopping_it_stops_the_app_first(
    tmp_path: Path,
) -> None:
    code = """
import json, sys
from upriver import App
from upriver.errors import TooFewSlots
from upriver.lake.upkeep import taken
from upriver.spark.session import free_slots, local_session
spark = local_session(2, app_name="seven", **{"spark.sql.shuffle.partitions": 7})
names = ["spark.master", "spark.app.name", "spark.driver.host", "spark.sql.session.timeZone",
         "spark.sql.shuffle.partitions"]
print(json.dumps([[spark.conf.get(name) for name in names], free_slots(spark), spark.sparkContext.uiWebUrl,
                  spark.sparkContext.pythonExec == sys.executable]))
try:
    local_session(4)
except TooFewSlots as error:
    print(error)
with App(spark, sys.argv[1], workers=1, vnodes=8) as app:
    app.table("loaded", spark.range(9), key="id")
    app.table("streamed", spark.readStream.format("rate").load(), key="value")
    app.start()
    spark.stop()
with taken(sys.argv[1]):  # it is not locked any more
    app.stop()
"""
    run = ended(code, str(tmp_path))
    made, refusal = run.stdout.splitlines()
    assert made == '[["local[4,4]", "seven", "127.0.0.1", "UTC", "7"], 4, null, true]'
    assert refusal.startswith("6 task slots are needed and Spark (local[4,4]) has 4")
    assert refusal.endswith("was running in this process already, and keeps its slots: stop it first, by spark.stop().")
    assert run.stderr.splitlines()[-1] == "upriver: the Spark session is stopped: the app stops first"
    assert "Warning" not in run.stderr
    assert "\tat " not in run.stderr


COUNTING = """
import sys
from upriver.spark.session import local_session
spark = local_session(1, **{conf})
rows = spark.readStream.schema("v long").json(sys.argv[1] + "/source")
for store in "HDFSBacked", "RocksDB":
    provider = f"org.apache.spark.sql.execution.streaming.state.{store}StateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    stream = rows.groupBy("v").count().writeStream.outputMode("complete").format("memory").queryName(store)
    query = stream.trigger(availableNow=True).option("checkpointLocation", f"{sys.argv[1]}/{store}")
    query.start().awaitTermination()
print(*(sorted(tuple(row) for row in spark.table(store).collect()) for store in ("HDFSBacked", "RocksDB")))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_query_with_state_goes_on_from_a_checkpoint_that_spark_has_written_by_its_own_default(tmp_path: Path) -> None:
    """Of either kind of state store."""
    (tmp_path / "source").mkdir()
    for conf, answer in (({MANAGER: FILE_CONTEXTS}, "[(7, 1)]"), ({}, "[(7, 2)]")):
        (tmp_path / "source" / f"{answer}.json").write_text('{"v": 7}\n')
        code = COUNTING.replace("{conf}", repr(conf))
        assert in_a_process_of_its_own(code, str(tmp_path)) == f"{answer} {answer}"


@pytest.mark.cluster
def test_a_cluster_is_given_time_for_its_executors_to_register() -> None:
    code = """
from upriver.errors import TooFewSlots, UserError
from upriver.spark.session import check_java, free_slots, local_session, require_slots
spark = local_session(3, ingest_slots=1, **{"spark.master": "local-cluster[2,2,1024]"})
print(free_slots(spark))
try:
    require_slots(spark, 4)
except TooFewSlots as error:
    print(error)
spark.stop()
"""

    slots, refusal = in_a_process_of_its_own(code, SPARK_HOME=str(Path(pyspark.__file__).parent)).splitlines()
    assert slots == "4"
    assert refusal.startswith("5 task slots are needed and Spark (local-cluster[2,2,1024]) has 4")


@pytest.mark.parametrize(
    ("java", "said"),
    [
        (None, "Spark needs Java 17 or newer, and '.*/bin/java' cannot be run: install Java, or set JAVA_HOME"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "'.*/bin/java' is version 11: install a newer one"),
        ("echo 'java version \"1.8.0_202\"' >&2", "'.*/bin/java' is version 1: install a newer one"),
        ("echo 'openjdk version \"17.0.9\"' >&2", None),
    ],
)
def test_a_java_that_is_missing_or_too_old_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str | None, said: str | None
) -> None:
    (tmp_path / "bin").mkdir()
    if java is not None:
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if said is None:
        check_java()
    else:
        with pytest.raises(UserError, match=said):
            check_java()


def test_only_pysparks_warning_of_pandas_3_is_dropped() -> None:
    text = "PySpark does not yet fully support pandas >= 3.0.0. Some features may not work correctly."
    with pandas_unwarned():
        warnings.warn(text, FutureWarning, stacklevel=1)
        with pytest.raises(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)
    with pytest.raises(FutureWarning, match="pandas"):
        warnings.warn(text, FutureWarning, stacklevel=1)
