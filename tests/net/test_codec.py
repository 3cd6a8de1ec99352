"""What the coordinator and workers say to each other of followers comes out as it went in."""

import pytest
from coordinator_kit import vnode_map

from upriver.ids import Epoch, FeedId, VnodeId, WorkerId
from upriver.net import wire
from upriver.net.codec import decode_from_worker, decode_to_worker, encode_message
from upriver.protocol.messages import (
    CaughtUp,
    FeedEnded,
    Follow,
    FromWorker,
    Here,
    Probe,
    Resume,
    TookOver,
    ToWorker,
    Unfollow,
)

MAPS = {"rows": vnode_map(version=3), "rows/0": vnode_map((1, 1, 0, 0), version=3)}
SLICES = (VnodeId(2), VnodeId(0))
ORDERS: list[ToWorker] = [
    Resume(maps=MAPS, reads=SLICES, at=Epoch(7), serve_from=Epoch(8), generation=4),
    Resume(maps={}, reads=(), at=Epoch(0), serve_from=Epoch(0), generation=1),
    Follow(feed=FeedId(5), owner=WorkerId(1), vnodes=SLICES),
    Unfollow(feed=FeedId(5), vnodes=SLICES),
    Probe(probe=9),
]
REPORTS: list[FromWorker] = [
    CaughtUp(feed=FeedId(5), epoch=Epoch(7)),
    FeedEnded(feed=FeedId(5)),
    Here(probe=9),
    TookOver(vnodes=2, keys=1_000, bytes=2**40),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_survives(order: ToWorker) -> None:
    assert decode_to_worker(wire.decode(wire.encode(encode_message(order)))) == order


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_survives(report: FromWorker) -> None:
    assert decode_from_worker(wire.decode(wire.encode(encode_message(report)))) == report
