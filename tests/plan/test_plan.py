"""Plans as data: channels name lake edges, and directories."""

import os

from hypothesis import given
from hypothesis import strategies as st

from upriver.plan.plan import CHANNEL_CHARS_MAX, lake_channel

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
INDEXES = st.lists(NAMES, min_size=1, max_size=3).map(tuple)


def test_plain_columns_stand_in_the_name() -> None:
    assert lake_channel("flights", ("origin", "dest")) == "flights/origin,dest"


@given(st.sampled_from([("..",), (".", "a"), ("列" * 30,), ("a" * 300,), ("a/../b",), ("a\0b",)]) | INDEXES)
def test_any_index_names_one_directory_under_its_table(index: tuple[str, ...]) -> None:
    table, *names = lake_channel("t", index).split("/")
    assert (table, len(names)) == ("t", 1)
    assert not names[0].startswith(".")
    assert len(os.fsencode(names[0])) <= CHANNEL_CHARS_MAX + 20 < 255
    assert names[0].isprintable()


@given(INDEXES, INDEXES)
def test_two_indexes_never_share_a_channel(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (lake_channel("t", one) == lake_channel("t", other)) == (one == other)
