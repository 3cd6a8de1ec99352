"""Retention as users declare it."""

from datetime import timedelta

import pyarrow as pa
import pytest

from upriver.errors import DeclarationError
from upriver.plan.retention import DAY_US, Retain, retain_of

SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("seq", pa.int16()),
        ("name", pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("given", "interval"),
    [
        (("at", "30 days"), 30 * DAY_US),
        (("local", "1 day 12 hours"), 3 * DAY_US // 2),
        (["at", "INTERVAL 90 Minutes"], 5_400_000_000),
        (("at", "2weeks"), 14 * DAY_US),
        (("at", timedelta(milliseconds=1)), 1_000),
        (("day", "30 days"), 30),
        (("day", timedelta(hours=12)), 1),
        (("seq", 100), 100),
        (("at", None), None),
    ],
)
def test_an_interval_is_a_number_in_the_columns_unit(given: object, interval: int | None) -> None:
    retain = retain_of("t", SCHEMA, given)
    assert isinstance(retain, Retain)
    assert retain.interval == interval


def test_a_table_without_retention_has_none() -> None:
    assert retain_of("t", SCHEMA, None) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("30 days", "give a column and an interval"),
        (("at",), "give a column and an interval"),
        ((1, "30 days"), "give a column and an interval"),
        (("when", "30 days"), "its columns are at, local, day, seq, name"),
        (("name", "30 days"), "must be a TIMESTAMP, a DATE or an integer"),
        (("at", 30), "give the interval as a text"),
        (("at", "a while"), "cannot be read"),
        (("at", "30 days or so"), "cannot be read"),
        (("at", "-1 day"), "cannot be read"),
        (("at", "1 month"), "months and years differ in length"),
        (("at", "3 moons"), "none of the units"),
        (("at", "0 days"), "above 0"),
        (("at", timedelta(-1)), "above 0"),
        (("at", f"{2**60} weeks"), "above 0, and at most"),
        (("seq", "100"), "is an integer"),
        (("seq", True), "is an integer"),
        (("seq", 0), "above 0"),
    ],
)
def test_wrong_input_is_one_error_that_names_the_table(given: object, says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as found:
        retain_of("table 't': retain=...", SCHEMA, given)
    assert str(found.value).startswith("table 't': retain=...")
