"""The fake lake: what a worker reads is its share, whole and in order, however it is cut."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from simulator.lake import FakeLake
from simulator.scenarios import compiled_views
from simulator.tables import TABLES, RowSource, hashes_of_keys
from upriver.hashing import hash64
from upriver.ids import VnodeId
from upriver.lake.spans import single
from upriver.plan.plan import DataflowPlan, LakeEdge, TableSpec
from upriver.vnodes import vnodes_of

VNODES = 16


def lake_edges(plans: Sequence[DataflowPlan]) -> list[LakeEdge]:
    edges = [entry.edge for plan in plans for region in plan.regions for entry in region.inputs]
    return [edge for edge in dict.fromkeys(edges) if isinstance(edge, LakeEdge)]


@pytest.mark.parametrize("seed", range(20))
def test_slices_put_together_are_the_share_of_the_epoch(seed: int) -> None:
    rng = Random(seed)
    plans, crowd = compiled_views(), RowSource(rng)
    lake = FakeLake(plans, VNODES)
    share = sorted(rng.sample(range(VNODES), rng.randint(1, VNODES)))
    vnodes = [VnodeId(vnode) for vnode in share]
    for table in TABLES:
        rows = crowd.rows(table, 50)
        epoch = lake.publish(table.name, rows)
        for edge in lake_edges(plans):
            if edge.table != table.name:
                assert lake.promised(single(epoch), vnodes, [edge.channel]) == {edge.channel: 0}
                continue
            hashes = hash64([rows.column(column) for column in edge.index])
            order = np.argsort(hashes, kind="stable")
            own = order[np.isin(vnodes_of(hashes[order], VNODES), share)]
            cut = lake.runs(epoch)[edge.channel].slices_of(vnodes, rng, whole_keys=rng.random() < 0.5)
            slices = [slice_ for slice_, _ in cut]
            read = pa.Table.from_batches([slice_.rows for slice_ in slices], schema=rows.schema)
            assert read.to_pylist() == rows.take(pa.array(own)).to_pylist()
            assert np.array_equal(np.concatenate([hashes[:0], *(slice_.hash64 for slice_ in slices)]), hashes[own])
            assert lake.promised(single(epoch), vnodes, [edge.channel]) == {edge.channel: len(own)}


def test_a_slice_ends_between_two_rows_of_a_key_only_if_keys_may_be_cut() -> None:
    rng = Random(0)
    plans = compiled_views()
    lake = FakeLake(plans, VNODES)
    run = lake.runs(lake.publish("trades", RowSource(rng).rows(TABLES[0], 60)))[lake_edges(plans)[0].channel]
    every = [VnodeId(vnode) for vnode in range(VNODES)]
    for whole_keys in (True, False):
        cuts = [run.slices_of(every, rng, whole_keys=whole_keys) for _ in range(20)]
        pairs = [pair for slices in cuts for pair in pairwise(slices)]
        goes_on = [bool(before.hash64[-1] == after.hash64[0]) for (before, _), (after, _) in pairs]
        assert pairs
        assert any(goes_on) != whole_keys
        assert goes_on == [told for (_, told), _ in pairs]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_keys_drawn_have_the_hash_that_the_lake_would_give_them(table: TableSpec) -> None:
    rows = RowSource(Random(3)).rows(table, 100)
    keys = zip(*(rows.column(column).to_pylist() for column in table.key), strict=True)
    found = hash64([rows.column(column) for column in table.key]).tolist()
    assert [hashes_of_keys(table.key)[key] for key in keys] == found
