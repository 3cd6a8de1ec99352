"""A server in a process with little to spend: ``python server_process.py MEMORY_BYTES FILES``.

It prints its port, then answers lookups, and the call ``files``, which opens some files as a lake would. MEMORY_BYTES:
that it may take beside what it has when it is up; 0 for any. FILES: that it may open at one time. It ends with stdin.
"""

import resource
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from lookup_kit import Answering, Given, KeysAsked
from server_kit import KEYS

from upriver.net.handshake import Purpose
from upriver.net.lookups import LookupService
from upriver.net.server import Calls, Server, Service

LAKE_FILES = 10
STACK_BYTES = 256 << 10


def lookup(wanted: KeysAsked) -> Given:
    return Given.of(wanted.keys)


def open_files(_: Mapping[str, Any]) -> Mapping[str, Any]:
    with ExitStack() as opened:
        for _number in range(LAKE_FILES):
            opened.enter_context(Path(__file__).open())
    return {"opened": LAKE_FILES}


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(memory_bytes: int, files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    threading.stack_size(STACK_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())
    services: dict[Purpose, Service] = {
        Purpose.LOOKUPS: LookupService(Answering(lookup)),
        Purpose.CALLS: Calls({"files": open_files}),
    }
    with Server(KEYS, services) as server:
        print(server.port, flush=True)
        sys.stdin.readline()
        if memory_bytes:
            may = address_space() + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (may, may))
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
