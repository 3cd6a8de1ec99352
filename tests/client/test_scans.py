"""Scans by a client: a partial view's rows are computed from the lake in the client's process."""

from pathlib import Path

import pyarrow as pa
import pytest
from client_kit import Cluster
from dataflow_kit import QUERIES, SALES
from rows_kit import rows_of
from scan_kit import WrittenLake

from upriver.errors import DeclarationError
from upriver.lake.scan import ViewScan
from upriver.plan.schemas import schema_to_json

VNODES = 8


def test_a_partial_view_is_computed_from_the_lake(tmp_path: Path) -> None:
    """Unless it has been declared anew between the two questions about it."""
    plan = QUERIES["other index"].plan("v")
    lake = WrittenLake(tmp_path / "lake", [plan], VNODES)
    sales = [(1, "a", 2, 0.5, 0), (2, "a", 2, 0.5, 1), (1, "b", 2, 0.5, 2)]
    for rows in (sales, sales[:1]):
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SALES.schema, strict=True)]
        lake.publish("sales", pa.record_batch(arrays, schema=SALES.schema))
    lake.release()
    told = ViewScan(lake.root, plan, (SALES,)).to_json()
    source = {"lake": told, "schema": schema_to_json(plan.schema), "key": list(plan.key), "vnodes": VNODES}
    scanned = {"epoch": 1, "snapshot": 0, "addresses": [], "lake": told}
    cluster = Cluster(1, {"source": lambda _: source, "scan": lambda _: scanned})
    with cluster.connect() as client:
        scan = client.scan("v")
        assert (scan.epoch, scan.tables, scan.schema) == (1, ("sales",), plan.schema)
        assert sorted(rows_of(pa.Table.from_batches(scan, scan.schema))) == [("a", 2), ("b", 1)]
        scanned["lake"] = None
        with pytest.raises(DeclarationError, match="'v' has just been declared anew"):
            client.scan("v")
    cluster.stop()
