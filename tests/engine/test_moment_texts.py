"""Texts as TIMESTAMP and TIMESTAMP_NTZ: what Spark 4.3 has read in each, in a session's time zone."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from upriver.engine.moment_texts import NotAMoment, clocks_in, instants_in

READ = [
    ("2024-01-01T00:00:00Z", "Europe/Berlin", "2024-01-01 00:00:00"),
    ("2024-01-01 00:00:00", "Europe/Berlin", "2023-12-31 23:00:00"),
    ("2024-01-01T00:00:00+02:00", "UTC", "2023-12-31 22:00:00"),
    ("2024-01-01 00:00:00 UTC", "Asia/Kathmandu", "2024-01-01 00:00:00"),
    ("2024-01-01 00:00:00 Europe/Berlin", "UTC", "2023-12-31 23:00:00"),
    ("2024-01-01 00:00:00UTC+2", "UTC", "2023-12-31 22:00:00"),
    ("2024-01-01 00:00:00GMT-08:00", "UTC", "2024-01-01 08:00:00"),
    ("2024-01-01 00:00:00PST", "UTC", "2024-01-01 08:00:00"),
    ("2024-01-01 00:00:00+1:3", "UTC", "2023-12-31 22:57:00"),
    ("2024-01-01 00:00:00+013015", "UTC", "2023-12-31 22:29:45"),
    ("2024-01-01 00:00:00-5", "UTC", "2024-01-01 05:00:00"),
    ("2024-1-1 1:2:3.4", "UTC", "2024-01-01 01:02:03.400000"),
    ("2024-01-01 00:00:00.123456789123 Z", "UTC", "2024-01-01 00:00:00.123456"),
    ("2024-01-01 00:00:00.Z", "UTC", "2024-01-01 00:00:00"),
    ("2024", "+05:30", "2023-12-31 18:30:00"),
    ("2024-02", "UTC", "2024-02-01 00:00:00"),
    ("+2024-02-29T7", "UTC", "2024-02-29 07:00:00"),
    ("\x1f\n 2024-01-01 00:00 \x7f\t", "UTC", "2024-01-01 00:00:00"),
    ("2024-03-31 02:30:00", "Europe/Berlin", "2024-03-31 01:30:00"),
    ("2024-10-27 02:30:00", "Europe/Berlin", "2024-10-27 00:30:00"),
    ("2024-10-27 02:30:00 Europe/Berlin", "America/New_York", "2024-10-27 00:30:00"),
    ("2500-07-01 00:00:00", "America/New_York", "2500-07-01 04:00:00"),
]
UNREAD = [
    "", " ", "2024-", "2024-02-30", "2023-02-29", "2024-01-01T", "2024-01-01t00:00:00", "2024-01-01  00:00:00",
    "2024-01-01 24:00:00", "2024-01-01 00:60:00", "2024-01-01 00:00:60", "2024-01-01 00:00Z", "2024-01-01Z",
    "2024-01-01 00:00:00z", "2024-01-01 00:00:00+18:01", "2024-01-01 00:00:00+00:60", "2024-01-01 00:00:00+123",
    "2024-01-01 00:00:00europe/berlin", "2024-01-01 00:00:00ROC", "2024-01-01 00:00:00[UTC]", "999", "1234567-01-01",
    "2024/01/01", "now", "\u00a02024-01-01", "\u0662\u0660\u0662\u0664-01-01", "294247-01-12", "+-2024", "001:00",
]  # fmt: skip


def test_every_form_of_text_is_the_instant_that_spark_reads() -> None:
    for text, zone, expected in READ:
        (found,) = instants_in(pa.array([text]), zone, tolerant=False).cast(pa.timestamp("us", "UTC")).to_pylist()
        assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC), text


def test_years_that_python_lacks_are_read() -> None:
    texts = pa.array(["-0001-12-31 00:00:00.5", "0000", "10000-01-01 00:00:00", "+294246-12-31 23:59:59.999999", None])
    days = (-62167219200_000_000, 253402300800_000_000)
    read = instants_in(texts, "UTC", tolerant=False).view(pa.int64()).to_pylist()
    assert read == [days[0] - 86_400_000_000 + 500_000, days[0], days[1], 9223371244799_999_999, None]
    assert clocks_in(texts, tolerant=False).view(pa.int64()).to_pylist() == read


@pytest.mark.parametrize("text", UNREAD)
def test_other_texts_fail_or_are_null(text: str) -> None:
    texts = pa.array(["2024", text])
    for found in (instants_in(texts, "UTC", tolerant=True), clocks_in(texts, tolerant=True)):
        assert found.is_valid().to_pylist() == [True, False]
    with pytest.raises(NotAMoment, match=r"cannot be cast to TIMESTAMP$"):
        instants_in(texts, "UTC", tolerant=False)
    with pytest.raises(NotAMoment, match="cannot be cast to TIMESTAMP_NTZ"):
        clocks_in(texts, tolerant=False)


def test_a_text_that_spark_can_read_and_this_cannot_is_never_null() -> None:
    refused = {
        "lacks a date": ["12:30", "T12", "T1:2:3.4 Z", " 12:30:00 UTC"],
        "too far": ["294247-01-10 04:00:54.775807", "-290308-12-22 00:00:00"],
        "not known here": ["2024-01-01 00:00:00 SystemV/PST8PDT"],
    }
    for why, texts in refused.items():
        for text in texts:
            with pytest.raises(ValueError, match=why):
                instants_in(pa.array([text]), "UTC", tolerant=True)


def test_a_wall_clock_ignores_the_zone_and_needs_a_date() -> None:
    texts = pa.array(["2024-01-01T00:00:00+02:00", "2024-01-01 00:00:00 Foo/Bar", "12:30"])
    assert clocks_in(texts, tolerant=True).to_pylist() == [datetime(2024, 1, 1), None, None]
