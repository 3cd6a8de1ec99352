"""The doors of an app of canned answers, in a process with few descriptors: ``python door_process.py FILES TLS``.

It prints the addresses as JSON, and ends with stdin. FILES: that it may open at one time. TLS: ``tls`` or ``clear``.
"""

import json
import resource
import sys
from pathlib import Path

from doors_kit import KeptRows
from http_kit import HttpApp
from server_kit import TOKEN

from upriver.doors.flight.server import FlightDoor
from upriver.doors.postgres.server import PostgresServer
from upriver.net.server import Listen
from upriver.options import Tls

FILES = Path(__file__).parent / "tls"


def main(files: int, is_encrypted: bool) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    tls = Tls(certificate=FILES / "certificate.pem", key=FILES / "key.pem") if is_encrypted else None
    app = HttpApp(tls=tls)
    postgres = PostgresServer(KeptRows(), {"operator": TOKEN}, Listen(), tls)
    flight = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen(), tls)
    told = {"http": app.server.address, "postgres": postgres.address, "flight": flight.address}
    print(json.dumps({**told, "native": app.cluster.coordinator.address}), flush=True)
    sys.stdin.read()
    flight.close()
    postgres.close()
    app.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "tls")
