"""Cursors of SQL, plans and refusals, as ODBC's and other drivers ask for them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_kit import framed, kinds, said, trusted_session

from upriver.doors.postgres.cursors import CURSORS_MAX, CursorStep, DeclaredCursor
from upriver.doors.postgres.session import PostgresSession


def asked(session: PostgresSession, text: str) -> list[tuple[bytes, bytes]]:
    return said(session, framed(b"Q", text.encode() + b"\0"))


def values(answers: list[tuple[bytes, bytes]]) -> list[str]:
    """Of answers of one column."""
    return [body[6:].decode() for kind, body in answers if kind == b"D"]


def tags(answers: list[tuple[bytes, bytes]]) -> list[str]:
    return [body[:-1].decode() for kind, body in answers if kind == b"C"]


def code(answers: list[tuple[bytes, bytes]]) -> str:
    (error,) = (body for kind, body in answers if kind == b"E")
    return next(field[1:].decode() for field in error.split(b"\0") if field[:1] == b"C")


DECLARE = 'declare "SQL_CUR1" cursor{} for SELECT n FROM totals ORDER BY n'


def test_a_held_cursor_is_read_piece_by_piece_and_outlives_its_transaction() -> None:
    session = trusted_session()
    answers = asked(session, f'BEGIN;{DECLARE.format(" with hold")};fetch 2 in "SQL_CUR1"')
    assert (kinds(answers), values(answers)) == ("CCTDDCZ", ["0", "1"])
    assert tags(answers) == ["BEGIN", "DECLARE CURSOR", "FETCH 2"]
    answers = asked(session, 'COMMIT;fetch all in "SQL_CUR1";MOVE PRIOR FROM "SQL_CUR1";close "SQL_CUR1"')
    assert (values(answers), tags(answers)) == (["2", "5"], ["COMMIT", "FETCH 2", "MOVE 1", "CLOSE CURSOR"])
    assert code(asked(session, 'fetch 1 in "SQL_CUR1"')) == "34000"


def test_another_cursor_needs_a_transaction_and_ends_with_it() -> None:
    session = trusted_session()
    assert code(asked(session, DECLARE.format(""))) == "25P01"
    asked(session, f"BEGIN;{DECLARE.format('')}")
    assert code(asked(session, DECLARE.format(""))) == "42P03"
    asked(session, "ROLLBACK")
    assert code(asked(session, 'FETCH "SQL_CUR1"')) == "34000"
    many = ";".join(f"DECLARE c{number} CURSOR FOR SELECT 1" for number in range(CURSORS_MAX + 1))
    assert code(asked(session, f"BEGIN;{many}")) == "53400"


@given(st.integers(0, 4), st.lists(st.tuples(st.sampled_from(["FORWARD", "BACKWARD"]), st.integers(-3, 6)), max_size=6))
def test_steps_go_over_the_rows_between_two_places(count: int, steps: list[tuple[str, int]]) -> None:
    cursor, at = DeclaredCursor(pa.table({"x": range(1, count + 1)}), is_held=False), 0
    for word, rows in steps:
        step = rows if word == "FORWARD" else -rows
        until = min(max(at + step, 0), count + 1)
        passed = range(at + 1, until + 1) if step > 0 else range(at - 1, until - 1, -1) if step else range(at, at + 1)
        found = cursor.step(CursorStep.of(f"FETCH {word} {rows} FROM c"))
        assert found["x"].to_pylist() == [row for row in passed if 0 < row <= count]
        at = until
        assert cursor.at == at


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("FETCH c", ["2"]),
        ("fetch next from c", ["2"]),
        ("FETCH PRIOR IN c", ["0"]),
        ("FETCH LAST c", ["5"]),
        ("FETCH ABSOLUTE -2 FROM c", ["2"]),
        ("FETCH RELATIVE 0 FROM c", ["1"]),
        ("FETCH FORWARD ALL FROM c", ["2", "5"]),
    ],
)
def test_steps_as_postgresql_writes_them(step: str, expected: list[str]) -> None:
    session = trusted_session()
    asked(session, "BEGIN;DECLARE C NO SCROLL CURSOR FOR SELECT n FROM totals ORDER BY n;MOVE 2 c")
    assert values(asked(session, step)) == expected


def test_a_plan_says_how_each_view_is_read() -> None:
    text = "EXPLAIN SELECT * FROM totals t, routes, pg_class WHERE t.customer = 'ada'"
    assert values(asked(trusted_session(), text))[1:] == [
        "  ->  view totals: lookup by its key (customer)",
        "  ->  view Routes: scan of all rows",
        "  ->  catalog: pg_class",
    ]
    assert values(asked(trusted_session(), "EXPLAIN (COSTS OFF) SELECT n FROM totals LIMIT 3"))[1:] == [
        "  ->  view totals: scan of the first 3 rows"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EXPLAIN (FORMAT JSON) SELECT 1", "0A000"),
        ("EXPLAIN ANALYZE SELECT 1", "0A000"),
        ("EXPLAIN DELETE FROM totals", "0A000"),
        ('CREATE LOCAL TEMPORARY TABLE "#Tableau_1" (x int) ON COMMIT PRESERVE ROWS', "25006"),
        ("SELECT * INTO TEMP x FROM totals", "25006"),
        ("WITH a AS (DELETE FROM totals RETURNING *) SELECT * FROM a", "25006"),
        ("INSERT INTO totals VALUES (1)", "25006"),
        ("DECLARE c BINARY CURSOR FOR SELECT 1", "0A000"),
        ("DECLARE c FOR SELECT 1", "42601"),
        ("FETCH SOME FROM c FROM d", "42601"),
        ("DEALLOCATE nothing", "26000"),
    ],
)
def test_what_is_refused_has_the_code_that_drivers_know(text: str, expected: str) -> None:
    assert code(asked(trusted_session(), text)) == expected
