"""Upriver: elastic, partially materialized views for PySpark.

Each name is loaded on first use: ``App`` needs PySpark, and ``connect`` does not. Besides, the process from which Spark
forks its Python workers must run some code before Arrow is loaded (``upriver.spark.daemon``).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upriver.app import App
    from upriver.client.asyncio_client import AsyncClient, connect_async
    from upriver.client.client import Client, connect
    from upriver.client.rescale import Rescale
    from upriver.errors import UpriverError
    from upriver.options import Checkpoints, Compaction, Doors, Standbys, Tls, Tokens

__version__ = "0.2.0"
__all__ = [
    "App",
    "AsyncClient",
    "Checkpoints",
    "Client",
    "Compaction",
    "Doors",
    "Rescale",
    "Standbys",
    "Tls",
    "Tokens",
    "UpriverError",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    homes = {
        "App": "upriver.app",
        "AsyncClient": "upriver.client.asyncio_client",
        "Client": "upriver.client.client",
        **dict.fromkeys(("Checkpoints", "Compaction", "Doors", "Standbys", "Tls", "Tokens"), "upriver.options"),
        "Rescale": "upriver.client.rescale",
        "UpriverError": "upriver.errors",
        "connect": "upriver.client.client",
        "connect_async": "upriver.client.asyncio_client",
    }
    if name in homes:
        try:
            return getattr(import_module(homes[name]), name)
        except ImportError as missing:  # also of a PySpark without its JVM, which lacks some names
            if (missing.name or "").partition(".")[0] not in ("pyspark", "py4j"):
                raise
            raise ImportError(
                f"upriver.{name} runs where Spark's driver is, and needs PySpark with its JVM: pip install "
                "'upriver[spark]'. A client of Spark Connect reads views with spark.read.format(\"upriver\"), and any "
                "other program with upriver.connect(address, token)"
            ) from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
