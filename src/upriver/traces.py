"""Spans for OpenTelemetry, in a program that uses it: without ``opentelemetry`` loaded, nothing is made or measured.

A lookup is a span ``upriver.lookup`` of the client, below the span that is current. An epoch is a span
``upriver.epoch`` of the driver, from its commit until it has ended, with its stages ``upriver.epoch.apply`` and
``upriver.epoch.end`` below it.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from upriver.ids import Epoch

NAME = "upriver"
"""The instrumentation scope of all spans."""

Note = Callable[[str, int | float | str], None]
"""Sets an attribute of a span."""


def _ignore(name: str, value: int | float | str) -> None:
    """There is no span."""


_SILENT: AbstractContextManager[Note] = nullcontext(_ignore)


def lookup_traced(view: str, keys: int) -> AbstractContextManager[Note]:
    """A span around a lookup, which takes further attributes. keys: how many."""
    return _lookup_span(view, keys) if "opentelemetry" in sys.modules else _SILENT


@contextmanager
def _lookup_span(view: str, keys: int) -> Iterator[Note]:
    from opentelemetry.trace import SpanKind, get_tracer

    attributes: dict[str, int | str] = {"upriver.view": view, "upriver.keys": keys}
    with get_tracer(NAME).start_as_current_span("upriver.lookup", kind=SpanKind.CLIENT, attributes=attributes) as span:
        yield span.set_attribute


def trace_epoch(epoch: Epoch, rows: int, applied_s: float, ended_s: float) -> None:
    """Make the spans of an epoch that has ended now. applied_s, ended_s: seconds that its stages have taken."""
    if "opentelemetry" not in sys.modules:
        return
    from opentelemetry.context import Context
    from opentelemetry.trace import get_tracer, set_span_in_context

    tracer, over = get_tracer(NAME), time.time_ns()
    applied = over - round(ended_s * 1e9)
    began = applied - round(applied_s * 1e9)
    attributes = {"upriver.epoch": int(epoch), "upriver.rows": rows}
    span = tracer.start_span("upriver.epoch", context=Context(), start_time=began, attributes=attributes)
    inside = set_span_in_context(span, Context())
    tracer.start_span("upriver.epoch.apply", context=inside, start_time=began).end(applied)
    tracer.start_span("upriver.epoch.end", context=inside, start_time=applied).end(over)
    span.end(over)
