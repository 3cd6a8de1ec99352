"""Which keys have changed for followers while rows wait for their stage."""

import numpy as np

from upriver.ids import FeedId, VnodeId
from upriver.state.checkpoint import PASS_KEYS_MIN
from upriver.state.vectors import NO_KEYS
from upriver.worker.change_logs import ChangeLogs

FEED = FeedId(1)
MANY = np.arange(PASS_KEYS_MIN, dtype=np.uint64)


def test_no_pass_over_changed_keys_begins_while_their_rows_wait() -> None:
    """They were noted when the rows came, and change when these are settled."""
    logs = ChangeLogs()
    logs.follow(FEED, [VnodeId(0)], 1, NO_KEYS)
    logs.note(MANY)
    assert not logs.is_to_feed(FEED, waiting=1)
    assert logs.next_to_feed(FEED, 10, waiting=1) is None
    assert logs.is_to_feed(FEED, waiting=0)


def test_a_pass_that_has_begun_goes_on_and_what_rows_change_meanwhile_is_fed_again() -> None:
    logs = ChangeLogs()
    logs.follow(FEED, [VnodeId(0)], 1, MANY)
    logs.note(MANY[:3])
    copied = logs.next_to_feed(FEED, len(MANY), waiting=3)
    assert copied is not None
    assert copied.tolist() == MANY.tolist()
    assert not logs.is_to_feed(FEED, waiting=3)
    assert np.unique(logs.rest_to_feed(FEED)).tolist() == MANY[:3].tolist()
