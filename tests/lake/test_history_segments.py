"""The rows of single keys, out of segments, and while epochs become segments."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments_kit import BY_K, EVENTS, Row, compacted, hashes_of, owned, publish
from soak import examples

from upriver.errors import CorruptFile
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.lake.collection import collect, superseded
from upriver.lake.history import OUTGROWN_SPANS, KeyHistory, Merging
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.runs import Tell, tell_no_one

LATER = 10.0**12
KEYS = range(6)
HASHES: Hashes = np.unique(hashes_of(EVENTS, ("k",), [(key, 0) for key in KEYS]))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    with owned(tmp_path) as lake:
        yield lake


def publish_some(lake: OwnedLake, epochs: int) -> None:
    for _ in range(epochs):
        number = lake.last_epoch()
        publish(lake, EVENTS, [(number % 2, number), (2, number)])


def collect_all(lake: OwnedLake) -> None:
    collect(lake, superseded(lake, lake.last_epoch(), LATER))


def rows_of(
    history: KeyHistory, through: int, after: int = 0, keys: Hashes = HASHES, tell: Tell = tell_no_one
) -> list[Row]:
    found = history.rows_of(BY_K, EVENTS, keys, Epoch(through), Epoch(after), tell)
    assert found.weight is None
    return list(zip(found.hash64.tolist(), *(column.to_pylist() for column in found.rows.columns), strict=True))


def by_model(epochs: list[list[Row]], through: int, after: int, keys: Hashes) -> list[Row]:
    rows = [row for epoch in epochs[after:through] for row in epoch]
    hashes = hashes_of(EVENTS, ("k",), rows).tolist() if rows else []
    found = [(hash64, *row) for hash64, row in zip(hashes, rows, strict=True) if hash64 in set(keys.tolist())]
    return sorted(found, key=lambda row: row[0])


EPOCHS = st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 99)), max_size=4), min_size=17, max_size=36)
CUTS = st.tuples(st.floats(0, 1), st.floats(0, 1), st.sets(st.sampled_from(HASHES.tolist())))


@settings(max_examples=examples(5))
@given(
    epochs=EPOCHS,
    compact_at=st.floats(0, 1),
    merging=st.builds(Merging, together=st.integers(2, 3), small_bytes=st.sampled_from([0, 1 << 20])),
    before=st.lists(CUTS, max_size=3),
    between=st.lists(CUTS, max_size=3),
    then=st.lists(CUTS, min_size=1, max_size=5),
)
def test_the_answers_are_those_without_segments(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[list[Row]],
    compact_at: float,
    merging: Merging,
    before: list[tuple[float, float, set[int]]],
    between: list[tuple[float, float, set[int]]],
    then: list[tuple[float, float, set[int]]],
) -> None:
    """Epochs become segments while the history is in use; the parts stay, so it may be cut anywhere."""
    with owned(tmp_path_factory.mktemp("lake")) as lake:
        history = KeyHistory(Lake(lake.root), merging=merging)
        first = round(compact_at * len(epochs))

        def check(cuts: list[tuple[float, float, set[int]]]) -> None:
            last = lake.last_epoch()
            for one, other, some in cuts:
                after, through = sorted((round(one * last), round(other * last)))
                keys = np.array(sorted(some), np.uint64)
                assert rows_of(history, through, after, keys) == by_model(epochs, through, after, keys)
                assert rows_of(KeyHistory(lake), through, after, keys) == by_model(epochs, through, after, keys)

        for rows in epochs[:first]:
            publish(lake, EVENTS, rows)
        check(before)
        compacted(lake)
        check(between)
        for rows in epochs[first:]:
            publish(lake, EVENTS, rows)
        check(then)
        compacted(lake)
        check(then)


def test_a_history_whose_files_are_collected_looks_for_segments_and_reads_once_more(lake: OwnedLake) -> None:
    publish_some(lake, 20)
    history = KeyHistory(Lake(lake.root), runs_max=0)
    expected = rows_of(history, 20)
    assert len(expected) == 40
    compacted(lake)
    collect_all(lake)
    assert rows_of(history, 20) == expected
    assert rows_of(history, 20, 16) == rows_of(KeyHistory(lake), 20, 16)


def test_a_history_goes_on_with_epochs_that_were_collected_before_it_has_seen_them(lake: OwnedLake) -> None:
    publish_some(lake, 3)
    history = KeyHistory(Lake(lake.root))
    assert len(rows_of(history, 3)) == 6
    publish_some(lake, 15)
    compacted(lake)
    collect_all(lake)
    assert rows_of(history, 18) == rows_of(KeyHistory(lake), 18)


def test_a_read_that_another_reader_overtakes_is_done_once_more(lake: OwnedLake) -> None:
    """While a read is under way, its files are collected, and another read finds the segments."""
    publish_some(lake, 18)
    history = KeyHistory(Lake(lake.root), runs_max=0)
    expected = rows_of(history, 18)
    others: list[list[Row]] = []

    def overtake(_: int) -> None:
        if not others:
            compacted(lake)
            collect_all(lake)
            others.append([])
            others.append(rows_of(history, 18))

    assert rows_of(history, 18, tell=overtake) == expected
    assert others == [[], expected]


def test_a_cut_within_a_collected_segment_names_the_file_that_is_gone(lake: OwnedLake) -> None:
    publish_some(lake, 18)
    history = KeyHistory(Lake(lake.root), runs_max=0)
    assert len(rows_of(history, 7)) == 14
    compacted(lake)
    assert len(rows_of(history, 7)) == 14
    assert len(rows_of(KeyHistory(lake), 18, 7)) == 22
    collect_all(lake)
    for cut in ((7, 0), (18, 7)):
        for each in (history, KeyHistory(lake)):
            with pytest.raises(CorruptFile, match=r"epochs/0000000000\d\d\.json: the file is gone"):
                rows_of(each, *cut)
    assert rows_of(history, 18) == rows_of(KeyHistory(lake), 18)


def test_a_long_catalogue_is_begun_anew_once_its_epochs_are_in_segments(lake: OwnedLake) -> None:
    while lake.last_epoch() < OUTGROWN_SPANS + 16:
        publish(lake, EVENTS, [])
    publish_some(lake, 1)
    history = KeyHistory(Lake(lake.root))
    last = lake.last_epoch()
    expected = rows_of(history, last)
    compacted(lake)
    assert rows_of(history, last) == expected
    collect_all(lake)
    (run,) = lake.manifest(last).runs[BY_K]
    assert rows_of(history, last) == expected
    assert run in history.opened


def test_a_damaged_file_is_named_after_one_more_read(lake: OwnedLake) -> None:
    publish_some(lake, 18)
    compacted(lake)
    (run, *_) = lake.segment(lake.spans(Epoch(16))[0]).runs[BY_K]
    Path(lake.root, run.path).unlink()
    with pytest.raises(CorruptFile, match=f"{run.path}: the file is gone"):
        rows_of(KeyHistory(lake), 18)


def test_no_rows_for_no_keys(lake: OwnedLake) -> None:
    publish_some(lake, 16)
    compacted(lake)
    found = KeyHistory(lake).rows_of(BY_K, EVENTS, np.empty(0, np.uint64), Epoch(16))
    assert found.rows.equals(pa.RecordBatch.from_pylist([], EVENTS.schema))


def test_only_keys_that_may_be_in_a_damaged_run_get_its_error(lake: OwnedLake) -> None:
    publish_some(lake, 16)
    known = {vnode for vnode, _ in lake.manifest(Epoch(1)).runs[BY_K][0].vnode_rows}
    known |= {vnode for vnode, _ in lake.manifest(Epoch(2)).runs[BY_K][0].vnode_rows}
    for key in range(3, 30):
        publish(lake, EVENTS, [(key, key)])
    others = {
        key: hashes_of(EVENTS, ("k",), [(key, key)])
        for key in range(3, 30)
        if lake.manifest(Epoch(14 + key)).runs[BY_K][0].vnode_rows[0][0] not in known
    }
    (segment,) = compacted(lake, 16)
    collect_all(lake)
    path = Path(lake.root, segment.runs[BY_K][0].path)
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    history = KeyHistory(lake)
    assert len(others) > 3
    for key, hashed in others.items():
        assert rows_of(history, 43, keys=hashed) == [(int(hashed[0]), key, key)]
    with pytest.raises(CorruptFile, match=path.name):
        rows_of(history, 43)
    path.write_bytes(content)
    assert len(rows_of(history, 43, keys=HASHES)) == 35
