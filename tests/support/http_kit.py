"""What tests of the HTTP door share: an app of canned answers behind a real client, and callers of the door."""

import datetime
import ssl
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
from client_kit import EPOCH, Cluster, View
from rescale_kit import Coordinator
from server_kit import SECONDS_MAX, TOKEN

from upriver.doors.gateway import Gateway
from upriver.doors.http.server import HttpServer
from upriver.ids import Epoch
from upriver.net.gate import CallerGate
from upriver.net.server import Listen
from upriver.options import Tls, Tokens
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import ViewRoute

READER_TOKEN = "only-for-readers"
COMMITTED_AT = datetime.datetime(2026, 1, 3, 12, tzinfo=datetime.UTC).timestamp()
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that use none: each would load all certificates of the system."""
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

    def __init__(self, root: str | None = None, tls: Tls | None = None, gate: CallerGate | None = None) -> None:
        self.coordinator = Coordinator()
        self.evicted: list[Mapping[str, Any]] = []
        self.status_calls = 0
        self.told_status: dict[str, Any] = {"epoch": 5, "rescale": None}
        self.cluster = Cluster(2, self._actions())
        self.cluster.views["days"] = DAYS
        orders = TableFreshness(state="running", age_s=0.4, cause="", lacks=None)
        self.cluster.freshness = FreshnessReport(Epoch(EPOCH), {"orders": orders})
        for worker in self.cluster.workers.values():
            worker.committed_at = COMMITTED_AT
        self.client = self.cluster.connect()
        self.gateway = Gateway(lambda: self.client, Tokens(operator=TOKEN, reader=READER_TOKEN), root)
        self.server = HttpServer(self.gateway, Listen(), tls, gate)

    def _actions(self) -> Mapping[str, Any]:
        """What the coordinator answers."""
        return {
            **self.coordinator.actions(),
            "explain": lambda asked: {**EXPLAINED, "view": asked["view"]},
            "status": self._status,
            "rescales": lambda _: {"rescales": []},
            "views": lambda _: {"views": []},
            "metrics": lambda _: {"text": "upriver_epoch 5\n"},
            "evict": self._evict,
        }

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self.status_calls += 1
        return self.told_status

    def _evict(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.evicted.append(asked)
        return {}

    def caller(self, headers: Mapping[str, str] = BEARER) -> httpx.Client:
        """A caller; also a context manager."""
        base = f"http://{self.server.address}"
        return httpx.Client(base_url=base, headers=dict(headers), timeout=SECONDS_MAX, verify=NO_TLS)

    def stop(self) -> None:
        self.server.close()
        self.client.close()
        self.cluster.stop()
