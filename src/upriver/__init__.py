"""Upriver: elastic, partially materialized views for PySpark.

Each name is loaded on first use: ``App`` needs PySpark, and ``connect`` does not. Besides, the process from which Spark
forks its Python workers must run some code before Arrow is loaded (``upriver.spark.daemon``).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upriver.app import App
    from upriver.client.client import Client, connect
    from upriver.client.rescale import Rescale
    from upriver.errors import UpriverError

__version__ = "0.2.0"
__all__ = ["App", "Client", "Rescale", "UpriverError", "connect"]


def __getattr__(name: str) -> Any:
    homes = {
        "App": "upriver.app",
        "Client": "upriver.client.client",
        "Rescale": "upriver.client.rescale",
        "UpriverError": "upriver.errors",
        "connect": "upriver.client.client",
    }
    if name in homes:
        return getattr(import_module(homes[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
