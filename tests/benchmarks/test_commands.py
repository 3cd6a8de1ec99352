"""``python -m benchmarks NAME``: what each command asks for, and what it refuses."""

from typing import Any

import pytest

from benchmarks.__main__ import main, make_parser
from benchmarks.evolve_command import evolve_options
from benchmarks.hotkey_command import hotkey_options
from benchmarks.latency_command import latency_options
from benchmarks.recovery_command import recovery_options
from benchmarks.serving_command import serving_options

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("throughput --json", {"rows": 10_000_000, "keys": 1_000_000, "workers": 2, "json": True}),
    ("rescale", {"keys": 1_000_000, "from": 2, "to": 4, "no_spark": False}),
    ("rescale", {"strategies": ("icadd", "redistribute", "learner", "restart")}),
    ("rescale --strategies restart icadd", {"strategies": ["restart", "icadd"]}),
    ("nexmark --json --events 5000 --workers 3 --no-spark", {"events": 5_000, "workers": 3, "no_spark": True}),
    ("nexmark --queries q0,q7 --map-keys=", {"queries": ("q0", "q7"), "map_keys": ()}),
    ("nexmark", {"queries": tuple(f"q{number}" for number in range(9)), "map_keys": (1_000, 10_000, 1_000_000)}),
]


@pytest.mark.parametrize(("arguments", "asked"), ASKED)
def test_a_command_has_its_options_and_defaults(arguments: str, asked: dict[str, Any]) -> None:
    options = make_parser().parse_args(arguments.split())
    assert {name: getattr(options, name) for name in asked} == asked
    assert callable(options.run)


def test_options_reach_the_measurement() -> None:
    parse = make_parser().parse_args
    latency = latency_options(parse(["latency", "--epochs", "200"]))
    assert (latency.epochs, latency.busy_rows, latency.busy_epochs) == (200, 500_000, 8)
    serving = serving_options(parse(["serving", "--lookups", "500"]))
    assert (serving.keys, serving.lookups, serving.rows) == (300_000, 500, 50_000)
    hotkey = hotkey_options(parse(["hotkey", "--views", "rows"]))
    assert (hotkey.rows, hotkey.views) == (4_000_000, ("rows",))
    evolve = evolve_options(parse(["evolve", "--idle-views", "20", "--rescale", "--no-cpu"]))
    assert (evolve.rows, evolve.idle_views, evolve.rescale, evolve.cpu_rows) == (10_000_000, 20, True, None)
    recovery = recovery_options(parse(["recovery"]))
    assert (recovery.keys, recovery.workers, recovery.has_spark) == (1_000_000, 3, True)
    assert not recovery_options(parse(["recovery", "--no-spark"])).has_spark


@pytest.mark.parametrize(
    "arguments",
    [
        *("throughput --rows 0", "latency --epochs x", "speed", "nexmark --events 0"),
        *("rescale --to 0", "rescale --from x", "rescale --strategies hope", "rescale --keys -1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: str) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(arguments.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rescale --from 3 --to 3", "that is no rescale"),
        ("recovery --workers 1 --no-spark", "2 or more"),
        ("lake --epochs 20,10", "--epochs: give ascending numbers"),
    ],
)
def test_what_does_not_go_together_is_refused(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    assert main(arguments.split()) == 2
    assert said in capsys.readouterr().err
