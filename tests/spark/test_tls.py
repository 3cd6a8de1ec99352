"""An app with a certificate on Spark: everything that listens and everything that calls it speaks TLS, and goes on to
through rescales."""

import ssl
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow.flight as flight
import pytest
from tls_kit import AUTHORITY, FILES, ISSUED_KEY, OWN

import upriver
from upriver import App
from upriver.client.client import Client
from upriver.errors import AccessDenied, UserError
from upriver.options import Doors, Tls
from upriver.spark.scan import UpriverDataSource

pytestmark = pytest.mark.spark

CERTIFICATE = Tls(certificate=FILES / "for_servers.pem", key=ISSUED_KEY)
"""As a public authority issues it: for servers alone."""
TOTALS = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
ROWS = [{"customer": customer, "n": 25} for customer in range(4)]


def check_doors(app: App) -> None:
    with httpx.Client(verify=ssl.create_default_context(cafile=str(AUTHORITY))) as caller:
        bearer = {"authorization": f"Bearer {app.token}"}
        assert caller.get(f"https://{app.http_address}/v1/status", headers=bearer).status_code == 200
    host, _, port = app.postgres_address.rpartition(":")
    told = f"host={host} port={port} user=reader sslmode=verify-full sslrootcert={AUTHORITY}"
    with psycopg.connect(told, password=app.token) as postgres:
        assert postgres.execute("SELECT n FROM kept WHERE customer = 3").fetchall() == [(25,)]
    roots = AUTHORITY.read_bytes()
    with flight.FlightClient(f"grpc+tls://{app.flight_address}", tls_root_certs=roots) as client:
        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("reader", app.token)])
        assert client.do_get(flight.Ticket(b'{"view": "kept"}'), options).read_all().num_rows == 4


def check_client(client: Client) -> None:
    assert client.lookup("totals", [1, 2]).sort_by("customer").to_pylist() == ROWS[1:3]
    assert client.lookup_one("kept", 3) == ROWS[3]
    assert client.query("SELECT sum(n) AS s FROM kept").to_pylist() == [{"s": 100}]
    assert sum(batch.num_rows for batch in client.scan("kept")) == 4


def check_reads(spark: Any, app: App) -> None:
    def sorted_rows(rows: Any) -> list[dict[str, Any]]:
        return [row.asDict() for row in rows.orderBy("customer").collect()]

    for view in ("kept", "totals"):
        assert sorted_rows(app.read(view)) == ROWS
    spark.dataSource.register(UpriverDataSource)
    given = {"address": app.address, "token": app.token, "view": "kept", "tls": str(AUTHORITY)}
    assert sorted_rows(spark.read.format("upriver").options(**given).load()) == ROWS
    refused = {name: value for name, value in given.items() if name != "tls"}
    with pytest.raises(Exception, match=r"speaks TLS: give tls="):
        spark.read.format("upriver").options(**refused).load()


def test_an_app_with_a_certificate(spark: Any, tmp_path: Path) -> None:
    orders = spark.range(100).selectExpr("id", "id % 4 AS customer")
    doors = Doors(http="127.0.0.1:0", postgres="127.0.0.1:0", flight="127.0.0.1:0")
    with App(spark, str(tmp_path / "lake"), workers=2, vnodes=16, doors=doors, tls=CERTIFICATE) as app:
        app.table("orders", orders, key="id")
        app.view("totals", TOTALS, "customer")
        kept = app.view("kept", TOTALS, "customer", partial=False)
        app.start(wait=True)
        assert sorted(row.n for row in kept.collect()) == [25] * 4
        for tls, error in ((None, UserError), (OWN, AccessDenied), (True, AccessDenied)):
            with pytest.raises(error, match=r"TLS|not trusted"):
                upriver.connect(app.address, app.token, tls=tls)
        with upriver.connect(app.address, app.token, tls=AUTHORITY) as client:
            check_client(client)
            check_doors(app)
            for workers in (3, 2):
                assert client.rescale(workers).wait(timeout=120)["outcome"] == "finished"
                check_client(client)
            check_reads(spark, app)
        shown = [*map(str, spark.sparkContext.getConf().getAll()), str(app.status()), repr(app), repr(app._config)]
        secret = ISSUED_KEY.read_text().splitlines()[1]
        assert not [text for text in shown if secret in text or "PRIVATE KEY" in text]
