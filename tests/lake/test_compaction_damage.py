"""Compaction and collection of a lake with damaged files: other blocks go on, the errors name the files, no segment has
less than its epochs, and everything can be had again once the files are back."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from segments_kit import BY_ID, BY_K, BY_N, EVENTS, USERS, Row, named, owned, publish, rows_through

from upriver.engine.expressions import Evaluator
from upriver.errors import CorruptFile
from upriver.ids import Epoch
from upriver.lake.collection import collect, remove_litter, superseded
from upriver.lake.compaction import (
    AGAIN_S_MAX,
    AGAIN_S_MIN,
    SegmentPlan,
    SegmentPlanner,
    merge_runs,
    remove_strays,
    try_merge,
)
from upriver.lake.lake import Lake, OwnedLake, epoch_path, segment_path
from upriver.lake.manifests import Segment
from upriver.lake.repair import replace_damaged
from upriver.lake.runs import REMEDY
from upriver.lake.spans import EpochSpan, single
from upriver.lake.upkeep import collect_all, compact
from upriver.plan.plan import table_of

LATER = 10.0**12
"""Seconds since 1970: any segment is older."""
FIRST, SECOND, THIRD = (EpochSpan(Epoch(first), Epoch(first + 15)) for first in (1, 17, 33))
EPOCHS = 48
TABLES = {"events": EVENTS, "users": USERS}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three blocks, each with rows of two tables. It is to be copied."""
    root = tmp_path_factory.mktemp("lake")
    with owned(root) as lake:
        for number in range(EPOCHS):
            if number % 8 == 3:
                publish(lake, USERS, [(number % 5, number, "Ulm"), (number % 3, number, None)])
            else:
                publish(lake, EVENTS, [(number % 3, number), (7, number)])
    return root


@pytest.fixture
def lake(root: Path, tmp_path: Path) -> Iterator[OwnedLake]:
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    with owned(tmp_path) as lake:
        yield lake


def all_rows(lake: Lake) -> dict[str, list[Row]]:
    """Of the append table. Versions that a newer one has replaced leave an upsert table, so of it: how many keys."""
    users = sorted({row[:2] for row in rows_through(lake, BY_ID)})
    return {"k": sorted(rows_through(lake, BY_K)), "n": sorted(rows_through(lake, BY_N)), "users": users}


def one_bit_flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (one_bit_flipped, cut_in_half, emptied, Path.unlink, replaced_by_a_directory)
Damage = Callable[[Path], None]


@contextmanager
def damaged(lake: Lake, name: str, damage: Damage) -> Iterator[None]:
    """The file is as it was afterwards."""
    path = Path(lake.root) / name
    content = path.read_bytes()
    damage(path)
    yield
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)


def spans_of(lake: Lake) -> list[EpochSpan]:
    return list(superseded(lake, lake.last_epoch(), LATER))


def run_of(lake: Lake, epoch: int) -> str:
    return lake.manifest(Epoch(epoch)).runs[BY_K][0].path


def compacted(lake: OwnedLake) -> tuple[list[EpochSpan], str]:
    """The segments that are made, and what is said of blocks that stay as they are."""
    made: list[EpochSpan] = []
    try:
        for segment in compact(lake, lake.last_epoch()):
            made.append(segment.span)
    except CorruptFile as error:
        return made, str(error)
    return made, ""


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["run", "manifest"])
def test_a_block_with_a_damaged_file_stays_as_it_is_and_all_others_become_segments(
    lake: OwnedLake, damage: Damage, kind: str
) -> None:
    rows = all_rows(lake)
    originals = {run.path for epoch in range(17, 33) for run in lake.manifest(Epoch(epoch)).runs.get(BY_K, ())}
    name = run_of(lake, 19) if kind == "run" else epoch_path(Epoch(19))
    with damaged(lake, name, damage):
        made, told = compacted(lake)
        assert made == [FIRST, THIRD]
        assert "epochs 17 to 32 stay as they are" in told
        assert name in told
        assert REMEDY in told
        removed = collect(lake, spans_of(lake))
        assert (removed.epochs, removed.damage) == (32, ())
        assert originals - {name} <= set(lake.run_paths())
    assert set(lake.run_paths()) == named(lake)
    assert compacted(lake) == ([SECOND], "")
    assert collect(lake, spans_of(lake)).epochs == 16
    assert all_rows(lake) == rows
    assert set(lake.run_paths()) == named(lake)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_run_is_litter_while_a_manifest_cannot_be_read(lake: OwnedLake, damage: Damage) -> None:
    publish(lake, EVENTS, [(1, 1)])
    rows = all_rows(lake)
    compacted(lake)
    collect(lake, spans_of(lake))
    for name in (segment_path(SECOND), epoch_path(Epoch(EPOCHS + 1))):
        if damage is Path.unlink and name != segment_path(SECOND):
            continue  # a start misses the last manifests
        with damaged(lake, name, damage), pytest.raises(CorruptFile, match=f"{name}|000000000017"):
            remove_litter(lake, lake.run_paths())
    assert remove_litter(lake, lake.run_paths()).runs == 0
    assert all_rows(lake) == rows


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *(("segment", damage) for damage in DAMAGES if damage is not Path.unlink),
        *(("run", damage) for damage in DAMAGES if damage is not one_bit_flipped),
    ],
)
def test_what_a_damaged_segment_was_made_of_stays(lake: OwnedLake, kind: str, damage: Damage) -> None:
    rows = all_rows(lake)
    compacted(lake)
    name, spans = segment_path(SECOND), spans_of(lake)
    if kind == "run":
        name = lake.segment(SECOND).runs[BY_K][0].path
    with damaged(lake, name, damage):
        removed = collect(lake, spans)
        assert [name in told for told in removed.damage] == [True]
        assert removed.epochs == 32
        assert sorted(lake.numbers("epochs")) == list(range(17, 33))
    assert all_rows(lake) == rows
    assert collect(lake, spans_of(lake)).epochs == 16
    assert all_rows(lake) == rows


DAMAGED_SEGMENTS = [
    *(("segment", damage) for damage in (one_bit_flipped, cut_in_half, emptied)),
    *(("run", damage) for damage in DAMAGES if damage is not one_bit_flipped),
]
"""Kinds of files of a segment, and damage that shows without reading all of them."""


def harmed(lake: Lake, kind: str, damage: Damage, span: EpochSpan = SECOND) -> str:
    """The name of a file of a segment that is damaged from now on."""
    name = segment_path(span) if kind == "segment" else lake.segment(span).runs[BY_K][0].path
    damage(Path(lake.root, name))
    return name


@pytest.mark.parametrize(("kind", "damage"), DAMAGED_SEGMENTS)
def test_a_damaged_segment_gives_way_to_its_epochs_at_a_start_and_is_made_again(
    lake: OwnedLake, kind: str, damage: Damage
) -> None:
    rows = all_rows(lake)
    compacted(lake)
    name = harmed(lake, kind, damage)
    if kind == "segment":
        with pytest.raises(CorruptFile, match=r"000000000017\.json: .* the next start of the app goes on with that"):
            lake.segment(SECOND)
    (replaced,) = replace_damaged(lake)
    assert replaced.startswith("epochs 17 to 32 are read apart")
    assert name in replaced
    assert lake.spans(Epoch(EPOCHS)) == [FIRST, *map(single, range(17, 33)), THIRD]
    assert all_rows(lake) == rows
    assert replace_damaged(lake) == []
    assert compacted(lake) == ([SECOND], "")
    if Path(lake.root, name).is_dir():
        Path(lake.root, name).rmdir()
    remove_litter(lake, lake.run_paths())
    assert set(lake.run_paths()) == named(lake)
    assert all_rows(lake) == rows


@pytest.mark.parametrize(("kind", "damage"), DAMAGED_SEGMENTS)
def test_a_damaged_segment_stays_unless_all_that_it_was_made_of_is_whole(
    lake: OwnedLake, kind: str, damage: Damage
) -> None:
    compacted(lake)
    originals = [run_of(lake, 19), epoch_path(Epoch(20))]
    harmed(lake, kind, damage)
    for name in originals:
        with damaged(lake, name, cut_in_half):
            assert replace_damaged(lake) == []
    assert SECOND in lake.segments()
    assert len(replace_damaged(lake)) == 1


def test_a_damaged_segment_whose_epochs_were_collected_stays(lake: OwnedLake) -> None:
    compacted(lake)
    collect(lake, spans_of(lake))
    name = harmed(lake, "segment", one_bit_flipped)
    assert replace_damaged(lake) == []
    with pytest.raises(CorruptFile, match=name):
        all_rows(lake)


def test_what_cannot_be_removed_stays(lake: OwnedLake) -> None:
    compacted(lake)
    harmed(lake, "segment", replaced_by_a_directory)
    assert replace_damaged(lake) == []
    assert SECOND in lake.segments()


def test_a_damaged_segment_gives_way_to_what_it_was_before_it_was_rewritten_and_that_to_its_epochs(
    lake: OwnedLake,
) -> None:
    rows = all_rows(lake)
    compacted(lake)
    again = replace(lake.segment(SECOND), rewritten=Epoch(40))
    lake.publish_segment(again)
    assert again.span in lake.spans(Epoch(EPOCHS))
    harmed(lake, "segment", emptied, again.span)
    assert len(replace_damaged(lake)) == 1
    assert lake.spans(Epoch(EPOCHS)) == [FIRST, SECOND, THIRD]
    lake.publish_segment(again)
    harmed(lake, "segment", emptied, again.span)
    harmed(lake, "segment", emptied)
    assert len(replace_damaged(lake)) == 2
    assert lake.spans(Epoch(EPOCHS)) == [FIRST, *map(single, range(17, 33)), THIRD]
    assert all_rows(lake) == rows


def test_a_damaged_file_that_a_segment_has_replaced_is_removed_as_any_other(lake: OwnedLake) -> None:
    rows = all_rows(lake)
    compacted(lake)
    one_bit_flipped(Path(lake.root, epoch_path(Epoch(19))))
    assert collect_all(lake, 0.0).damage == ()
    assert lake.spans(Epoch(EPOCHS)) == [FIRST, SECOND, THIRD]
    assert list(lake.numbers("epochs")) == []
    assert set(lake.run_paths()) == named(lake)
    assert all_rows(lake) == rows


def test_collection_ends_where_damage_keeps_files(lake: OwnedLake) -> None:
    compacted(lake)
    Path(lake.root, lake.segment(SECOND).runs[BY_K][0].path).unlink()
    removed = collect_all(lake, 0.0)
    assert (removed.epochs, len(removed.damage)) == (32, 1)


def test_a_block_that_cannot_be_merged_is_tried_again_ever_later_and_holds_up_larger_blocks(lake: OwnedLake) -> None:
    now = [0.0]
    plans = SegmentPlanner(lake, 8, now=lambda: now[0])
    whole, wait_s, waits = EpochSpan(Epoch(1), Epoch(256)), AGAIN_S_MIN, []
    with damaged(lake, epoch_path(Epoch(19)), Path.unlink):
        for _ in range(12):
            assert {SECOND, whole} <= set(plans.due(Epoch(256)))
            assert plans.plan(SECOND) is None
            waits.append(wait_s)
            now[0] += wait_s - 0.5
            assert FIRST in plans.due(Epoch(256))
            assert not {SECOND, whole} & set(plans.due(Epoch(256)))
            now[0] += 0.5
            wait_s = min(2 * wait_s, AGAIN_S_MAX)
    assert waits[-2:] == [AGAIN_S_MAX] * 2
    (told,) = plans.failures
    assert epoch_path(Epoch(19)) in told
    plan = plans.plan(SECOND)
    assert plan is not None
    lake.publish_segment(made_of(lake, plans, plan))
    assert SECOND not in plans.due(Epoch(256))
    assert plans.failures == []


def made_of(lake: OwnedLake, plans: SegmentPlanner, plan: SegmentPlan) -> Segment:
    merged = [try_merge(lake, merge, TABLES[table_of(merge.channel)], 8, Evaluator()) for merge in plan.merges]
    segment = plans.segment(plan, merged, lake.term)
    assert segment is not None
    return segment


def test_runs_of_tasks_that_failed_or_ran_twice_are_removed(lake: OwnedLake) -> None:
    plans, rows = SegmentPlanner(lake, 8), all_rows(lake)
    first, second, again = plans.plan(FIRST), plans.plan(SECOND), plans.plan(SECOND)
    assert first is not None
    assert second is not None
    assert again is not None
    for merge in (*first.merges, *second.merges):
        merge_runs(lake, merge, TABLES[table_of(merge.channel)], 8, Evaluator())
    segment, other = made_of(lake, plans, first), made_of(lake, plans, again)
    for each in (segment, other):
        lake.publish_segment(each)
    left = set(lake.run_paths()) - named(lake)
    assert len(left) == len(first.merges) + len(second.merges)
    remove_strays(lake, [(first, segment), (second, None)])
    assert set(lake.run_paths()) == named(lake)
    assert all_rows(lake) == rows
