"""Where the batches of a stream of changes begin and end."""

from datetime import timedelta
from typing import Any

import pytest

from upriver.errors import DeclarationError
from upriver.ids import Epoch
from upriver.spark.changes import (
    ChangesOffset,
    ChangesStart,
    begin_of,
    means_changes,
    next_version,
    starting_version,
)
from upriver.spark.compaction import CompactionSettings

WHOLE = ChangesStart(Epoch(5), with_base=True)
BEHIND = ChangesStart(Epoch(5), with_base=False)


def test_offsets_survive_json() -> None:
    for offset in (ChangesOffset(None, WHOLE), ChangesOffset(Epoch(9), BEHIND)):
        assert ChangesOffset.from_json(offset.to_json()) == offset


def test_a_batch_begins_where_the_one_before_ended() -> None:
    start, end = ChangesOffset(Epoch(7), WHOLE), ChangesOffset(Epoch(9), WHOLE)
    assert begin_of(start, end) == ChangesStart(Epoch(7), with_base=False)
    assert begin_of(ChangesOffset(None, WHOLE), end) == WHOLE


def test_the_first_batch_begins_again_where_it_began() -> None:
    """Spark asks for the first offset anew when the first batch did not end. By then, "now" is later."""
    later = ChangesOffset(None, ChangesStart(Epoch(8), with_base=False))
    assert begin_of(later, ChangesOffset(Epoch(7), BEHIND)) == BEHIND


def test_a_limit_counts_versions_and_the_base_as_one() -> None:
    assert next_version(BEHIND, Epoch(20), None) == 20
    assert next_version(BEHIND, Epoch(20), 3) == 8
    assert next_version(WHOLE, Epoch(20), 1) == 5
    assert next_version(WHOLE, Epoch(6), 9) == 6
    assert next_version(BEHIND, Epoch(3), 9) == 5  # never back


def test_options_say_whether_changes_are_meant() -> None:
    assert means_changes({"view": "v", "Changes": "TRUE"})
    assert means_changes({"view": "v", "root": "/lake"})
    assert not means_changes({"view": "v", "address": "a:1", "token": "t", "changes": "false"})


def test_since_is_a_version_or_one_of_two_words() -> None:
    assert [starting_version(since) for since in (None, "now", 7)] == ["earliest", "now", "7"]
    bad: list[Any] = ["yesterday", 1.5, True]
    for since in bad:
        with pytest.raises(DeclarationError, match="since="):
            starting_version(since)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7 days", 604_800.0), (timedelta(minutes=2), 120.0), ("1 hour 30 minutes", 5_400.0), (None, None)],
)
def test_the_retention_of_changes_is_an_interval(given: object, seconds: float | None) -> None:
    assert CompactionSettings.of(True, 1.0, given).changes_retention_s == seconds


@pytest.mark.parametrize("given", ["soon", 7, "0 days", "1 month", timedelta(0)])
def test_another_retention_is_refused(given: object) -> None:
    with pytest.raises(DeclarationError, match="changes_retention="):
        CompactionSettings.of(True, 1.0, given)
