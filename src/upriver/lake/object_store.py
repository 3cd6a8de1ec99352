"""The files of a lake in an object store, through ``obstore`` (``pip install 'upriver[object-stores]'``).

The store itself decides which of two creates of one path is the first: a put is conditional and atomic. So there are no
unfinished files, and no lock. Two drivers find out by their terms which of them owns the root (rule lake.one_owner).

A put whose answer is lost may have been carried out. The next attempt then finds the path taken, and compares: the same
bytes are this process's own (rule lake.own_create_is_recognised). ``obstore`` repeats reads; puts are repeated here,
because only here it is known which attempt got which answer.
"""

import io
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from upriver.errors import DeclarationError, NotRead, NotWritten
from upriver.lake.address import ObjectAddress, Root, account_of, object_address
from upriver.lake.store_options import store_options

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

REQUEST_BYTES_MIN = 1 << 20
"""Bytes of a request over a network, if the file has so many: fewer take as long."""
CONNECT_S_MAX = 5.0
"""Seconds to connect."""
READ_STALL_S_MAX, READ_S_MAX = 20.0, 600.0
"""Seconds of a read without a byte, and of a whole read."""
READ_RETRIES_MAX, READ_RETRY_S_MAX = 5, 60.0
"""Retries of a read, and seconds from its beginning after which there is none."""
SMALL_BYTES_MAX = 8 << 20
"""A create of at most so many bytes has less time."""
SMALL_PUT_S_MAX, LARGE_PUT_S_MAX = 30.0, 600.0
"""Seconds of one attempt to create a small file, and a larger one."""
CREATE_TRIES_MAX, CREATE_RETRY_S_MAX = 6, 60.0
"""Attempts to create a file, and seconds from the first attempt after which there is no other."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
"""Seconds from a failed attempt to the next one, at first and at most; half of them are random."""
CLIENTS_MAX = 8
"""Stores that a process keeps open, with their connections."""
WHY_CHARS_MAX = 300
"""Characters of a store's own message that an error shows."""

EXTRA = "pip install 'upriver[object-stores]'"


@dataclass(frozen=True, slots=True)
class StoreClients:
    """Clients of one store and prefix. reads: repeats failed requests. small_puts, large_puts: never do."""

    reads: "ObjectStore"
    small_puts: "ObjectStore"
    large_puts: "ObjectStore"


def open_object_store(root: str, pause: Callable[[float], None] = time.sleep) -> "ObjectStoreFiles":
    """The files under a URI of an object store. Nothing is requested from the store. pause: waits between attempts.

    Raises DeclarationError for any other URI, for settings that the store does not take, and without ``obstore``.
    """
    address = object_address(root)
    assert address is not None, root
    options = dict(root.options) if isinstance(root, Root) else store_options(address, os.environ)
    if address.store == "azure":
        options["account_name"] = account_of(Root(root, options), address)
    return ObjectStoreFiles(_clients(address, str(root), tuple(sorted(options.items()))), str(root), pause)


@lru_cache(CLIENTS_MAX)
def _clients(address: ObjectAddress, root: str, options: tuple[tuple[str, str], ...]) -> StoreClients:
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise DeclarationError(
            f"root={root!r}: an object store needs obstore, which is not installed: {EXTRA}"
        ) from error
    retries: RetryConfig = {
        "max_retries": READ_RETRIES_MAX,
        "retry_timeout": timedelta(seconds=READ_RETRY_S_MAX),
        "backoff": {
            "init_backoff": timedelta(seconds=BACKOFF_S_MIN),
            "max_backoff": timedelta(seconds=BACKOFF_S_MAX),
            "base": 2,
        },
    }
    once: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    settings = dict(options)
    common: ClientConfig = {
        "connect_timeout": timedelta(seconds=CONNECT_S_MAX),
        "allow_http": settings.get("endpoint", "").startswith("http://"),
    }
    reading: ClientConfig = {
        **common,
        "read_timeout": timedelta(seconds=READ_STALL_S_MAX),
        "timeout": timedelta(seconds=READ_S_MAX),
    }
    try:
        return StoreClients(
            _store(address, settings, reading, retries),
            _store(address, settings, {**common, "timeout": timedelta(seconds=SMALL_PUT_S_MAX)}, once),
            _store(address, settings, {**common, "timeout": timedelta(seconds=LARGE_PUT_S_MAX)}, once),
        )
    except Exception as error:  # of no common class: each setting may be refused in its own way
        raise DeclarationError(f"root={root!r}: the store cannot be opened: {_why(error)}") from error


def _store(
    address: ObjectAddress, settings: dict[str, str], client: "ClientConfig", retries: "RetryConfig"
) -> "ObjectStore":
    from obstore.store import AzureStore, GCSStore, S3Store

    place: dict[str, Any] = {"prefix": address.prefix or None, "client_options": client, "retry_config": retries}
    match address.store:
        case "s3":
            return S3Store(address.bucket, config={**settings, "conditional_put": "etag"}, **place)  # type: ignore[arg-type]
        case "gs":
            return GCSStore(address.bucket, config=settings, **place)  # type: ignore[arg-type]
        case _:
            if address.domain and "endpoint" not in settings:
                settings = {**settings, "endpoint": f"https://{settings['account_name']}.blob.{address.domain}"}
            return AzureStore(address.bucket, config=settings, **place)  # type: ignore[arg-type]


class ReadFrom(io.RawIOBase):
    """A file of a store as Python's files are read. Each read is a request."""

    def __init__(self, files: "ObjectStoreFiles", path: str) -> None:
        self._files, self._path, self._at = files, path, 0
        self._size = files.read_into(path, [])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        wanted = view[: max(0, self._size - self._at)]
        if len(wanted):
            self._files.read_into(self._path, [(self._at, wanted)])
        self._at += len(wanted)
        return len(wanted)


class ObjectStoreFiles:
    """Files (:class:`upriver.lake.files.Files`) in an object store. Any thread may use them.

    root: for messages. pause: waits for so many seconds.
    """

    request_bytes_min = REQUEST_BYTES_MIN
    is_remote = True

    def __init__(self, clients: StoreClients, root: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._clients = clients
        self._root = root.rstrip("/")
        self._pause = pause

    # Writing

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        view = memoryview(content).cast("B")
        client = self._clients.small_puts if len(view) <= SMALL_BYTES_MAX else self._clients.large_puts
        give_up_at = time.monotonic() + CREATE_RETRY_S_MAX
        may_be_ours = False
        for attempt in range(CREATE_TRIES_MAX):
            if attempt:
                self._pause(_backoff(attempt))
            try:
                obstore.put(client, path, view, mode="create", use_multipart=False)
                return
            except AlreadyExistsError as error:
                failure: Exception = error
                if self._is_there(path):
                    if may_be_ours and memoryview(self.read(path)) == view:  # lake.own_create_is_recognised
                        return
                    raise FileExistsError(f"{self._root}/{path}") from None
                # Another create of the path is under way, and may fail.
            except (BaseError, OSError, ValueError) as error:
                failure, may_be_ours = error, True
                if _is_final(error):
                    break
            if time.monotonic() > give_up_at:
                break
        raise self._not_written(path, failure) from failure

    def remove(self, path: str) -> None:
        self.remove_all([path])

    def remove_all(self, paths: Iterable[str]) -> None:
        import obstore
        from obstore.exceptions import BaseError

        doomed = list(paths)
        if not doomed:
            return
        try:
            obstore.delete(self._clients.reads, doomed)
        except FileNotFoundError:
            # Some stores refuse the removal of an absent file, and may not have removed the others.
            for path in doomed if len(doomed) > 1 else ():
                self.remove_all([path])
        except (BaseError, OSError, ValueError) as error:
            raise self._not_written(doomed[0], error) from error

    def remove_directory(self, path: str) -> None:
        """A store has no directories."""

    def make_directory(self, path: str) -> None:
        """A store has no directories."""

    def lock(self) -> IO[str] | None:
        return None

    def _not_written(self, path: str, error: Exception) -> NotWritten:
        if _is_denied(error):
            way = "Let this process write there"
        elif isinstance(error, FileNotFoundError):
            way = "Make the bucket, or choose another root"
        else:
            way = "Check the store and the way to it"
        return NotWritten(
            f"{self._root}/{path}: cannot be written ({_why(error)}). {way}; if the app has failed, start it again on "
            "the same root: it continues where it was"
        )

    # Reading

    def read(self, path: str) -> pa.Buffer:
        import obstore

        with self._reading(path):
            return pa.py_buffer(obstore.get(self._clients.reads, path).bytes())

    def read_into(self, path: str, parts: Iterable[tuple[int, memoryview]]) -> int:
        import obstore

        wanted = [(first, memoryview(target).cast("B")) for first, target in parts]
        wanted = [(first, target) for first, target in wanted if len(target)]
        with self._reading(path):
            length = self._read_first(path, wanted)
            rest = [(first, target) for first, target in wanted[1:] if first < length]
            if rest:
                ends = [min(first + len(target), length) for first, target in rest]
                starts = [first for first, _ in rest]
                found = obstore.get_ranges(self._clients.reads, path, starts=starts, ends=ends)
                for (_, target), content in zip(rest, found, strict=True):
                    target[: len(content)] = memoryview(content)
            return length

    def _read_first(self, path: str, wanted: list[tuple[int, memoryview]]) -> int:
        """Fill the first part. Returns the file's length, which comes with the answer."""
        import obstore
        from obstore.exceptions import BaseError

        if not wanted:
            return int(obstore.head(self._clients.reads, path)["size"])
        first, target = wanted[0]
        try:
            found = obstore.get(self._clients.reads, path, options={"range": (first, first + len(target))})
        except (BaseError, ValueError):
            length = int(obstore.head(self._clients.reads, path)["size"])
            if first < length:
                raise
            return length  # the part is behind the end
        content = memoryview(found.bytes())
        target[: len(content)] = content
        return int(found.meta["size"])

    def modified(self, path: str) -> tuple[int, int]:
        """The size of a file, and when it was modified, in milliseconds since 1970."""
        import obstore

        with self._reading(path):
            found = obstore.head(self._clients.reads, path)
        return int(found["size"]), int(found["last_modified"].timestamp() * 1000)

    def names(self, directory: str) -> list[str]:
        import obstore

        with self._reading(directory):
            found = obstore.list_with_delimiter(self._clients.reads, directory or None)
        # Hadoop marks a directory by an object of the directory's own name.
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"] if each["path"] != directory)]
        names = {path.rpartition("/")[2] for path in paths}
        return sorted(name for name in names if name and not name.startswith("."))

    def tree(self, directory: str) -> list[str]:
        import obstore

        with self._reading(directory):
            found = [each for page in obstore.list(self._clients.reads, directory or None) for each in page]
            paths = {each["path"] for each in found}
            parents = {path[:place] for path in paths for place, letter in enumerate(path) if letter == "/"}
            empty = {each["path"] for each in found if not each["size"]}
            # Hadoop's mark of an empty directory has a name that ends with a slash, which the list does not show.
            marks = {path for path in empty - parents if not self._is_there(path)}
        return sorted(paths - (empty & parents) - marks - {"", directory})

    def _is_there(self, path: str) -> bool:
        import obstore

        try:
            with self._reading(path):
                obstore.head(self._clients.reads, path)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Name the file in an error of a read."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self._root}/{path}: {_why(error)}") from None
        except (BaseError, OSError, ValueError) as error:
            raise NotRead(f"{self._root}/{path}: cannot be read now ({_why(error)})") from error


def _backoff(attempt: int) -> float:
    """Seconds before an attempt. Attempt 0 is the first."""
    full: float = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** (attempt - 1))
    return full * random.uniform(0.5, 1.0)


def _is_denied(error: Exception) -> bool:
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    return isinstance(error, PermissionDeniedError | UnauthenticatedError)


def _is_final(error: Exception) -> bool:
    """Whether another attempt would get the same answer: it is denied, there is no bucket, or the path is none."""
    from obstore.exceptions import InvalidPathError, NotSupportedError

    return _is_denied(error) or isinstance(error, FileNotFoundError | InvalidPathError | NotSupportedError | ValueError)


_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_STATUS = re.compile(r"status code: (\d+ [^:]*:?)")
_QUERY = re.compile(r"\?\S*")


def _why(error: Exception) -> str:
    """A store's own message in one line. Queries of URLs are left out: Azure's may be keys."""
    text = str(error).partition("\n\nDebug source")[0]
    message = _MESSAGE.search(text)
    answer = _STATUS.search(text)
    told = f"{answer[1]} {message[1] if message else ''}" if answer else text
    return " ".join(_QUERY.sub("", told).split())[:WHY_CHARS_MAX]
