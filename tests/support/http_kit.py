"""What tests of the HTTP door share: an app of canned answers behind a real client, and callers of the door."""

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
from client_kit import Cluster, View
from rescale_kit import Coordinator
from server_kit import SECONDS_MAX, TOKEN

from upriver.doors.gateway import Gateway
from upriver.doors.http.server import HttpServer
from upriver.net.lookups import ViewRoute
from upriver.net.server import Listen

READER_TOKEN = "only-for-readers"
BEARER = {"authorization": f"Bearer {TOKEN}"}
READER = {"authorization": f"Bearer {READER_TOKEN}"}
EXPLAINED: Mapping[str, Any] = {
    "sql": "SELECT tailnum, count(*) AS flights FROM flights GROUP BY tailnum",
    "key": ["tailnum"],
    "ignored": [],
    "regions": [
        {
            "region": "planes",
            "depth": 0,
            "routing_key": ["tailnum"],
            "why": "its key",
            "inputs": [],
            "steps": [],
            "keeps": None,
            "sends": [],
            "state": "full",
            "why_state": "every key is kept: partial=False",
        }
    ],
    "indexes": [{"table": "flights", "columns": ["tailnum"], "new": False}],
    "retention": [],
    "functions": [],
}
DAYS = View(
    ViewRoute(
        ("customer", "day"),
        pa.schema(
            [
                ("customer", pa.int64()),
                ("day", pa.date32()),
                ("total", pa.decimal128(10, 2)),
                ("at", pa.timestamp("us", "Europe/Berlin")),
            ]
        ),
        ("orders",),
    ),
    [
        (1, datetime.date(2026, 1, 1), Decimal("17.50"), datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)),
        (1 << 60, datetime.date(2026, 1, 2), None, None),
    ],
)


class HttpApp:
    """Two workers and a coordinator, whose views are :mod:`client_kit`'s and ``days``, and a door."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.evicted: list[Mapping[str, Any]] = []
        self.told_status: dict[str, Any] = {"epoch": 5, "rescale": None}
        actions = {
            **self.coordinator.actions(),
            "explain": lambda asked: {**EXPLAINED, "view": asked["view"]},
            "status": lambda _: self.told_status,
            "rescales": lambda _: {"rescales": []},
            "evict": self._evict,
        }
        self.cluster = Cluster(2, actions)
        self.cluster.views["days"] = DAYS
        self.client = self.cluster.connect()
        self.gateway = Gateway(self.client, TOKEN, READER_TOKEN)
        self.server = HttpServer(self.gateway, Listen())

    def _evict(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.evicted.append(asked)
        return {}

    def caller(self, headers: Mapping[str, str] = BEARER) -> httpx.Client:
        """A caller; also a context manager."""
        return httpx.Client(base_url=f"http://{self.server.address}", headers=dict(headers), timeout=SECONDS_MAX)

    def stop(self) -> None:
        self.server.close()
        self.client.close()
        self.cluster.stop()
