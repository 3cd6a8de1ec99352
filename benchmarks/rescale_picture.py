"""Pictures of a rescale, as SVG. The same figures give the same bytes.

Drawn with matplotlib, which is an extra: ``pip install 'upriver[bench]'``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.rescale_figures import BIN_S, LoadTrace
from upriver.errors import UserError

COLOURS: Mapping[str, str] = {  # of every strategy, and of Spark
    "icadd": "#0b7a75",
    "redistribute": "#d17a00",
    "lazy": "#8a9a1b",
    "learner": "#4457c9",
    "restart": "#b3273d",
    "spark": "#555555",
}
PAUSE_STEPS = 50
"""Points of the line of a pause."""
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "upriver",  # ids are drawn at random otherwise
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}


def check_drawable() -> None:
    """Raise UserError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("the picture needs matplotlib: pip install 'upriver[bench]'")


def draw_rescale(
    path: Path,
    ways: tuple[str, str],
    traces: Mapping[str, tuple[LoadTrace, LoadTrace]],
    spark_pauses_ms: tuple[float, float] | None,
    keys: int,
) -> None:
    """Latency of lookups over time: one panel for each way, one line for each strategy, its rescale as a band.

    ways: titles of the panels. spark_pauses_ms: of Spark's own way, drawn as how long what comes in the pause waits
    for its end.
    """
    with _figure(path, is_shared=True) as (figure, panels):
        for place, axes in enumerate(panels):
            for strategy, both in traces.items():
                line, colour = both[place], COLOURS[strategy]
                axes.axvspan(0, line.took, color=colour, alpha=0.1, linewidth=0)
                axes.plot(line.seconds, line.ms, color=colour, linewidth=1.3, label=strategy)
            if spark_pauses_ms is not None:
                label = "Spark: stop, repartition, start"
                axes.plot(*_pause(spark_pauses_ms[place]), color=COLOURS["spark"], linestyle="--", label=label)
            axes.set_yscale("log")
            axes.set_title(ways[place], fontsize=10, loc="left")
            axes.set_xlabel("seconds from the begin of the rescale; bands: while it is on")
        panels[0].set_ylabel(f"longest lookup of each {BIN_S:g} s, in ms ({keys:,} keys)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))


def _pause(pause_ms: float) -> tuple[list[float], list[float]]:
    """How long what comes at each moment of a pause waits, down to a millisecond."""
    waits = [pause_ms ** (1 - step / PAUSE_STEPS) for step in range(PAUSE_STEPS + 1)]
    return [0.0, *((pause_ms - wait) / 1e3 for wait in waits)], [1.0, *waits]


def draw_batching(path: Path, points: Sequence[Mapping[str, Any]], keys: int) -> None:
    """Seconds of a rescale, and latency of lookups meanwhile, over how many keys are collected at a time.

    points: as ``rescale_figures.batching_figures`` makes them; one of ``keys_max`` ``None`` is drawn as a level.
    """
    lines = (
        (0, "seconds", "", COLOURS["icadd"]),
        (1, "lookup_max_ms_during", "longest", COLOURS["restart"]),
        (1, "lookup_p99_ms_during", "99 %", COLOURS["redistribute"]),
    )
    fixed = [point for point in points if point["keys_max"] is not None]
    with _figure(path, is_shared=False) as (_, panels):
        for place, figure_name, label, colour in lines:
            axes = panels[place]
            at, values = [point["keys_max"] for point in fixed], [point[figure_name] for point in fixed]
            axes.plot(at, values, color=colour, marker="o", label=label)
            for point in points:
                if point["keys_max"] is None:
                    axes.axhline(point[figure_name], color=colour, linestyle="--", linewidth=1)
        for axes in panels:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.set_yscale("log")
            axes.set_xlabel("keys collected at a time; dashed: as many as fit the time of a step")
        panels[0].set_ylabel(f"seconds of the rescale ({keys:,} keys)")
        panels[1].set_ylabel("lookups during the rescale, in ms")
        panels[1].legend(loc="best")


@contextmanager
def _figure(path: Path, is_shared: bool) -> Iterator[tuple[Any, Any]]:
    """A figure of two panels side by side, written to ``path`` at the end. is_shared: one scale of y for both."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4), layout="constrained")
        canvas: Any = FigureCanvasSVG(figure)
        panels = figure.subplots(1, 2, sharey=is_shared)
        yield figure, panels
        for axes in panels:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.print_svg(str(path), metadata={"Date": None, "Creator": None})
