"""An S3 server on loopback, in a process of its own: ``s3_server.py BUCKET`` says its port, and ends with its input.

``moto`` looks for an object before it creates it, and does no more to part two creates at once. Here one request is
answered at a time, as if each were atomic.

A line of input, ``lose NAME``: the next put of a path with this end is carried out, and its answer lost. Below a
directory ``overwrites``, a put is never conditional.
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

    def lose(self, name: str) -> None:
        """Lose the answer to the next PUT of a path with this end."""
        with self._lock:
            self._lost.append(name)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        if "/overwrites/" in environ["PATH_INFO"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self._lock:
            answer = list(self._application(environ, start_response))
            for name in self._lost:
                if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(name):
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
        application.lose(line.split()[1])
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
