"""COPY ... TO STDOUT, as drivers that read every answer by it write it."""

import pyarrow as pa
import pytest
from postgres_kit import framed, kinds, said, trusted_session

from upriver.doors.postgres.copies import CopyForm, copied
from upriver.doors.postgres.messages import WireError


def copied_text(statement: str) -> str:
    answers = said(trusted_session(), framed(b"Q", statement.encode() + b"\0"))
    assert kinds(answers).startswith("Hd")
    assert kinds(answers).endswith("dcCZ")
    assert answers[-2][1] == b"COPY 4\0"
    return b"".join(body for kind, body in answers if kind == b"d").decode()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("COPY (SELECT customer, n FROM totals ORDER BY n) TO STDOUT", "eve\t0\nbob\t1\nada\t2\n\\N\t5\n"),
        (
            "COPY (SELECT n, customer FROM totals ORDER BY n) TO STDOUT (FORMAT csv, HEADER, DELIMITER ';', NULL '-')",
            "n;customer\n0;eve\n1;bob\n2;ada\n5;-\n",
        ),
        (
            "copy (SELECT customer FROM totals ORDER BY n) to stdout with csv header force quote *",
            'customer\n"eve"\n"bob"\n"ada"\n\n',
        ),
        ("COPY public.totals (total) TO STDOUT WITH NULL AS '0'", "17.50\n20.00\n0\n0.25\n"),
    ],
)
def test_rows_come_as_texts_and_as_csv(statement: str, expected: str) -> None:
    assert copied_text(statement) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [("", "a\\tb\\\\\\n\n\\N\n\n"), ("CSV", '"a\tb\\\n"\n\n""\n'), ("(DELIMITER '|')", "a\\tb\\\\\\n\n\\N\n\n")],
)
def test_awkward_texts_can_be_told_apart(options: str, expected: str) -> None:
    parts = b"".join(copied(pa.table({"x": ["a\tb\\\n", None, ""]}), CopyForm.of(options)))
    lines, place = b"", 0
    while place < len(parts):
        size = int.from_bytes(parts[place + 1 : place + 5])
        lines += parts[place + 5 : place + 1 + size] if parts[place : place + 1] == b"d" else b""
        place += 1 + size
    assert lines.decode() == expected


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("COPY totals FROM STDIN", "25006"),
        ("COPY totals TO '/tmp/x'", "42501"),
        ("COPY totals TO PROGRAM 'sh'", "42501"),
        ("COPY totals", "42601"),
        ("COPY totals TO STDOUT (FORMAT parquet)", "22023"),
        ("COPY totals TO STDOUT (FREEZE)", "0A000"),
        (f"COPY totals TO STDOUT ({'CSV ' * 101})", "54000"),
        ("COPY nothing TO STDOUT", "42P01"),
        ("COPY (DELETE FROM totals) TO STDOUT", "25006"),
    ],
)
def test_other_copies_are_refused(statement: str, expected: str) -> None:
    answers = said(trusted_session(), framed(b"Q", statement.encode() + b"\0"))
    (error,) = (body for kind, body in answers if kind == b"E")
    assert f"C{expected}".encode() in error.split(b"\0")


def test_a_delimiter_is_one_character() -> None:
    with pytest.raises(WireError, match="give one character"):
        CopyForm.of("(FORMAT csv, DELIMITER '||')")
