"""What the demo says of its rescales. The demo itself is run by `make demo`."""

import numpy as np

from upriver.demo import DemoRescale
from upriver.demo_prober import DemoProbes

REPORT = {
    "ticket": 0,
    "from": 2,
    "to": 4,
    "strategy": "icadd",
    "outcome": "finished",
    "moved_keys": 7,
    "moved_bytes": 70,
}
RESCALE = DemoRescale(
    report={**REPORT, "seconds": 2.0, "max_hold_ms": 1.5}, steady_since=100.0, began=110.0, ended=112.0
)


def probes(began: list[float], seconds: list[float]) -> DemoProbes:
    return DemoProbes(began=np.array(began), seconds=np.array(seconds), wrong=0, first_wrong=None)


def test_a_rescale_is_told_with_the_lookups_before_it_and_during_it() -> None:
    seen = probes([99.0, 101.0, 105.0, 109.9, 111.0, 112.5], [0.5, 0.001, 0.002, 0.25, 0.003, 0.9])
    assert RESCALE.to_json(seen) == {
        "from": 2,
        "to": 4,
        "strategy": "icadd",
        "moved_keys": 7,
        "moved_bytes": 70,
        "seconds": 2.0,
        "max_hold_ms": 1.5,
        "lookup_p99_ms_before": 250.0,
        "lookup_p99_ms_during": 250.0,
        "lookup_max_ms_during": 250.0,
    }


def test_what_nobody_measured_is_not_made_up() -> None:
    told = RESCALE.to_json(probes([101.0], [0.001]))
    assert told["lookup_p99_ms_before"] == 1.0
    assert told["lookup_p99_ms_during"] is None
    assert told["lookup_max_ms_during"] is None
