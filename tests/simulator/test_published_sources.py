"""Listers say what is new, once; a reader's cursors move with their keys, and no record is sent on by two."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.published.sources import (
    FILES,
    TOPICS,
    DirectoryLister,
    Emit,
    FileName,
    Listing,
    PartitionReader,
    PartitionsCame,
    Polled,
    RecordsRead,
    SourceRead,
    TopicLister,
    TopicPartition,
)
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.state.vectors import NO_KEYS, key_set
from upriver.vnodes import vnodes_of

A, B = FileName("a.csv"), FileName("b.csv")
VNODES = 16


def reader_of(*names: FileName) -> PartitionReader[FileName]:
    reader = PartitionReader(FILES, records_max=10)
    reader.step(came(*names))
    return reader


def came(*names: FileName) -> PartitionsCame[FileName]:
    return PartitionsCame(listing=Listing(names, FILES.hashes(names)))


def read(name: FileName, start: int, end: int) -> RecordsRead[FileName]:
    return RecordsRead(partition=name, offset=start, records=f"{start} to {end}", next_offset=end)


def keys_of(*names: FileName) -> Hashes:
    return key_set(FILES.hashes(names))


# Listers ------------------------------------------------------------------------------------------------------------


def test_a_directory_s_files_are_named_once() -> None:
    lister = DirectoryLister()
    assert lister.listed(["b.csv", "a.csv"]).partitions == (A, B)
    later = lister.listed(["a.csv", "b.csv", "c.csv"])
    assert later.partitions == (FileName("c.csv"),)
    assert later.hash64.tolist() == hash64([pa.array(["c.csv"])]).tolist()
    assert len(lister.listed(["a.csv"])) == 0


def test_topics_are_named_by_topic_and_partition() -> None:
    lister = TopicLister()
    first = lister.listed({"orders": 2, "users": 1})
    assert first.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("users", 0))
    assert len(set(first.hash64.tolist())) == 3
    assert lister.listed({"orders": 3, "users": 1}).partitions == (TopicPartition("orders", 2),)


@given(st.lists(st.lists(st.text(max_size=3), max_size=5), max_size=5))
def test_what_was_listed_in_all_is_what_was_ever_there(looks: list[list[str]]) -> None:
    lister = DirectoryLister()
    passed_on = [partition.name for look in looks for partition in lister.listed(look).partitions]
    assert sorted(passed_on) == sorted({name for look in looks for name in look})


def test_a_listing_is_filtered_as_rows_are() -> None:
    listing = DirectoryLister().listed(["a.csv", "b.csv", "c.csv"])
    kept = listing.filtered(np.array([True, False, True]))
    assert kept.partitions == (A, FileName("c.csv"))
    assert kept.hash64.tolist() == listing.hash64[[0, 2]].tolist()


# The reader ---------------------------------------------------------------------------------------------------------


def test_a_new_partition_is_read_from_its_beginning_and_on_to_its_end() -> None:
    reader = PartitionReader(FILES, records_max=10)
    assert reader.step(came(A)) == (SourceRead(partition=A, offset=0, records_max=10),)
    emit, following = reader.step(read(A, 0, 80))
    assert emit == Emit(partition=A, offset=0, records="0 to 80")
    assert following == SourceRead(partition=A, offset=80, records_max=10)
    assert reader.step(read(A, 80, 80)) == ()


def test_a_partition_at_its_end_is_read_again_when_polled() -> None:
    reader = reader_of(A, B)
    reader.step(read(A, 0, 0))
    assert reader.step(Polled()) == (SourceRead(partition=A, offset=0, records_max=10),)
    assert reader.step(Polled()) == ()


def test_a_partition_named_again_goes_on_where_it_was() -> None:
    reader = reader_of(A)
    reader.step(read(A, 0, 5))
    assert reader.step(came(A)) == ()
    assert reader.cursors[A].offset == 5


def test_a_collected_cursor_stands_still_and_its_next_owner_goes_on_from_there() -> None:
    old, new = reader_of(A, B), reader_of()
    old.step(read(A, 0, 5))
    state = old.collect(keys_of(A))
    assert old.step(read(A, 5, 9)) == (), "the state has gone already"
    assert old.step(Polled()) == ()
    new.install(state)
    old.drop(keys_of(A))
    assert set(old.cursors) == {B}
    assert old.step(read(A, 5, 9)) == ()
    assert new.step(Polled()) == (SourceRead(partition=A, offset=5, records_max=10),)
    assert new.step(read(A, 5, 9))[0] == Emit(partition=A, offset=5, records="5 to 9")


def test_what_was_asked_for_before_the_cursor_went_and_came_back_does_not_count() -> None:
    reader, other = reader_of(A), reader_of()
    other.install(reader.collect(keys_of(A)))
    reader.drop(keys_of(A))
    other.step(read(A, 0, 7))
    reader.install(other.collect(keys_of(A)))
    assert reader.step(read(A, 0, 4)) == ()
    assert reader.cursors[A].offset == 7


def test_a_cursor_comes_to_one_reader_only() -> None:
    reader = reader_of(A)
    with pytest.raises(ProtocolError, match=r"cursor of .*a\.csv.* came to a reader that has one"):
        reader.install(reader_of(A).collect(keys_of(A)))


def test_records_do_not_run_backwards() -> None:
    with pytest.raises(ProtocolError, match="read from 5 to 4"):
        read(A, 5, 4)


@given(
    st.lists(st.tuples(st.sampled_from(["orders", "users", "ä"]), st.integers(0, 9), st.integers(0, 2**40)), max_size=8)
)
def test_cursors_go_over_as_arrow_and_come_back_the_same(drawn: list[tuple[str, int, int]]) -> None:
    offsets = {TopicPartition(topic, number): offset for topic, number, offset in drawn}
    old, new = PartitionReader(TOPICS, records_max=1), PartitionReader(TOPICS, records_max=1)
    names = tuple(sorted(offsets))
    old.step(PartitionsCame(listing=Listing(names, TOPICS.hashes(names))))
    for name, offset in offsets.items():
        old.step(RecordsRead(partition=name, offset=0, records=None, next_offset=offset))
    by_vnode = [old.keys_of(vnode, VNODES) for vnode in range(VNODES)]
    assert all((vnodes_of(keys, VNODES) == vnode).all() for vnode, keys in enumerate(by_vnode))
    keys = key_set(NO_KEYS, *by_vnode)
    assert keys.tolist() == sorted(set(TOPICS.hashes(names).tolist()))
    state: tuple[Any, ...] = old.collect(keys)
    assert state[0].schema.equals(old.collect(NO_KEYS)[0].schema), "it depends on the type only"
    new.install(state)
    old.drop(keys)
    assert not old.cursors
    assert {name: cursor.offset for name, cursor in new.cursors.items()} == offsets
