"""The PostgreSQL door with real clients: psycopg, psql and JDBC."""

import datetime
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from doors_kit import ENDLESS, FREED_S_MAX, KeptRows, WatchedRows
from postgres_kit import PASSWORD, asking_to_cancel, startup

from upriver.doors.postgres.server import PostgresServer
from upriver.doors.query_processes import CALLER_QUERIES_MAX, QUERIES_MAX
from upriver.net.gate import NO_PLACE, CallerGate, Places
from upriver.net.server import Listen

SUPPORT = Path(__file__).parent.parent.parent / "support"
CLIENT_S_MAX = 60.0
"""Seconds that a client may take."""
MAVEN_S_MAX = 120.0
"""Seconds in which Maven must fetch the driver."""
JDBC = "org.postgresql:postgresql:42.7.4"


@pytest.fixture(scope="module")
def door() -> Iterator[PostgresServer]:
    running = PostgresServer(KeptRows(), {"operator": PASSWORD}, Listen("127.0.0.1", 0))
    yield running
    running.close()


def connected(door: PostgresServer, password: str = PASSWORD, user: str = "reader") -> "psycopg.Connection[Any]":
    host, _, port = door.address.rpartition(":")
    return psycopg.connect(f"host={host} port={port} user={user} dbname=upriver password={password}", autocommit=True)


def test_psycopg_gets_rows_of_keys_by_parameters(door: PostgresServer) -> None:
    with connected(door) as connection:
        assert connection.info.parameter_status("TimeZone") == "Europe/Berlin"
        cursor = connection.execute("SELECT * FROM totals WHERE customer = %s AND n > %s", ("ada", 1))
        assert cursor.fetchall() == [("ada", 2, Decimal("17.50"))]
        assert [column.name for column in cursor.description or []] == ["customer", "n", "total"]
        cursor = connection.execute("SELECT n FROM totals WHERE customer = ANY(%s) ORDER BY n", (["ada", "bob"],))
        assert cursor.fetchall() == [(1,), (2,)]


def test_psycopg_looks_keys_up_by_a_prepared_statement(door: PostgresServer) -> None:
    with connected(door) as connection:
        found = [
            connection.execute("SELECT n FROM totals WHERE customer = %s", (customer,), prepare=True).fetchall()
            for customer in ("ada", "bob", "nobody", None, "eve")
        ]
    assert found == [[(2,)], [(1,)], [], [], [(0,)]]


VALUES = (
    "SELECT true, 1::smallint, 2::int, 3::bigint, 1.5::real, 2.5::double precision, -0.00012::numeric(10,5), "
    "12345678.5::numeric, 'ä'::text, '\\x00\\xff'::bytea, date '2024-02-29', timestamp '2024-01-01 10:00:00.5', "
    "timestamptz '2024-01-01 10:00', interval '1 day 3 seconds', ARRAY[1, NULL, 3], ARRAY['a', 'b,c', NULL], "
    "NULL::int, sum(n) FROM totals"
)


@pytest.mark.parametrize("binary", [False, True])
def test_values_of_all_types_come_as_texts_and_in_binary(door: PostgresServer, binary: bool) -> None:
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    with connected(door) as connection, connection.cursor(binary=binary) as cursor:
        cursor.execute(VALUES)
        (row,) = cursor.fetchall()
        assert row[:6] == (True, 1, 2, 3, 1.5, 2.5)
        assert row[6:8] == (Decimal("-0.00012"), Decimal("12345678.5"))
        assert row[8:12] == (
            "ä",
            b"\x00\xff",
            datetime.date(2024, 2, 29),
            datetime.datetime(2024, 1, 1, 10, 0, 0, 500_000),
        )
        assert row[12] == datetime.datetime(2024, 1, 1, 10, tzinfo=berlin)
        assert row[13:16] == (datetime.timedelta(days=1, seconds=3), [1, None, 3], ["a", "b,c", None])
        assert row[16:] == (None, Decimal(8))


def test_parameters_of_all_types(door: PostgresServer) -> None:
    values: list[Any] = [True, 7, 2**40, 1.5, Decimal("1.25"), "it's", b"\0\xff", datetime.date(2024, 1, 2)]
    values += [
        datetime.datetime(2024, 1, 2, 3, 4, 5),
        datetime.time(3, 4, 5, 6),
        datetime.timedelta(days=-1, seconds=2),
    ]
    values += [uuid.UUID(int=7), [1, 2], ["a", 'b"c', None, "NULL"], None]
    for form in ("%s", "%b", "%t"):
        with connected(door) as connection:
            types = ["bool", "int", "bigint", "float8", "numeric(10,2)", "text", "bytea", "date", "timestamp"]
            types += ["time", "interval", "uuid", "int[]", "text[]", "text"]
            places = [f"{form}::{type}" for type in types]
            (found,) = connection.execute(f"SELECT {', '.join(places)}", values).fetchall()
            assert [str(each) for each in found] == [str(each) for each in values]


@pytest.mark.parametrize("form", ["text", "binary"])
def test_psycopg_copies_rows(door: PostgresServer, form: str) -> None:
    query = f"COPY (SELECT n, total, customer, NULL::date FROM totals ORDER BY n) TO STDOUT (FORMAT {form})"
    with connected(door) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types(["int8", "numeric", "text", "date"])
        assert list(copy.rows())[1:] == [
            (1, Decimal("20.00"), "bob", None),
            (2, Decimal("17.50"), "ada", None),
            (5, None, None, None),
        ]


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_by_a_cursor_of_the_server(door: PostgresServer, binary: bool) -> None:
    with connected(door) as connection, connection.transaction():
        with connection.cursor("some", binary=binary) as cursor:
            cursor.execute("SELECT n, total FROM totals WHERE customer = ANY(%s) ORDER BY n", (["ada", "bob", "eve"],))
            assert cursor.fetchone() == (0, Decimal("0.25"))
            assert cursor.fetchmany(1) == [(1, Decimal("20.00"))]
            cursor.scroll(0, "absolute")
            assert [n for n, _ in cursor] == [0, 1, 2]
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute("FETCH some")


def test_a_wrong_password_and_a_missing_view_are_told(door: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="none of the app's tokens"):
        connected(door, "wrong")
    with connected(door) as connection, pytest.raises(psycopg.errors.UndefinedTable, match="there are: Routes"):
        connection.execute("SELECT * FROM nothing")


def test_a_query_is_cancelled_by_another_connection(door: PostgresServer) -> None:
    cancelled = pytest.raises(psycopg.errors.QueryCanceled, match="cancelled by its caller")
    with connected(door) as connection, asking_to_cancel(connection), cancelled:
        connection.execute(ENDLESS)


def test_queries_of_closed_connections_leave_their_places() -> None:
    rows = WatchedRows()
    watched = PostgresServer(rows, {"operator": PASSWORD}, Listen("127.0.0.1", 0))
    try:
        callers = [connected(watched) for _ in range(CALLER_QUERIES_MAX)]
        for caller in callers:
            caller.pgconn.send_query(ENDLESS.encode())
        assert all(rows.begun.acquire(timeout=FREED_S_MAX) for _ in callers)
        for caller in callers:
            caller.close()
        with connected(watched) as connection, ThreadPoolExecutor(1) as asking:
            counted = asking.submit(connection.execute, "SELECT count(*) FROM totals")
            assert counted.result(timeout=FREED_S_MAX).fetchall() == [(4,)]
    finally:
        watched.close()


def test_long_queries_of_one_user_do_not_hold_up_another_s() -> None:
    rows = WatchedRows()
    watched = PostgresServer(rows, {"operator": PASSWORD}, Listen("127.0.0.1", 0))
    try:
        callers = [connected(watched, user="patient") for _ in range(QUERIES_MAX)]
        for caller in callers:
            caller.pgconn.send_query(ENDLESS.encode())
        assert all(rows.begun.acquire(timeout=FREED_S_MAX) for _ in range(CALLER_QUERIES_MAX))
        with connected(watched, user="other") as connection:
            for _ in range(3):
                assert connection.execute("SELECT count(*) FROM totals").fetchall() == [(4,)]
        for caller in callers:
            caller.pgconn.consume_input()
            assert caller.pgconn.is_busy()
            caller.close()
    finally:
        watched.close()


def test_strangers_are_few_and_a_full_server_serves_its_callers() -> None:
    places = Places(unauthenticated=4, clients=2)
    door = PostgresServer(KeptRows(), {"operator": PASSWORD}, Listen("127.0.0.1", 0), gate=CallerGate(places))
    host, _, port = door.address.rpartition(":")
    try:
        with connected(door) as connection:
            strangers = [socket.create_connection((host, int(port))) for _ in range(places.unauthenticated)]
            for stranger in strangers:
                stranger.sendall(startup())
                assert stranger.recv(1) == b"R"
            with connected(door) as another:  # in place of the oldest stranger
                assert another.execute("SELECT 1").fetchall() == [(1,)]
                with pytest.raises(psycopg.OperationalError, match=NO_PLACE):
                    connected(door)
            strangers[0].settimeout(CLIENT_S_MAX)
            while strangers[0].recv(1000):
                pass
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
            for stranger in strangers:
                stranger.close()
    finally:
        door.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))


def run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S_MAX, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql_lists_views_describes_them_and_queries_them(door: PostgresServer) -> None:
    address = f"postgresql://reader:{PASSWORD}@{door.address}/upriver"
    told = {wanted: run("psql", "-X", address, "-c", wanted) for wanted in (r"\d", r"\dm", r"\d totals", r"\d+ totals")}
    assert "public | totals     | materialized view | upriver" in told[r"\d"]
    assert told[r"\d"] == told[r"\dm"]
    assert "total    | numeric(10,2)" in told[r"\d totals"]
    assert '"totals_key" hash (customer)' in told[r"\d totals"]
    for wanted in (r"\dt", r"\dn", r"\l", r"\du", r"\df", r"\di", r"\dv", r'\d "Routes_key"'):
        run("psql", "-X", "-v", "ON_ERROR_STOP=1", address, "-c", wanted)
    rows = run("psql", "-XAt", address, "-c", "SELECT * FROM routes WHERE origin = 'JFK' AND dest IN (1, 2)")
    assert rows == "JFK|1|2024-01-01 13:00:00+01:00|{1,2}\nJFK|2|2024-01-02 13:00:00+01:00|{}\n"


@pytest.mark.verify
def test_jdbc_finds_views_their_columns_and_rows(door: PostgresServer, tmp_path: Path) -> None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven or Java is not installed")
    fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={JDBC}", f"-DoutputDirectory={tmp_path}"]
    fetched = subprocess.run(fetch, capture_output=True, timeout=MAVEN_S_MAX, check=False)
    if fetched.returncode:
        pytest.skip(f"Maven cannot fetch {JDBC}")
    (jar,) = tmp_path.glob("*.jar")
    said = run("java", "-cp", str(jar), str(SUPPORT / "jdbc/Ask.java"), door.address, PASSWORD).splitlines()
    assert "table totals MATERIALIZED VIEW" in said
    assert [line for line in said if line.startswith("column")] == [
        "column customer text 12",
        "column n int8 -5",
        "column total numeric 2",
    ]
    assert "index totals_key customer" in said
    assert [line for line in said if line.startswith("row")] == ["row ada 2 17.50", "row bob 1 20.00"] * 2
    assert said[-2:] == ["at 2024-01-04T12:00:00Z {3}", "count 4"]


LONG = Decimal("12345678901234567890.123456789012345678")
NUMBERS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "m": pa.array([Decimal(0), Decimal("1E-18"), LONG, Decimal("12345678901234567890.123")], pa.decimal128(38, 18)),
        "p": pa.array([Decimal("1.2345"), Decimal("1.2344"), Decimal("0.0004"), None], pa.decimal128(12, 4)),
        "x": pa.array([1.2345, 12345.6789, 0.1, 1e-30]),
        "f": pa.array([0.1, 1.5, float("inf"), None], pa.float32()),
        "day": pa.array([datetime.date(2026, 3, 8), None, None, None]),
    }
)


@pytest.fixture(scope="module")
def numbers() -> Iterator["psycopg.Connection[Any]"]:
    rows = KeptRows({"v": NUMBERS, "k": NUMBERS.select(["m", "id"])}, {"v": ("id",), "k": ("m",)})
    running = PostgresServer(rows, {"operator": PASSWORD}, Listen("127.0.0.1", 0))
    with connected(running) as connection:
        yield connection
    running.close()


@pytest.mark.parametrize("binary", [False, True])
def test_decimal_parameters_keep_all_digits(numbers: "psycopg.Connection[Any]", binary: bool) -> None:
    def asked(query: str, *values: Any) -> Any:
        return numbers.execute(query, values, binary=binary).fetchall()

    for number, m in enumerate(NUMBERS["m"].to_pylist(), start=1):
        assert asked("SELECT id FROM v WHERE m = %s", m) == [(number,)]
        assert asked("SELECT id FROM k WHERE m = %s", m) == [(number,)]
        assert asked("SELECT id FROM k WHERE m = ANY(%s)", [m, Decimal("5E-18")]) == [(number,)]
    assert asked("SELECT id FROM v WHERE p IN (%s, %s)", Decimal("1.23450001"), Decimal("1.2344")) == [(2,)]
    assert asked("SELECT id FROM v WHERE p = ANY(%s)", [Decimal("1.23450001"), Decimal("1.2344"), None]) == [(2,)]
    assert asked("SELECT count(*) FROM v WHERE p <> ALL(%s)", [Decimal("1.23450001")]) == [(3,)]
    with pytest.raises(psycopg.DataError, match="out of range"):  # 50 digits would be compared
        asked("SELECT id FROM v WHERE m = %s", Decimal("1E-30"))
    assert asked("SELECT id FROM v WHERE p BETWEEN %s AND %s", Decimal("0.00041"), Decimal("1.23449")) == [(2,)]
    assert asked("SELECT %s + p FROM v WHERE id = 3", Decimal("0.00000001")) == [(Decimal("0.00040001"),)]
    for text in ("1.23456789", "-123456789012345678901234567890.12345678", "1E-38", "1E+37", "0", "-0.50"):
        assert asked("SELECT %s, %s::numeric", Decimal(text), Decimal(text)) == [(Decimal(text),) * 2]
    for text in ("NaN", "Infinity", "1E-39", "1E+38", "1." + "1" * 38):
        with pytest.raises(psycopg.DataError, match=r"digits of a DECIMAL|finite"):
            asked("SELECT %s", Decimal(text))


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT 1.23456789::numeric", "1.23456789"),
        ("SELECT CAST('1.23456789' AS numeric)", "1.23456789"),
        ("SELECT '12345678901234567890'::numeric", "12345678901234567890"),
        ("SELECT m::numeric FROM v WHERE id = 2", "1E-18"),
        ("SELECT max(m)::numeric FROM v", str(LONG)),
        ("SELECT sum(p::numeric) FROM v WHERE id IN (1, 3)", "1.2349"),
        ("SELECT x::numeric FROM v WHERE id = 2", "12345.6789"),
        ("SELECT round(x::numeric, 3) FROM v WHERE id = 2", "12345.679"),
        ("SELECT (x * 2)::numeric FROM v WHERE id = 3", "0.2"),
        ("SELECT f::numeric FROM v WHERE id = 1", "0.1"),
        ("SELECT (id + 1)::numeric FROM v WHERE id = 2", "3"),
        ("SELECT (id::text || '.25')::numeric(9, 2) FROM v WHERE id = 2", "2.25"),
        ("SELECT p::text::numeric FROM v WHERE id = 1", "1.2345"),
        ("SELECT count(*)::numeric FROM v WHERE m = 1e-18", "1"),
        ("SELECT id FROM v WHERE p = '1.2345'", "1"),
        ("SELECT count(*) FROM v WHERE p = '1.23450001'", "0"),
        ("SELECT coalesce(NULL::numeric, p)::numeric FROM v WHERE id = 1", "1.2345"),
    ],
)
def test_a_numeric_without_digits_keeps_those_of_its_value(
    numbers: "psycopg.Connection[Any]", query: str, value: str
) -> None:
    assert numbers.execute(query).fetchall() == [(Decimal(value),)]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT x::numeric FROM v WHERE id = 4", "more than 18 places"),
        ("SELECT 'abc'::numeric", "no value of type NUMERIC"),
        ("SELECT upper('1.5')::numeric", "give them, NUMERIC"),
        ("SELECT 1.111111111111111111111111111111111111111", "too many digits"),
        ("SELECT id FROM v WHERE id = '1.5'", "no whole number"),
        ("SELECT id FROM v WHERE id IN ('1', '1.5')", "no whole number"),
        ("SELECT id FROM v WHERE f = '1e300'", "no value of type FLOAT"),
        ("SELECT id FROM v WHERE day = '2026-03-08 23:00:00'", "a time, and no date"),
    ],
)
def test_a_value_that_would_be_rounded_is_refused(numbers: "psycopg.Connection[Any]", query: str, why: str) -> None:
    with pytest.raises(psycopg.Error, match=why):
        numbers.execute(query)


@pytest.mark.parametrize("column", ["id", "f", "day"])
def test_a_text_parameter_that_the_column_cannot_hold_finds_nothing(
    numbers: "psycopg.Connection[Any]", column: str
) -> None:
    text = {"id": "1.5", "f": "1e300", "day": "2026-03-08 23:00:00"}[column]
    with pytest.raises(psycopg.DataError, match="is no value of its type"):
        numbers.execute(f"SELECT id FROM v WHERE {column} = %s", (text,))
