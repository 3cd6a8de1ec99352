"""An app of Spark over PostgreSQL's wire and Arrow Flight: full and partial views, by key and by scans."""

import socket
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.flight as flight
import pytest

from upriver import App
from upriver.doors.flight.protobuf import encoded, wrapped
from upriver.doors.flight.sql import PACKAGE
from upriver.errors import ClusterError, DeclarationError
from upriver.options import Doors

pytestmark = pytest.mark.spark


def test_an_app_answers_at_both_doors_as_long_as_it_runs(spark: Any, tmp_path: Path) -> None:
    orders = spark.range(100).selectExpr("id", "id % 4 AS customer", "CAST(id AS DECIMAL(10,2)) AS amount")
    app = App(
        spark, str(tmp_path / "lake"), workers=2, vnodes=16, doors=Doors(postgres="127.0.0.1:0", flight="127.0.0.1:0")
    )
    app.table("orders", orders, key="id")
    totals = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
    app.view("totals", totals, "customer")
    app.view("kept", totals, "customer", partial=False)
    with pytest.raises(DeclarationError, match="not running"):
        _ = app.postgres_address
    with app.start(wait=True):
        host, _, port = app.postgres_address.rpartition(":")
        with psycopg.connect(f"host={host} port={port} user=reader", password=app.token, autocommit=True) as postgres:
            for view in ("totals", "kept"):
                keyed = postgres.execute(f"SELECT n FROM {view} WHERE customer IN (%s, %s)", (1, 9))
                assert keyed.fetchall() == [(25,)]
                assert postgres.execute(f"SELECT count(*), sum(n) FROM {view}").fetchall() == [(4, 100)]
            app.view("more", "SELECT id, amount FROM orders", "id")
            assert len(postgres.execute("SELECT * FROM more LIMIT 7").fetchall()) == 7
        with flight.FlightClient(f"grpc://{app.flight_address}") as client:
            options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("reader", app.token)])
            scan = client.do_get(flight.Ticket(b'{"view": "kept"}'), options).read_all()
            assert sorted(scan["customer"].to_pylist()) == [0, 1, 2, 3]
            found = client.do_get(flight.Ticket(b'{"view": "totals", "keys": [[3], [2]]}'), options).read_all()
            assert found["customer"].to_pylist() == [3, 2]
            assert found.schema.metadata[b"upriver.sources"] == b"running"
            query = encoded([(1, b"SELECT n FROM totals WHERE customer IN (1, 9)")])
            command = flight.FlightDescriptor.for_command(wrapped(f"{PACKAGE}CommandStatementQuery", query))
            (endpoint,) = client.get_flight_info(command, options).endpoints
            assert client.do_get(endpoint.ticket, options).read_all().to_pylist() == [{"n": 25}]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))


@pytest.mark.parametrize("door", ["postgres", "flight"])
def test_an_address_that_is_taken_fails_the_start(spark: Any, tmp_path: Path, door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=4, doors=Doors(**{door: address}))  # type: ignore[arg-type]
        app.table("numbers", spark.range(3), key="id")
        with pytest.raises(ClusterError, match=f"{door}: {address}: cannot listen"):
            app.start()
