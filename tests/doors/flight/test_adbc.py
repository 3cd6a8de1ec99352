"""Flight SQL as ADBC's driver speaks it."""

import datetime
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from doors_kit import ENDLESS, FREED_S_MAX, TOTALS, KeptRows, WatchedRows

from upriver.doors.flight.server import FlightDoor
from upriver.doors.query_processes import QUERIES_MAX
from upriver.net.server import Listen

TOKEN = "s3cret-t0ken"
HEADER = "adbc.flight.sql.authorization_header"
ROWS = KeptRows()

dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi", reason="ADBC's driver of Flight SQL is not installed")


@pytest.fixture(scope="module")
def door() -> Iterator[FlightDoor]:
    running = FlightDoor(ROWS, lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    yield running
    running.close()


@pytest.fixture(scope="module")
def connection(door: FlightDoor) -> Iterator[Any]:
    login = {HEADER: f"Bearer {TOKEN}"}
    with dbapi.connect(f"grpc://{door.address}", db_kwargs=login, autocommit=True) as opened:
        yield opened


def test_queries_and_parameters_read_by_key(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM totals WHERE customer = 'ada'")
        assert cursor.fetch_arrow_table().equals(TOTALS.slice(0, 1))
        ROWS.read.clear()
        cursor.execute("SELECT n FROM totals WHERE customer = ? AND total > ?", ("bob", 0.5))
        assert cursor.fetchall() == [(1,)]
        assert ROWS.read == {"totals": {("bob",)}}
        cursor.execute("SELECT n FROM totals WHERE customer = ANY(?)", (["ada", "bob"],))
        assert sorted(cursor.fetchall()) == [(1,), (2,)]
        assert ROWS.read == {"totals": {("ada",), ("bob",)}}


def test_a_password_is_a_token(door: FlightDoor) -> None:
    login = {"username": "reader", "password": TOKEN}
    with (
        dbapi.connect(f"grpc://{door.address}", db_kwargs=login, autocommit=True) as opened,
        opened.cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM totals")
        assert cursor.fetchall() == [(4,)]


def test_the_catalog_is_shown(connection: Any) -> None:
    assert connection.adbc_get_table_schema("totals") == TOTALS.schema
    (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    (schema,) = catalog["catalog_db_schemas"]
    columns = {
        table["table_name"]: [column["column_name"] for column in table["table_columns"]]
        for table in schema["db_schema_tables"]
    }
    assert (catalog["catalog_name"], schema["db_schema_name"]) == ("upriver", "public")
    assert columns == {
        "Routes": ["origin", "dest", "at", "delays"],
        "everything": ["n"],
        "totals": ["customer", "n", "total"],
    }
    assert connection.adbc_get_table_types() == ["VIEW"]
    assert connection.adbc_get_info()["vendor_name"] == "Upriver"


def test_polars_reads_a_query(connection: Any) -> None:
    query, options = "SELECT customer, n FROM totals WHERE customer = ?", {"parameters": ["ada"]}
    found = pl.read_database(query, connection, execute_options=options)
    assert found.to_dicts() == [{"customer": "ada", "n": 2}]


def test_mistakes_and_writes_have_errors_of_their_own(connection: Any) -> None:
    with connection.cursor() as cursor:
        with pytest.raises(dbapi.ProgrammingError, match="UnknownView: no view 'nothing'"):
            cursor.execute("SELECT * FROM nothing")
        with pytest.raises(dbapi.ProgrammingError, match="views are only read here"):
            cursor.execute("DELETE FROM totals")
        with pytest.raises(dbapi.NotSupportedError, match="this server of Flight SQL only reads"):
            cursor.adbc_ingest("totals", TOTALS)
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_a_wrong_token_is_refused(door: FlightDoor) -> None:
    with (
        dbapi.connect(f"grpc://{door.address}", db_kwargs={HEADER: "Bearer wrong"}, autocommit=True) as opened,
        opened.cursor() as cursor,
        pytest.raises(dbapi.ProgrammingError, match="show the app's token"),
    ):
        cursor.execute("SELECT 1")


def test_a_query_that_is_cancelled_leaves_its_place() -> None:
    rows = WatchedRows()
    door = FlightDoor(rows, lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    login = {HEADER: f"Bearer {TOKEN}", "adbc.flight.sql.rpc.timeout_seconds.fetch": str(FREED_S_MAX)}
    try:
        with dbapi.connect(f"grpc://{door.address}", db_kwargs=login, autocommit=True) as opened:
            for _ in range(QUERIES_MAX + 1):
                with opened.cursor() as cursor:
                    cancelling = threading.Thread(target=_cancel, args=(rows, cursor))
                    cancelling.start()
                    with pytest.raises(dbapi.Error, match=r"(?i)cancel"):
                        _read(cursor)
                    cancelling.join()
    finally:
        door.close()


def _read(cursor: Any) -> None:
    cursor.execute(ENDLESS)
    cursor.fetchall()


def _cancel(rows: WatchedRows, cursor: Any) -> None:
    """Once the query has begun."""
    if rows.begun.acquire(timeout=FREED_S_MAX):
        cursor.adbc_cancel()


NUMBERS = pa.table(
    {
        "id": pa.array([1, 2], pa.int32()),
        "p": pa.array([Decimal("1.2345"), Decimal("0.0004")], pa.decimal128(12, 4)),
        "f": pa.array([float("inf"), 0.5], pa.float32()),
        "day": pa.array([datetime.date(2026, 3, 8), None]),
    }
)


@pytest.fixture(scope="module")
def numbers() -> Iterator[Any]:
    door = FlightDoor(KeptRows({"v": NUMBERS}, {"v": ("id",)}), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    login = {HEADER: f"Bearer {TOKEN}"}
    with (
        dbapi.connect(f"grpc://{door.address}", db_kwargs=login, autocommit=True) as opened,
        opened.cursor() as cursor,
    ):
        yield cursor
    door.close()


@pytest.mark.parametrize(
    ("where", "value", "ids"),
    [
        ("p = ?", pa.scalar(Decimal("1.23450001")), []),
        ("p = ?", pa.scalar(Decimal("1.2345")), [1]),
        ("p = ANY(?)", pa.scalar([Decimal("1.23450001"), Decimal("0.00040000")]), [2]),
        ("p = ?", "1.23450001", []),
        ("p = ?", "0.0004", [2]),
        ("p > ?::numeric", pa.scalar(Decimal("1.23449999999999999999")), [1]),
        ("f = ?", 1e300, []),
        ("f = ?", 0.5, [2]),
        ("f = ANY(?)", pa.scalar([1e300, 0.5]), [2]),
        ("id = ?", 1.5, []),
        ("id = ANY(?)", pa.scalar([1.5, 2.5]), []),
        ("id = ANY(?)", pa.scalar(["1", "2"]), [1, 2]),
        ("day = ?", pa.scalar(datetime.datetime(2026, 3, 8, 23)), []),
        ("day = ?", pa.scalar(datetime.date(2026, 3, 8)), [1]),
    ],
)
def test_a_parameter_is_not_rounded_to_a_column_s_type(numbers: Any, where: str, value: Any, ids: list[int]) -> None:
    bound = pa.record_batch([pa.array([value], value.type)] if isinstance(value, pa.Scalar) else [[value]], ["1"])
    numbers.execute(f"SELECT id FROM v WHERE {where} ORDER BY id", bound)
    assert numbers.fetchall() == [(number,) for number in ids]


@pytest.mark.parametrize(("where", "value"), [("id = ?", "1.5"), ("id = ?", "0x1"), ("day = ?", "2026-03-08 23:00:00")])
def test_a_text_that_is_no_value_of_the_column_is_refused(numbers: Any, where: str, value: str) -> None:
    with pytest.raises(dbapi.Error, match="parameter 1 is no"):
        numbers.execute(f"SELECT id FROM v WHERE {where}", (value,))
