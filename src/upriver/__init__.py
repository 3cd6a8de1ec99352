"""Upriver: elastic, partially materialized views for PySpark.

``App`` needs PySpark; ``connect`` does not, so ``App`` is only loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from upriver.client import Client, connect
from upriver.errors import UpriverError
from upriver.rescale import Rescale

if TYPE_CHECKING:
    from upriver.app import App

__all__ = ["App", "Client", "Rescale", "UpriverError", "connect"]


def __getattr__(name: str) -> Any:
    if name == "App":
        return import_module("upriver.app").App
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
