"""Where the batches of a stream of changes begin and end."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from changes_kit import AT, WrittenLog, change, stamped

from upriver.errors import ChangesGone, DeclarationError
from upriver.ids import Epoch
from upriver.options import Compaction
from upriver.spark.changes import (
    ADMITS,
    ChangesOffset,
    ChangesPlan,
    ChangesSource,
    ChangesStart,
    begin_of,
    means_changes,
    next_version,
    starting_option,
)

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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"changes": "yes"}, "^changes='yes': give true or false$"),
        (
            {"root": "/lake", "changes": "false"},
            "^root is an option of reading changes, and changes=false: leave out one",
        ),
        ({"changes": "False", "startingVersion": "3"}, "^startingVersion is an option of reading changes"),
        ({"root": "/lake", "keys": "[1]"}, "^keys: changes are read of all keys: leave it out, and choose rows"),
        ({"changes": "true", "Arrow_Keys": "x"}, "^Arrow_Keys: changes are read of all keys"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        means_changes({"view": "v", **options})


def test_since_is_a_version_a_moment_or_one_of_two_words() -> None:
    assert [starting_option(since)["startingVersion"] for since in (None, "now", 7)] == ["earliest", "now", "7"]
    moment = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))
    assert starting_option(moment) == {"startingTimestamp": "2026-01-31T11:00:00+00:00"}
    bad: list[Any] = ["yesterday", 1.5, True, datetime(2026, 1, 31)]
    for since in bad:
        with pytest.raises(DeclarationError, match="since="):
            starting_option(since)


def test_a_reader_begins_with_what_was_committed_at_a_moment_or_later(tmp_path: Path) -> None:
    """The log begins with version 1; 3 and 6 have changes."""
    log = WrittenLog(tmp_path / "lake", "planes")
    log.commit(4, stamped([change(("a", 1), "insert", 1), change(("a", 1), "delete", 3)]))
    log.commit(9, stamped([change(("b", 1), "insert", 6)]))
    source = ChangesSource.of({"root": log.root, "view": "planes"})

    def start(seconds: float) -> tuple[int, bool]:
        begin = source.start(source.log(), None, AT + timedelta(seconds=seconds))
        return begin.version, begin.with_base

    assert [start(seconds) for seconds in (-9, 1)] == [(1, True)] * 2
    assert [start(seconds) for seconds in (1.5, 3)] == [(2, False)] * 2
    assert [start(seconds) for seconds in (3.000001, 6)] == [(5, False)] * 2
    assert start(6.5) == (9, False)  # what comes from now on
    assert [source.end(source.log(), None, AT + timedelta(seconds=seconds)) for seconds in (0, 2.9, 3, 99)] == [
        0,
        2,
        5,
        9,
    ]
    with pytest.raises(DeclarationError, match=r"startingTimestamp='2999.*future: give 'latest' as startingVersion"):
        source.start(source.log(), None, datetime(2999, 1, 1, tzinfo=UTC))
    log.release()


def test_a_moment_of_which_changes_are_gone_is_refused(tmp_path: Path) -> None:
    log = WrittenLog(tmp_path / "lake", "planes")
    log.commit(4, stamped([change(("a", 1), "insert", 1), change(("b", 1), "insert", 3)]))
    log.commit(5, stamped([change(("a", 1), "insert", 5)]), earliest=5)
    source = ChangesSource.of({"root": log.root, "view": "planes"})
    with pytest.raises(ChangesGone, match=r"oldest version, 5, was committed at 2026-01-01T00:00:05\+00:00"):
        source.start(source.log(), None, AT + timedelta(seconds=4))
    assert source.start(source.log(), None, AT + timedelta(seconds=5)) == ChangesStart(Epoch(5), with_base=True)
    log.release()


@pytest.mark.parametrize(
    ("folded_at", "at"), [(None, 6), (AT + timedelta(seconds=5), 5)], ids=["fold-of-older-release", "fold"]
)
def test_a_moment_of_which_changes_are_gone_is_refused_also_of_a_view_that_was_empty(
    folded_at: datetime | None, at: int, tmp_path: Path
) -> None:
    log = WrittenLog(tmp_path / "lake", "planes")
    log.commit(4, stamped([change(("a", 1), "insert", 1), change(("a", 1), "delete", 4)]))
    log.commit(6, [], earliest=5, earliest_at=folded_at)
    log.commit(7, stamped([change(("b", 1), "insert", 7)]))
    source = ChangesSource.of({"root": log.root, "view": "planes"})
    with pytest.raises(ChangesGone, match=rf"oldest version, 5, was committed at 2026-01-01T00:00:0{at}\+00:00"):
        source.start(source.log(), None, AT + timedelta(seconds=at - 1))
    assert source.start(source.log(), None, AT + timedelta(seconds=at)) == ChangesStart(Epoch(6), with_base=False)
    log.release()


def test_a_stream_has_no_end() -> None:
    for name, value in (("endingVersion", "3"), ("endingTimestamp", "2026-01-31T12:00Z")):
        with pytest.raises(DeclarationError, match=f"{name}: a stream has no end: leave it out"):
            ChangesPlan.of({"root": "/lake", "view": "v", name: value}).of_stream()


@pytest.mark.skipif(not ADMITS, reason="Spark has no limit before 4.2")
def test_a_batch_has_no_limit() -> None:
    with pytest.raises(DeclarationError, match="maxVersionsPerTrigger: a batch has all versions: leave it out"):
        ChangesPlan.of({"root": "/lake", "view": "v", "maxVersionsPerTrigger": "3"}).of_batch()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingTimestamp": "2026-01-31"}, r"startingTimestamp='2026-01-31': give a time with its zone"),
        ({"endingTimestamp": "noon"}, r"endingTimestamp='noon': give a time with its zone, such as '2026-"),
        ({"startingVersion": "3", "startingTimestamp": "2026-01-31T12:00Z"}, "startingVersion or startingTimestamp"),
        ({"endingVersion": "3", "endingTimestamp": "2026-01-31T12:00Z"}, "endingVersion or endingTimestamp, not both"),
    ],
)
def test_a_moment_has_a_zone_and_stands_alone(options: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        ChangesPlan.of({"root": "/lake", "view": "v", **options})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7 days", 604_800.0), (timedelta(minutes=2), 120.0), ("1 hour 30 minutes", 5_400.0), (None, None)],
)
def test_the_retention_of_changes_is_an_interval(given: Any, seconds: float | None) -> None:
    assert Compaction(changes_retention=given).changes_retention_s == seconds


@pytest.mark.parametrize("given", ["soon", 7, "0 days", "1 month", timedelta(0)])
def test_another_retention_is_refused(given: Any) -> None:
    with pytest.raises(DeclarationError, match="changes_retention="):
        Compaction(changes_retention=given)
