"""Where a lake is: a local directory, or a place in an object store.

``s3://`` and ``s3a://`` mean the same; so do ``abfs://``, ``abfss://`` and ``az://``. Upriver takes all of them. Spark
gets the one that its connectors know (:func:`spark_address`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from upriver.errors import DeclarationError

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "az")
"""Schemes of object stores."""
_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "azure", "abfss": "azure", "az": "azure"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"([a-z0-9]+)\.(?:dfs|blob)\.([a-z0-9.-]+)")
_AZURE_DOMAIN = "core.windows.net"


class Root(str):
    """The root of a lake, with the settings that open its object store, as ``obstore`` names them.

    It is a ``str``, because most of the code only shows the root or hands it on. The settings may be keys: they go to
    Spark's tasks inside of a closure, and are in no ``repr``, log or file.
    """

    options: Mapping[str, str]

    def __new__(cls, address: str, options: Mapping[str, str] = MappingProxyType({})) -> Self:
        root = super().__new__(cls, address)
        root.options = dict(options)
        return root

    def __reduce__(self) -> tuple[Any, ...]:
        return (Root, (str(self), dict(self.options)))


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A place in an object store. store: ``s3``, ``gs`` or ``azure``. bucket: or container. prefix: of the lake's
    paths, without slashes at its ends. account, domain: of Azure's store, empty if the address does not name them."""

    store: str
    bucket: str
    prefix: str
    account: str = ""
    domain: str = ""


def object_address(root: str) -> ObjectAddress | None:
    """The place that a URI names; ``None`` for a local directory. Raises DeclarationError for any other URI."""
    found = _URI.fullmatch(root)
    if found is None:
        return None
    scheme, rest = found[1].lower(), found[2].rstrip("/")
    if scheme not in _STORES:
        raise DeclarationError(f"root={_without_user(root)!r}: a root is a directory, or begins with {_schemes()}")
    bucket, _, prefix = rest.partition("/")
    account = domain = ""
    if _STORES[scheme] == "azure" and "@" in bucket:
        bucket, _, host = bucket.partition("@")
        if (named := _ACCOUNT.fullmatch(host)) is None:
            raise DeclarationError(f"root={root!r}: give {scheme}://container@account.dfs.{_AZURE_DOMAIN}/directory")
        account, domain = named.groups()
    if "@" in bucket:
        raise DeclarationError(
            f"root={_without_user(root)!r}: a root has no keys, which would be in logs; give them as environment "
            "variables, or as settings of the Spark session"
        )
    if not _BUCKET.fullmatch(bucket):
        raise DeclarationError(f"root={root!r}: {bucket!r} is no name of a bucket; give {scheme}://bucket/directory")
    parts = prefix.split("/") if prefix else []
    if any(part in ("", ".", "..") for part in parts) or re.search("[?#]", prefix):
        raise DeclarationError(f"root={root!r}: a directory in a store has no empty part, no '.', '..', '?' and '#'")
    return ObjectAddress(_STORES[scheme], bucket, prefix, account, domain)


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES[:-1]) + f" or {SCHEMES[-1]}://"


def _without_user(root: str) -> str:
    scheme, _, rest = root.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def spark_address(root: str) -> str:
    """The root as Spark's connectors know it: ``s3a://``, ``gs://`` or ``abfss://``; a directory is unchanged.

    Raises DeclarationError if an Azure account is neither in the address nor in the settings.
    """
    address = object_address(root)
    if address is None:
        return str(root)
    path = f"/{address.prefix}" if address.prefix else ""
    if address.store == "s3":
        return f"s3a://{address.bucket}{path}"
    if address.store == "gs":
        return f"gs://{address.bucket}{path}"
    return f"abfss://{address.bucket}@{account_of(root, address)}.dfs.{address.domain or _AZURE_DOMAIN}{path}"


def account_of(root: str, address: ObjectAddress) -> str:
    """The Azure account. Raises DeclarationError if it is not known."""
    account = address.account or (root.options.get("account_name", "") if isinstance(root, Root) else "")
    if not account:
        raise DeclarationError(
            f"root={str(root)!r}: the storage account is not known: set AZURE_STORAGE_ACCOUNT_NAME, or give "
            f"abfss://{address.bucket}@account.dfs.{_AZURE_DOMAIN}/directory"
        )
    return account
