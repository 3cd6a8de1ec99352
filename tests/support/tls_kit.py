"""Certificates of tests. They open nothing but these tests, and are good for a hundred years, but ``expired``."""

import socket
import threading
import time
from pathlib import Path

from upriver.net.tls import TlsIdentity, TlsSocket, TlsTrust

SECONDS_MAX = 10.0

FILES = Path(__file__).parent / "tls"
OWN, OWN_KEY = FILES / "certificate.pem", FILES / "key.pem"
"""Of localhost and 127.0.0.1, self-signed."""
AUTHORITY = FILES / "authority.pem"
ISSUED_KEY = FILES / "issued_key.pem"
"""Of all that the authority has issued: ``issued``, ``for_servers`` (which callers cannot show), ``elsewhere`` (of
another host) and ``expired``."""

IDENTITY = TlsIdentity(OWN.read_bytes(), OWN_KEY.read_bytes())


def issued(name: str, roots: Path | None = AUTHORITY) -> TlsIdentity:
    """A certificate of the authority. roots: what the app's processes trust; ``None``: the certificate itself."""
    certificate = (FILES / f"{name}.pem").read_bytes()
    return TlsIdentity(certificate, ISSUED_KEY.read_bytes(), None if roots is None else roots.read_bytes())


def client_trust(roots: Path = OWN, host: str = "127.0.0.1") -> TlsTrust:
    return TlsTrust.of_client(roots, host)


def tls_sockets(identity: TlsIdentity = IDENTITY) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection after its handshake, the server's first. Its socket blocks, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connected = socket.create_connection(listener.getsockname())
        server = TlsSocket.of_server(listener.accept()[0], identity.server_context())
    made: list[TlsSocket] = []
    give_up_at = time.monotonic() + SECONDS_MAX
    calling = threading.Thread(target=lambda: made.append(TlsSocket.of_caller(connected, identity.trust, give_up_at)))
    calling.start()
    assert server.shake_hands()
    calling.join()
    return server, made[0]
