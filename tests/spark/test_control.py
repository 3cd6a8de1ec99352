"""An app that is stopped and started again has the workers, the vnode map, and the history that it had."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rows_kit import differing_rows

from upriver.app import App
from upriver.lake.control import find_control
from upriver.lake.lake import Lake

pytestmark = pytest.mark.spark

TOTALS = "SELECT k, count(*) AS n FROM events GROUP BY k"
SQUARES = "SELECT k, id * id AS square FROM events"
WAIT_S = 120.0


def declared(spark: Any, root: Path, workers: int | None, views: Mapping[str, str]) -> App:
    app = App(spark, root, workers=workers, vnodes=16, ingest_tasks=1)
    app.table("events", spark.range(1_000).selectExpr("id", "id % 37 AS k"), key="k")
    for name, sql in views.items():
        app.view(name, sql, key="k", partial=False)
    return app


def owners(root: Path) -> tuple[int, ...]:
    """The recorded owners of the vnodes."""
    found = find_control(Lake(str(root))).record
    assert found is not None
    return tuple(map(int, found.to_begin_with.vnode_map.owners))


def test_a_restart_has_the_workers_the_map_and_the_history_of_before(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    with declared(spark, root, None, {"totals": TOTALS, "squares": SQUARES}) as app:
        app.start(wait=True)
        assert [worker["worker"] for worker in app.status()["workers"]] == [0, 1], "of a new root"
        app.rescale(3).wait(WAIT_S)
        app.rescale(moves={0: 2, 1: 2}).wait(WAIT_S)
        before = app.rescales()
    told = [(entry["term"], entry["strategy"], entry["from"], entry["to"], entry["outcome"]) for entry in before]
    assert told == [(1, "icadd", 2, 3, "finished"), (1, "icadd", 3, 3, "finished")]
    assert all(entry["moved_keys"] > 0 and entry["seconds"] > 0 for entry in before)
    moved = owners(root)
    assert moved[:2] == (2, 2)

    again = declared(spark, root, None, {"totals": f"{TOTALS} HAVING count(*) > 0"})
    assert again.rescales() == before, "also before it runs"
    with again:
        again.start(wait=True)
        status = again.status()
        assert [worker["vnodes"] for worker in status["workers"]] == [moved.count(worker) for worker in range(3)]
        assert (status["unrecorded"], again.rescales()) == (None, before)
        spark.range(1_000).selectExpr("id", "id % 37 AS k").createOrReplaceTempView("events")
        assert differing_rows(again.read("totals"), spark.sql(TOTALS)) == 0
    assert owners(root) == moved
    found = find_control(Lake(str(root))).record
    assert found is not None
    ended = [(view.name, view.ended) for view in (*found.gone, *found.views)]
    assert ended == [("totals", "replaced"), ("squares", "dropped"), ("totals", None)]

    with declared(spark, root, 2, {"totals": TOTALS}) as fewer:
        fewer.start(wait=True)
        assert [worker["vnodes"] for worker in fewer.status()["workers"]] == [8, 8]
    stayed = [vnode for vnode, owner in enumerate(moved) if owner < 2]
    assert all(owners(root)[vnode] == moved[vnode] for vnode in stayed), "only the leaver's vnodes have moved"
