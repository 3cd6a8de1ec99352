"""Which threads move the bytes of Arrow Flight: those that wait for them.

gRPC's default is a pool of threads that read and write all sockets and wake whoever waits. A lookup is one small
message each way, so what it takes is mostly wake-ups; with those by the waiting threads alone an echo took 60% of the
time, and half of the processor's (``docs/performance.md``).
"""

import os

VARIABLE = "GRPC_EXPERIMENTS"
"""Where gRPC reads its switches, once in a process."""
WHO_WAITS_READS = "-event_engine_client,-event_engine_listener"


def let_who_waits_read() -> None:
    """To be called before gRPC is first used in the process; has no effect later, nor if the user has set switches."""
    os.environ.setdefault(VARIABLE, WHO_WAITS_READS)
