"""A session of PostgreSQL's wire as a machine: what it answers to which bytes, and that no bytes break it."""

import struct

import pytest
from doors_kit import ODD_ROWS
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_kit import first_proof, framed, kinds, last_proof, new_session, said, startup, trusted_session
from soak import examples

from upriver.doors.postgres import session as sessions
from upriver.doors.postgres.messages import MESSAGE_BYTES_MAX, STARTUP_BYTES_MAX


def query(text: str) -> bytes:
    return framed(b"Q", text.encode() + b"\0")


def parse(text: str, name: str = "") -> bytes:
    return framed(b"P", f"{name}\0{text}\0".encode() + struct.pack("!h", 0))


def bind(*values: bytes, portal: str = "", name: str = "") -> bytes:
    body = f"{portal}\0{name}\0".encode() + struct.pack("!hh", 0, len(values))
    return framed(
        b"B", body + b"".join(struct.pack("!i", len(value)) + value for value in values) + struct.pack("!h", 0)
    )


def execute(most: int = 0, portal: str = "") -> bytes:
    return framed(b"E", portal.encode() + b"\0" + struct.pack("!i", most))


SYNC = framed(b"S", b"")
DESCRIBE = framed(b"D", b"P\0")


def code(answer: tuple[bytes, bytes]) -> str:
    assert answer[0] == b"E"
    return next(field[1:].decode() for field in answer[1].split(b"\0") if field[:1] == b"C")


def test_a_caller_proves_that_it_knows_the_token_and_is_told_that_the_server_does() -> None:
    session = new_session()
    assert b"".join(session.receive(framed(b"", struct.pack("!i", 80877103)))) == b"N"
    assert kinds(said(session, startup())) == "R"
    ((_, challenge),) = said(session, first_proof())
    answers = said(session, last_proof(challenge[4:].decode(), "another"))
    assert answers[0][1][4:].startswith(b"v=")
    assert session.is_trusted
    assert kinds(answers)[-2:] == "KZ"


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_ends_the_session(password: str) -> None:
    session = new_session()
    said(session, startup())
    ((_, challenge),) = said(session, first_proof())
    (answer,) = said(session, last_proof(challenge[4:].decode(), password or "x"))
    assert code(answer) == "28P01"
    assert session.is_over
    assert not session.is_trusted


def test_nothing_is_served_before_the_proof() -> None:
    session = new_session()
    said(session, startup())
    (answer,) = said(session, query("SELECT 1"))
    assert code(answer) == "08P01"
    assert session.is_over


def test_an_unknown_caller_sends_few_bytes_and_a_known_one_bounded_messages() -> None:
    session = new_session()
    (answer,) = said(session, startup(options="x" * STARTUP_BYTES_MAX))
    assert code(answer) == "08P01"
    known = trusted_session()
    (answer,) = said(known, b"Q" + struct.pack("!i", MESSAGE_BYTES_MAX + 1))
    assert code(answer) == "08P01"
    assert known.is_over


def test_a_simple_query_may_have_several_statements_up_to_the_first_error() -> None:
    session = trusted_session()
    answers = said(session, query("SELECT 1; -- a; comment\nSELECT 'a;b' AS x; ; SELECT nothing; SELECT 2"))
    assert kinds(answers) == "TDCTDCEZ"
    assert [body for kind, body in answers if kind == b"D"] == [b"\0\1\0\0\0\1" + b"1", b"\0\1\0\0\0\3" + b"a;b"]
    assert kinds(said(session, query(" ; "))) == "IZ"


def test_rows_come_as_many_as_the_portal_allows() -> None:
    session = trusted_session()
    text = "SELECT customer FROM totals WHERE customer IN ($1, $2) ORDER BY 1"
    assert kinds(said(session, parse(text) + bind(b"ada", b"bob") + DESCRIBE + execute(1))) == "12TDs"
    assert kinds(said(session, execute(5) + SYNC)) == "DCZ"
    assert code(said(session, execute())[0]) == "34000"


def test_parameters_that_a_query_does_not_use_are_left_out() -> None:
    session = trusted_session()
    text = "SELECT n, '$2' FROM totals WHERE customer IN ($10, '$3')"
    answers = said(session, parse(text) + bind(*[b"x"] * 9, b"ada") + execute() + SYNC)
    assert answers[2] == (b"D", b"\0\2\0\0\0\1" + b"2" + b"\0\0\0\2$2")


def test_parameters_have_the_types_of_the_columns_beside_them() -> None:
    session = trusted_session()
    text = "SELECT current_schemas(true) FROM pg_class WHERE relkind = ANY($1) AND oid = $2"
    answers = said(session, parse(text) + framed(b"D", b"S\0") + SYNC)
    assert answers[1] == (b"t", struct.pack("!hii", 2, 1009, 26))


def test_a_portal_is_a_cursor_too() -> None:
    session = trusted_session()
    said(session, query("BEGIN") + parse("SELECT n FROM totals ORDER BY n") + bind(portal="p") + SYNC)
    assert said(session, query("MOVE FORWARD 1 FROM p"))[0] == (b"C", b"MOVE 1\0")
    answers = said(session, execute(1, "p") + SYNC)
    assert (kinds(answers), answers[0][1]) == ("DsZ", b"\0\1\0\0\0\1" + b"1")
    assert kinds(said(session, query("FETCH BACKWARD 2 FROM p"))) == "TDCZ"
    assert kinds(said(session, framed(b"C", b"Pp\0") + SYNC)) == "3Z"
    assert code(said(session, query("FETCH FROM p"))[0]) == "34000"


def test_after_an_error_messages_are_skipped_up_to_the_next_sync() -> None:
    session = trusted_session()
    answers = said(session, parse("SELECT nothing FROM totals") + bind() + DESCRIBE + execute() + SYNC)
    assert kinds(answers) == "12EZ"
    assert code(answers[2]) == "42703"
    assert kinds(said(session, parse("SELECT 1") + bind() + execute() + SYNC)) == "12DCZ"


def test_a_transaction_fails_with_its_first_error_and_ends_by_rollback() -> None:
    session = trusted_session()
    assert said(session, query("BEGIN"))[-1] == (b"Z", b"T")
    assert said(session, query("SELECT * FROM nothing"))[-1] == (b"Z", b"E")
    assert code(said(session, query("SELECT 1"))[0]) == "25P02"
    assert said(session, query("COMMIT")) == [(b"C", b"ROLLBACK\0"), (b"Z", b"I")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM nothing", "42P01"),
        ("SELECT 'x'::int", "22P02"),
        ("SELECT 1 / 0", "22012"),
        ("SELECT n % 0 FROM totals", "22012"),
        ("SELECT 5000000000::int", "22003"),
        ("SELECT nothing(1)", "42883"),
        ("SELECT (", "42601"),
        ("SET client_encoding = 'LATIN1'", "22023"),
        ("SHOW nothing", "42704"),
    ],
)
def test_errors_have_codes(text: str, expected: str) -> None:
    assert code(said(trusted_session(), query(text))[0]) == expected


def test_a_text_that_is_not_utf_8_is_an_error_of_its_own() -> None:
    (answer, _) = said(trusted_session(ODD_ROWS), query("SELECT k FROM odd"))
    assert code(answer) == "22021"


def test_an_error_does_not_send_all_back_that_it_was_given() -> None:
    (answer, _) = said(trusted_session(), query(f'SELECT * FROM "{"x" * 60_000}"'))
    assert code(answer) == "42P01"
    assert len(answer[1]) < 3_000


def test_a_portal_that_was_read_holds_no_rows() -> None:
    session = trusted_session()
    said(session, query("BEGIN") + parse("SELECT n FROM totals ORDER BY n") + bind(portal="p") + execute(3, "p") + SYNC)
    assert said(session, execute(3, "p") + SYNC)[1:] == [(b"C", b"SELECT 1\0"), (b"Z", b"T")]
    assert said(session, execute(3, "p") + SYNC) == [(b"C", b"SELECT 0\0"), (b"Z", b"T")]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pg_catalog.pg_get_viewdef('totals'::regclass::oid, true)",
        "SELECT definition FROM pg_matviews WHERE matviewname = 'totals'",
        "SELECT view_definition FROM information_schema.views WHERE table_name = 'totals'",
    ],
)
def test_a_view_is_shown_with_its_sql(text: str) -> None:
    (row,) = (body for kind, body in said(trusted_session(), query(text)) if kind == b"D")
    assert row.endswith(b"SELECT customer, n, total FROM events")


def test_statements_and_portals_are_bounded() -> None:
    session = trusted_session()
    many = b"".join(parse("SHOW TimeZone", f"s{number}") for number in range(sessions.STATEMENTS_MAX + 1))
    answers = said(session, many)
    assert kinds(answers) == "1" * sessions.STATEMENTS_MAX + "E"
    said(session, SYNC)
    many = b"".join(bind(portal=f"p{number}", name="s0") for number in range(sessions.PORTALS_MAX + 1))
    assert kinds(said(session, many)) == "2" * sessions.PORTALS_MAX + "E"


def test_texts_of_statements_with_a_name_are_bounded() -> None:
    session = trusted_session()
    large = f"SELECT '{'x' * (sessions.STATEMENT_CHARS_MAX // 2)}'"
    answers = said(session, parse(large, "a") + parse(large, "b"))
    assert kinds(answers) == "1E"
    assert b"have at most 262,144 characters" in answers[1][1]
    said(session, SYNC)
    assert kinds(said(session, parse(large, "") + parse(large, "") + parse("SELECT 1", "c"))) == "111"


@settings(deadline=None, max_examples=examples(50))
@given(st.binary(max_size=200))
def test_random_bytes_do_not_break_a_new_session(data: bytes) -> None:
    session = new_session()
    answers = b"".join(session.receive(data)) + b"".join(session.receive(startup()))
    assert not session.is_trusted
    assert len(answers) < 1000


_FIELDS = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"\0", b"\0\0", b"\0\1", b"\xff\xff\xff\xff", b"\0\0\0\1"])
)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(list(b"QPBDECHFSdcfp?")), st.lists(_FIELDS, max_size=6)), max_size=8))
def test_random_messages_do_not_break_a_known_session(sent: list[tuple[int, list[bytes]]]) -> None:
    session = trusted_session()
    for kind, fields in sent:
        answers = said(session, framed(bytes([kind]), b"".join(fields)))
        assert all(b"XX000" not in body for answer, body in answers if answer == b"E")
    if not session.is_over:
        assert said(session, SYNC)[-1][0] == b"Z"
