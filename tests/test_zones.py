"""Time zones by names that pyarrow, pandas and Python can read."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from upriver.errors import DeclarationError
from upriver.zones import zone_info, zone_name, zone_of_text

NAMES = [
    ("UTC", "UTC"),
    ("Z", "UTC"),
    ("GMT", "UTC"),
    ("UT", "UTC"),
    ("GMT0", "UTC"),
    ("+00:00", "UTC"),
    ("Etc/UTC", "Etc/UTC"),
    ("+05:30", "+05:30"),
    ("+5:30", "+05:30"),
    ("-08", "-08:00"),
    ("+0530", "+05:30"),
    ("UTC+01:00", "+01:00"),
    ("GMT+2", "+02:00"),
    ("GMT-0330", "-03:30"),
    ("UT+3", "+03:00"),
    ("+18:00", "+18:00"),
    ("PST", "America/Los_Angeles"),
    ("BST", "Asia/Dhaka"),
    ("EST", "-05:00"),
    ("SystemV/PST8", "-08:00"),
    ("Asia/Kolkata", "Asia/Kolkata"),
    ("Europe/Berlin", "Europe/Berlin"),
]


@pytest.mark.parametrize(("zone", "name"), NAMES)
def test_every_zone_has_a_name_that_pyarrow_reads(zone: str, name: str) -> None:
    assert zone_name(zone) == name
    assert zone_name(name) == name, "a name stays as it is"
    moment = datetime(2024, 7, 1, tzinfo=UTC)
    read = pa.scalar(moment, pa.timestamp("us", name)).as_py()
    assert read == moment
    assert read.utcoffset() == moment.astimezone(zone_info(name)).utcoffset()


def test_offsets_go_both_ways() -> None:
    moment = datetime(2024, 7, 1, tzinfo=UTC)
    assert moment.astimezone(zone_info("+05:30")).utcoffset() == timedelta(hours=5, minutes=30)
    assert moment.astimezone(zone_info("-03:30")).utcoffset() == -timedelta(hours=3, minutes=30)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "+05:30:15", "SystemV/PST8PDT", "+19:00", "UTC+05:75", ""])
def test_a_zone_without_such_a_name_is_refused_by_the_settings_name(zone: str) -> None:
    with pytest.raises(DeclarationError, match=r"spark\.sql\.session\.timeZone") as refused:
        zone_name(zone)
    assert zone in str(refused.value)
    assert "set it to" in str(refused.value)


def test_a_zone_in_a_text_is_one_that_java_takes() -> None:
    offsets = {"+1": 3600, "-1:3": -3780, "+013015": 5415, "UTC+2": 7200, "EST": -18_000, "SystemV/PST8": -28_800}
    assert {zone: zone_of_text(zone) for zone in offsets} == offsets
    assert [zone_of_text(zone) for zone in ("PST", "Etc/GMT+3", "GMT+0")] == ["America/Los_Angeles", "Etc/GMT+3", 0]
    for none in ("z", "europe/berlin", "ROC", "localtime", "+123", "+24", "UTC +2", "../etc/passwd", ""):
        assert zone_of_text(none) is None, none
