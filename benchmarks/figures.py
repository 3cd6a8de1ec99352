"""Numbers out of repeated measurements."""

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle. Raises ValueError for none."""
    if not values:
        raise ValueError("the median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that at least ``percent`` per cent of all do not exceed (nearest rank): one that was measured.

    percent: above 0, at most 100. Raises ValueError for no values.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {len(values)} values")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def keys_per_s(keys: int, seconds: Sequence[float]) -> int:
    """Of lookups of so many keys, by what each took."""
    return round(keys * len(seconds) / sum(seconds))


def milliseconds(seconds: Sequence[float]) -> dict[str, float | int]:
    """Latencies as the benchmarks report them: ``p50_ms``, ``p99_ms`` and how many ``epochs`` they come from."""
    return {
        "p50_ms": round(percentile(seconds, 50) * 1e3, 2),
        "p99_ms": round(percentile(seconds, 99) * 1e3, 2),
        "epochs": len(seconds),
    }
