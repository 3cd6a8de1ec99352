"""An app of Spark over HTTP: opened when it is up, closed first, and never in the way of the process's end."""

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from upriver import App
from upriver.errors import ClusterError, DeclarationError
from upriver.options import Doors

pytestmark = pytest.mark.spark


def asked(app: App, path: str, body: Any = None) -> Any:
    """The answer to a caller with the app's token."""
    request = urllib.request.Request(
        f"http://{app.http_address}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {app.token}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_an_app_answers_over_http_as_long_as_it_runs(spark: Any, tmp_path: Path) -> None:
    orders = spark.range(100).selectExpr("id", "id % 4 AS customer", "CAST(id AS DECIMAL(10,2)) AS amount")
    app = App(spark, str(tmp_path / "lake"), workers=2, vnodes=16, doors=Doors(http="127.0.0.1:0"))
    app.table("orders", orders, key="id")
    app.view("totals", "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer", "customer")
    with pytest.raises(DeclarationError, match="not running"):
        _ = app.http_address
    with app.start(wait=True):
        address = app.http_address
        described = asked(app, "/v1/views/totals")
        assert described["columns"][-1] == {"name": "total", "type": "DECIMAL(20,2)"}
        assert described["is_partial"] is True
        assert "sum(amount)" in described["sql"]
        found = asked(app, "/v1/views/totals/lookup", {"keys": [1, 3], "max_age": 3600})
        assert found["rows"] == [
            {"customer": 1, "n": 25, "total": "1225.00"},
            {"customer": 3, "n": 25, "total": "1275.00"},
        ]
        assert (found["epoch"] > 0, found["committed_at"][-1], found["sources"]) == (True, "Z", "running")
        begun = asked(app, "/v1/rescale", {"workers": 3})
        assert asked(app, f"/v1/rescale?ticket={begun['ticket']}")["to"] == 3
        asked(app, "/v1/views/totals/evict", {"keys": None})
        assert asked(app, "/v1/views/totals?key=2")["rows"][0]["n"] == 25
        assert asked(app, "/v1/status")["tables"]["orders"]["rows"] == 100
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))


def test_a_port_that_is_taken_is_one_clear_error(spark: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=16, doors=Doors(http=f"127.0.0.1:{port}"))
        app.table("orders", spark.range(3), key="id")
        with pytest.raises(ClusterError, match=rf"^http: 127\.0\.0\.1:{port}: cannot listen there .*another port"):
            app.start()
    with pytest.raises(DeclarationError, match=r'Doors: http=.8080.: give "host:port"'):
        App(spark, str(tmp_path / "other"), doors=Doors(http="8080"))
