"""Boards: what is put up is found, what is taken down is not, and nobody reads what is being changed."""

import threading
from decimal import Decimal
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from board_kit import FOR_EVER, OfView, board_for
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.batch import Hashes
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.state.board import ASKED_MAX
from upriver.state.board_layout import HEAD, NAME_BYTES, PLACES_MIN, TEXT_BYTES, WAYS, BoardLayout

EPOCHS_SEEN = 20
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
KINDS = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(20, 2): st.integers(-(10**10), 10**10).map(lambda cents: Decimal(cents).scaleb(-2)),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(-(10**15), 10**15),
    pa.string(): st.text(max_size=TEXT_BYTES // 4),
    pa.large_string(): st.text(max_size=TEXT_BYTES // 4),
    pa.binary(): st.binary(max_size=TEXT_BYTES),
}


def of(*rows: tuple[str | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "n": number} for key, number in rows], schema=COUNTS)


def hashed(*keys: str | None) -> Hashes:
    return hash64([pa.array(keys, pa.string())], len(keys))


def shown(of_view: OfView, *keys: str | None) -> list[tuple[str | None, int | None]]:
    found = of_view.find(hashed(*keys))
    return [] if found is None else [(row["k"], row["n"]) for row in found.to_pylist()]


@pytest.fixture
def counts() -> OfView:
    of_view = board_for(COUNTS, "k")
    of_view.board.turn(Epoch(7))
    of_view.board.put(hashed("a", "b", None), of(("a", 1), ("b", None), (None, 3)))
    return of_view


def test_what_is_put_up_is_found_as_of_the_epoch(counts: OfView) -> None:
    assert shown(counts, None, "b", "a") == [(None, 3), ("b", None), ("a", 1)]
    found = counts.reader.find(hashed("b", "a"))
    assert found is not None
    assert (counts.layout.rows(found[0]).column("k").to_pylist(), found[1]) == (["b", "a"], 7)


def test_all_keys_are_there_or_none_is_found(counts: OfView) -> None:
    assert counts.reader.find(hashed("a", "z", "b")) is None
    assert counts.reader.find(hashed("z")) is None
    assert shown(counts, "a", "z", "b") == [("a", 1), ("b", None)]


def test_what_is_taken_down_is_not_found(counts: OfView) -> None:
    counts.board.take_down(hashed("z", "a", "a"))
    assert shown(counts, "a", "b") == [("b", None)]
    assert sorted(counts.board.keys.tolist()) == sorted(hashed("b", None).tolist())
    counts.board.take_all_down()
    assert shown(counts, "b", None) == []
    assert not len(counts.board.keys)


def test_what_is_there_already_stays_as_it_is(counts: OfView) -> None:
    counts.board.put(hashed("a", "c"), of(("a", 99), ("c", 4)))
    assert shown(counts, "a", "c") == [("a", 1), ("c", 4)]


def test_a_row_with_a_longer_text_than_there_is_room_for_is_left_out(counts: OfView) -> None:
    fits, too_long = "x" * TEXT_BYTES, "y" * (TEXT_BYTES + 1)
    counts.board.put(hashed(fits, too_long), of((fits, 1), (too_long, 2)))
    assert shown(counts, fits, too_long) == [(fits, 1)]


def test_nobody_reads_while_something_is_changed(counts: OfView) -> None:
    changes, *others = HEAD.unpack_from(counts.memory)
    HEAD.pack_into(counts.memory, 0, changes + 1, *others)
    assert counts.reader.find(hashed("a")) is None
    HEAD.pack_into(counts.memory, 0, changes + 2, *others)
    assert shown(counts, "a") == [("a", 1)]


def test_who_reads_while_the_owner_writes_finds_whole_rows_of_one_epoch() -> None:
    """As of each epoch, every key has that epoch's number in both columns."""
    keys = [f"k{number}" for number in range(40)]
    hashes, is_over = hashed(*keys), threading.Event()
    of_view = board_for(pa.schema([("k", pa.string()), ("n", pa.int64()), ("m", pa.int64())]), "k")

    def write(epoch: int) -> None:
        rows = [{"k": key, "n": epoch, "m": epoch} for key in keys]
        put_up = pa.RecordBatch.from_pylist(rows, schema=of_view.layout.schema)
        of_view.board.take_down(hashes)
        of_view.board.turn(Epoch(epoch))
        of_view.board.put(hashes, put_up)

    def write_on() -> None:
        for epoch in count(2):
            if is_over.is_set():
                return
            write(epoch)

    write(1)
    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        seen = set[int]()
        while len(seen) < EPOCHS_SEEN:
            found = of_view.reader.find(hashes)
            if found is None:
                continue
            raw, epoch = found
            rows = of_view.layout.rows(raw)
            assert {*rows.column("n").to_pylist(), *rows.column("m").to_pylist()} == {epoch}
            seen.add(epoch)
    finally:
        is_over.set()
        writer.join()


def test_b6_nobody_reads_after_the_lease(counts: OfView) -> None:
    counts.board.good_until(10.0)
    counts.watch.now = 9.9
    assert shown(counts, "a") == [("a", 1)]
    counts.watch.now = 10.0
    assert shown(counts, "a") == []
    counts.board.good_until(FOR_EVER)
    assert shown(counts, "a") == [("a", 1)]


def test_nobody_reads_before_it_is_in_use_or_after_it_was_closed(counts: OfView) -> None:
    new = board_for(COUNTS, "k")
    new.board.put(hashed("a"), of(("a", 1)))
    assert shown(new, "a") == []
    assert not new.reader.is_closed
    new.board.turn(Epoch(1))
    assert shown(new, "a") == [("a", 1)]
    for _ in range(2):
        new.board.close()
        assert (shown(new, "a"), new.reader.is_closed, new.board.is_in_use) == ([], True, False)
    new.board.put(hashed("b"), of(("b", 1)))
    new.board.turn(Epoch(2))
    assert (shown(new, "b"), new.reader.is_closed) == ([], True)


def test_an_epoch_that_is_over_changes_nothing_else(counts: OfView) -> None:
    counts.board.turn(Epoch(8))
    found = counts.reader.find(hashed("a"))
    assert found is not None
    assert (found[1], counts.board.epoch) == (8, 8)
    assert shown(counts, "a") == [("a", 1)]


def test_the_owner_learns_once_what_was_read(counts: OfView) -> None:
    assert not len(counts.board.read_lately())
    assert shown(counts, "a", "z", None) != []
    assert sorted(counts.board.read_lately().tolist()) == sorted(hashed("a", None).tolist())
    assert not len(counts.board.read_lately())


def test_who_comes_to_a_full_bucket_takes_the_place_of_who_came_first() -> None:
    of_view = board_for(COUNTS, "k")
    of_view.board.turn(Epoch(1))
    step = np.uint64(of_view.layout.buckets)
    crowd = np.arange(1, WAYS + 4, dtype=np.uint64) * step  # all of one bucket
    numbered = of(*[(str(number), number) for number in range(len(crowd))])
    of_view.board.put(crowd[:WAYS], numbered[:WAYS])
    of_view.board.put(crowd[WAYS:], numbered[WAYS:])
    found = of_view.find(crowd)
    assert found is not None
    assert found.column("n").to_pylist() == list(range(3, len(crowd)))
    of_view.board.take_all_down()
    of_view.board.put(crowd, numbered)  # more than it has places, at a time
    assert len(of_view.board.keys) == WAYS


def test_no_key_is_taken_for_no_key() -> None:
    of_view = board_for(COUNTS, "k")
    of_view.board.turn(Epoch(1))
    nothing = np.zeros(1, np.uint64)
    of_view.board.put(nothing, of(("a", 1)))
    assert not len(of_view.board.keys)


def test_a_board_is_as_large_as_may_be() -> None:
    for nbytes in (20_000, 65_536, 1_000_000):
        layout = BoardLayout.of(COUNTS, ("k",), nbytes)
        assert layout is not None
        assert nbytes - WAYS * (layout.row_bytes + 9) - 256 < layout.nbytes <= nbytes
    assert BoardLayout.of(COUNTS, ("k",), PLACES_MIN * 9) is None
    assert BoardLayout.of(pa.schema([("k", pa.string()), ("l", pa.list_(pa.int64()))]), ("k",), 1_000_000) is None


def test_a_board_has_its_name() -> None:
    assert board_for(COUNTS, "k").reader.name == bytes(range(NAME_BYTES))


@given(st.data())
def test_rows_of_any_kind_come_back_as_they_were(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    many = data.draw(st.integers(0, 5))
    columns = [
        pa.array(data.draw(st.lists(st.none() | KINDS[type], min_size=many, max_size=many)), type) for type in types
    ]
    schema = pa.schema([(f"c{place}", type) for place, type in enumerate(types)])
    rows = pa.RecordBatch.from_arrays(columns, schema=schema).slice(data.draw(st.integers(0, many)))
    layout = BoardLayout.of(schema, ("c0",), 200_000)
    assert layout is not None
    assert layout.fits(rows).all()
    assert layout.rows(layout.raw(rows)).equals(rows)


@given(st.lists(st.tuples(st.sampled_from("pdtex"), st.sets(st.sampled_from("abcdefgh"), min_size=1)), max_size=20))
def test_a_board_has_what_was_put_up_last_and_not_taken_down(steps: list[tuple[str, set[str]]]) -> None:
    of_view, model, epoch = board_for(COUNTS, "k"), dict[str, int](), 1
    of_view.board.turn(Epoch(epoch))
    for number, (what, keys) in enumerate(steps):
        named = sorted(keys)
        if what == "p":
            of_view.board.put(hashed(*named), of(*[(key, number) for key in named]))
            model = {**dict.fromkeys(named, number), **model}
        elif what == "d":
            of_view.board.take_down(hashed(*named))
            model = {key: at for key, at in model.items() if key not in keys}
        elif what == "t":
            epoch += 1
            of_view.board.turn(Epoch(epoch))
        elif what == "e":
            of_view.board.take_all_down()
            model = {}
        everything = "abcdefgh"
        assert shown(of_view, *everything) == [(key, model[key]) for key in everything if key in model]


def test_keys_that_were_asked_for_are_remembered_until_they_are_too_many() -> None:
    board = board_for(COUNTS, "k").board
    many = np.random.default_rng(7).integers(0, 2**64, 2 * ASKED_MAX, np.uint64)
    first, others = many[:100], np.array_split(many[100:], 200)
    assert np.count_nonzero(board.asked_again(first)) == 0
    assert board.asked_again(first).all()
    taken_for_others = sum(np.count_nonzero(board.asked_again(keys)) for keys in others)
    assert taken_for_others < len(many) / 8
    assert np.count_nonzero(board.asked_again(first)) < len(first)
