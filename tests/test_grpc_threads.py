"""Who reads the sockets of Arrow Flight. In processes of their own: gRPC reads its switches once."""

import os
import subprocess
import sys

from upriver.shell.grpc_threads import VARIABLE, WHO_WAITS_READS

CALLS = 200
PROGRAM = f"""
import os
from pathlib import Path
from upriver.shell.flight import FlightBase
from upriver.shell.remote import PING, Connection, Remote

def pool_wakeups():
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "event_engine\\n"]
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

with FlightBase("token") as server, Connection(Remote.parse(server.address, "token")) as connection:
    connection.act(PING, timeout=10.0)
    before = pool_wakeups()
    for _ in range({CALLS}):
        connection.act(PING, timeout=10.0)
    print(os.environ[{VARIABLE!r}], pool_wakeups() - before)
"""


def played(switches: str | None) -> tuple[str, int, str]:
    """The switches that were in force, how often threads of gRPC's pool were woken, and what stderr has."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if switches is not None:
        environment[VARIABLE] = switches
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    in_force, wakeups = run.stdout.rsplit(maxsplit=1)
    return in_force, int(wakeups), run.stderr


def test_who_waits_reads_and_no_thread_of_a_pool_is_woken_for_it() -> None:
    in_force, wakeups, complaints = played(None)
    assert in_force == WHO_WAITS_READS
    assert wakeups < CALLS / 2
    assert complaints == ""


def test_switches_of_the_users_own_are_left_alone() -> None:
    in_force, wakeups, _ = played("-event_engine_listener")
    assert in_force == "-event_engine_listener"
    assert wakeups > CALLS
