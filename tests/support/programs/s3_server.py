"""An S3 server on loopback, in a process of its own: ``s3_server.py BUCKET`` says its port, and ends with its input.

``moto`` looks for an object before it creates it, and does no more to part two creates at once. Here one request is
answered at a time, as if each were atomic.

Lines of input: ``lose NAME``: the next put of a path with this end is carried out, and its answer lost. ``hold NAME``:
a put of such a path stays unanswered; ``held`` is said once there is one. ``drop``: what is held is not carried out.
``delay NAME``: the next put of such a path is held, and no other; ``land``: it is carried out.
Below a directory ``overwrites``, a put is never conditional.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import Client

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]


class OneAtATime:
    """The server's application."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._lost: list[str] = []
        self._held: str | None = None
        self._delayed: str | None = None
        self._may_land = threading.Event()
        self._may_go = threading.Event()

    def hold(self, name: str) -> None:
        """Hold each PUT of a path with this end, until ``drop``."""
        self._may_go.clear()
        self._held = name

    def drop(self) -> None:
        """Carry out no PUT that is held, and hold no others."""
        self._held = None
        self._may_go.set()

    def delay(self, name: str) -> None:
        """Hold the next PUT of a path with this end, until ``land``."""
        self._may_land.clear()
        self._delayed = name

    def land(self) -> None:
        """Carry out the PUT that was delayed."""
        self._may_land.set()

    def lose(self, name: str) -> None:
        """Lose the answer to the next PUT of a path with this end."""
        with self._lock:
            self._lost.append(name)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        is_put, path = environ["REQUEST_METHOD"] == "PUT", environ["PATH_INFO"]
        if is_put and self._held is not None and path.endswith(self._held):
            print("held", flush=True)
            self._may_go.wait()
            raise ConnectionError("the request is dropped")
        if is_put and self._delayed is not None and path.endswith(self._delayed):
            self._delayed = None
            print("held", flush=True)
            self._may_land.wait()
        if "/overwrites/" in path:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            answer = list(self._application(environ, start_response))
            for name in self._lost:
                if is_put and path.endswith(name):
                    self._lost.remove(name)
                    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                    raise ConnectionError("the answer is lost")
        return answer


def main(bucket: str) -> None:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    assert Client(application).put(f"/{bucket}").status_code == 200
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["lose", name]:
                application.lose(name)
            case ["hold", name]:
                application.hold(name)
            case ["delay", name]:
                application.delay(name)
            case ["land"]:
                application.land()
            case _:
                application.drop()
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
