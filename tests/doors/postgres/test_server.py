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
import pytest
from doors_kit import ENDLESS, FREED_S_MAX, KeptRows, WatchedRows
from postgres_kit import PASSWORD, asking_to_cancel, startup

from upriver.doors.postgres import server as servers
from upriver.doors.postgres.server import PostgresServer
from upriver.doors.query_processes import QUERIES_MAX
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


def connected(door: PostgresServer, password: str = PASSWORD) -> "psycopg.Connection[Any]":
    host, _, port = door.address.rpartition(":")
    return psycopg.connect(f"host={host} port={port} user=reader dbname=upriver password={password}", autocommit=True)


def test_psycopg_gets_rows_of_keys_by_parameters(door: PostgresServer) -> None:
    with connected(door) as connection:
        assert connection.info.parameter_status("TimeZone") == "Europe/Berlin"
        cursor = connection.execute("SELECT * FROM totals WHERE customer = %s AND n > %s", ("ada", 1))
        assert cursor.fetchall() == [("ada", 2, Decimal("17.50"))]
        assert [column.name for column in cursor.description or []] == ["customer", "n", "total"]
        cursor = connection.execute("SELECT n FROM totals WHERE customer = ANY(%s) ORDER BY n", (["ada", "bob"],))
        assert cursor.fetchall() == [(1,), (2,)]


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
        callers = [connected(watched) for _ in range(QUERIES_MAX)]
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


def test_strangers_are_few_and_a_full_server_serves_its_callers() -> None:
    door = PostgresServer(KeptRows(), {"operator": PASSWORD}, Listen("127.0.0.1", 0))
    host, _, port = door.address.rpartition(":")
    try:
        with connected(door) as connection:
            strangers = [socket.create_connection((host, int(port))) for _ in range(servers.UNPROVED_MAX)]
            for stranger in strangers:
                stranger.sendall(startup())
                assert stranger.recv(1) == b"R"
            one_more = socket.create_connection((host, int(port)))
            assert one_more.recv(1) == b""
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
            for stranger in (*strangers, one_more):
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
