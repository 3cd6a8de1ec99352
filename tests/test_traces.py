"""Spans of lookups and epochs, in a program that uses OpenTelemetry; nothing of it in any other."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from client_kit import EPOCH, Cluster
from metrics_kit import measured
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server_kit import TOKEN

from upriver.client.client import connect
from upriver.errors import StaleView
from upriver.traces import NAME, lookup_traced

WITHOUT = """
import sys
import upriver.client.client
from upriver.traces import lookup_traced, trace_epoch
with lookup_traced("sums", 3) as note:
    note("upriver.epoch", 7)
trace_epoch(7, 3, 0.1, 0.1)
assert "opentelemetry" not in sys.modules
"""


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Gets all spans of this process: a program sets its provider once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_program_without_it_does_not_load_it() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_client_makes_a_span_of_each_lookup(spans: InMemorySpanExporter) -> None:
    cluster = Cluster(1)
    with connect(cluster.coordinator.address, TOKEN) as client:
        client.lookup("planes", ["N1", "N2"])
    cluster.stop()
    lookup = named(spans)["upriver.lookup"]
    assert dict(lookup.attributes or {}) == {"upriver.view": "planes", "upriver.keys": 2, "upriver.epoch": EPOCH}


def test_a_lookup_is_a_span_below_the_current_one(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("program").start_as_current_span("request"), lookup_traced("sums", 3) as note:
        note("upriver.epoch", 7)
    found = named(spans)
    lookup, request = found["upriver.lookup"], found["request"]
    assert dict(lookup.attributes or {}) == {"upriver.view": "sums", "upriver.keys": 3, "upriver.epoch": 7}
    assert lookup.kind is trace.SpanKind.CLIENT
    assert lookup.parent == request.get_span_context()
    assert lookup.instrumentation_scope is not None
    assert lookup.instrumentation_scope.name == NAME


def test_a_lookup_that_fails_is_a_span_with_its_error(spans: InMemorySpanExporter) -> None:
    def fail() -> None:
        with lookup_traced("sums", 3):
            raise StaleView("it is 5 s old")

    with pytest.raises(StaleView):
        fail()
    lookup = named(spans)["upriver.lookup"]
    assert not lookup.status.is_ok
    assert [event.name for event in lookup.events] == ["exception"]


def test_an_epoch_is_a_span_with_its_stages(spans: InMemorySpanExporter) -> None:
    with measured():
        found = named(spans)
    epoch, apply, end = (found[f"upriver.epoch{stage}"] for stage in ("", ".apply", ".end"))
    assert dict(epoch.attributes or {}) == {"upriver.epoch": 2, "upriver.rows": 3}
    assert epoch.parent is None
    for stage in (apply, end):
        assert stage.parent == epoch.get_span_context()
    assert (epoch.start_time, apply.end_time, end.end_time) == (apply.start_time, end.start_time, epoch.end_time)
