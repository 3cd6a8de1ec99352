"""Typed names for the numbers that travel through the system; a bare ``int`` would say too little."""

from typing import NewType

Hash64 = NewType("Hash64", int)
"""Where a key is among all keys: its XXH64, without a sign."""

Epoch = NewType("Epoch", int)
"""One committed micro-batch. Dense and totally ordered from 1; 0 means "nothing yet"."""

BEGINNING = Epoch(0)
"""Before the first epoch."""


def preceding(epoch: Epoch, after: Epoch | None) -> Epoch:
    """The epoch on which this one follows: ``after``, if the epoch ends a segment of several, else the one before by
    number (``None``)."""
    return Epoch(epoch - 1) if after is None else after


VnodeId = NewType("VnodeId", int)
"""A virtual node: the top bits of a hash64. ``0 <= vnode < vnodes``."""

WorkerId = NewType("WorkerId", int)
"""A worker's place in the cluster. It outlives the process that fills it."""

Incarnation = NewType("Incarnation", int)
"""The n-th process to fill a worker's place; the coordinator counts them over all workers."""

FlowId = NewType("FlowId", int)
"""One flow of an app: a view with all regions that it needs. Never used twice in the life of a driver."""

MapVersion = NewType("MapVersion", int)
"""How often the vnode map has changed."""

Term = NewType("Term", int)
"""The n-th driver to own a lake root."""

FeedId = NewType("FeedId", int)
"""Names the stream of a flow's state from one worker to one follower; never used twice in the life of a flow."""

SnapshotId = NewType("SnapshotId", int)
"""One consistent copy of a view, which the workers hold for a scan."""

Channel = NewType("Channel", str)
"""A way that rows take into a worker. A lake edge's is ``"<table>/<index>"``."""
