"""The demo, over the flights of a day of snow: every view is equal to Spark's, and every lookup is right."""

import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from upriver.demo import run_demo
from upriver.demo_data import demo_tables


def on_the_eighth_of_february(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.and_(pc.equal(rows["month"], 2), pc.equal(rows["day"], 8)))


@pytest.mark.spark
def test_the_demo_rescales_and_agrees_with_spark(spark: Any, tmp_path: Path) -> None:
    tables, out = demo_tables(), io.StringIO()
    tables |= {name: on_the_eighth_of_february(tables[name]) for name in ("flights", "weather")}
    result = run_demo(spark, tables, tmp_path, batches=4, http="127.0.0.1:0", out=out)
    operator, reader = re.findall(r"(?:log in with |UPRIVER_TOKEN=)([0-9a-f]+)", out.getvalue())
    assert operator != reader
    assert result["matches_spark"], out.getvalue()
    assert result["lookups_wrong"] == 0, out.getvalue()
    assert result["lookups"] > 0
    assert [(report["from"], report["to"]) for report in result["rescales"]] == [(2, 4), (4, 3)]
    assert all(report["outcome"] == "finished" and report["moved_keys"] > 0 for report in result["rescales"])
    assert all(count > 0 for count in result["views"].values())
    assert out.getvalue().count("equal to Spark's, row by row") == len(result["views"])
