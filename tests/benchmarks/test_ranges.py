"""The benchmark of joins by ranges: both ways give as many rows, and the sorted index compares no more pairs."""

from benchmarks.ranges import RangesOptions, measure_ranges, render_ranges


def test_the_sorted_index_compares_the_pairs_of_the_result() -> None:
    measured = measure_ranges(RangesOptions(rows=300, length=20, seed=1))
    by_index, by_pairs = measured["ways"]["sorted index"], measured["ways"]["all pairs"]
    assert measured["right"]
    assert by_index["pairs"] == by_index["result_rows"] < by_pairs["pairs"]
    assert "all pairs take" in render_ranges(measured)
