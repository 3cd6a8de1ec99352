"""Control records in a lake: what the next driver finds, what is kept, and what damage does."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from checkpoint_kit import a_lake
from coordinator_kit import PLAN, TABLE, planned
from stateful_kit import recall_op

from upriver.errors import DeclarationError, LakeError, LakeInUse
from upriver.ids import MapVersion, Term, VnodeId, WorkerId
from upriver.lake.control import (
    DIRECTORY,
    RECORDS_KEPT_MAX,
    RESCALES_KEPT_MAX,
    VIEWS_GONE_MAX,
    ControlRecord,
    RescaleCost,
    as_lake_error,
    find_control,
    sweep_control,
    write_control,
)
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.plan.plan import DataflowPlan, Node, Per
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, RescaleOutcome
from upriver.vnodes import Placement

AT = 1_700_000_000.0
COST = RescaleCost(seconds=1.5, moved_keys=7, moved_bytes=70)
BEGUN = RescaleBegun(ticket=3, before=2, after=4, vnodes=8)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def vnodes(lake: OwnedLake) -> int:
    kept = lake.record()
    assert kept is not None
    return kept.vnodes


def record_of(lake: OwnedLake, workers: int = 2, target: int | None = None) -> ControlRecord:
    kept = lake.record()
    assert kept is not None
    first = Placement.initial(kept.vnodes, workers)
    return ControlRecord(placement=first, target=None if target is None else first.resized(target))


def names(lake: OwnedLake) -> Sequence[str]:
    return lake.files.names(DIRECTORY)


def test_a_new_root_has_no_record(tmp_path: Path) -> None:
    found = find_control(Lake(str(tmp_path / "new")))
    assert (found.record, found.damaged) == (None, ())


def test_the_newest_record_is_found_as_it_was_written(lake: OwnedLake) -> None:
    whole = record_of(lake, 3, 5).with_begun(BEGUN, "icadd", Term(1), AT).with_views((PLAN,), AT)
    whole = whole.with_views((planned("other"),), AT + 1)
    write_control(lake, record_of(lake), 1, AT)
    write_control(lake, whole, 2, AT)
    assert find_control(lake).record == whole


def test_the_next_driver_begins_with_the_target_else_with_the_placement(lake: OwnedLake) -> None:
    assert record_of(lake, 2, 4).to_begin_with.workers == (0, 1, 2, 3)
    assert record_of(lake, 3).to_begin_with.workers == (0, 1, 2)


def test_the_last_records_are_kept(lake: OwnedLake) -> None:
    for number in range(1, 12):
        write_control(lake, record_of(lake, number), number, AT)
        sweep_control(lake)
    assert len(names(lake)) == RECORDS_KEPT_MAX
    found = find_control(lake).record
    assert found is not None
    assert len(found.placement.workers) == 11


def test_a_later_term_counts_before_an_earlier_one(tmp_path: Path) -> None:
    first, *_ = lakes = [next(a_lake(tmp_path))]
    for number in (1, 2, 3):
        write_control(first, record_of(first), number, AT)
    first.release()
    kept = first.record()
    assert kept is not None
    lakes.append(OwnedLake(first.root, kept, {}))
    write_control(lakes[1], record_of(lakes[1], 5), 1, AT)
    found = find_control(lakes[1]).record
    assert found is not None
    assert len(found.placement.workers) == 5
    with pytest.raises(LakeInUse):
        write_control(first, record_of(first), 4, AT)
    lakes[1].release()


def test_damaged_records_are_skipped_and_named(lake: OwnedLake, tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        write_control(lake, record_of(lake, number), number, AT)
    *_, third, fourth = [tmp_path / "lake" / DIRECTORY / name for name in names(lake)]
    third.write_bytes(b"{}")
    fourth.write_bytes(fourth.read_bytes().replace(b"3", b"4"))
    found = find_control(lake)
    assert found.record == record_of(lake, 2)
    assert [why.split(":")[0] for why in found.damaged] == [str(fourth), str(third)]


def test_a_record_of_another_number_of_vnodes_is_skipped(lake: OwnedLake, vnodes: int) -> None:
    write_control(lake, record_of(lake), 1, AT)
    write_control(lake, ControlRecord(placement=Placement.initial(2 * vnodes, 4)), 2, AT)
    found = find_control(lake)
    assert found.record == record_of(lake)
    assert f"it has {2 * vnodes} vnodes, and the lake has {vnodes}" in found.damaged[0]


def test_a_lake_of_version_0_2_says_how_many_workers_its_last_driver_began_with(tmp_path: Path) -> None:
    declared = LakeRecord(8, (), {})
    lake = OwnedLake(str(tmp_path / "lake"), declared, {"workers": 3})
    assert find_control(lake).record == ControlRecord(placement=Placement.initial(8, 3))
    lake.release()
    later = OwnedLake(str(tmp_path / "lake"), declared, {})
    assert find_control(later).record is None, "of this version, with no record yet"
    later.release()


# What a record says


def entries(record: ControlRecord) -> list[tuple[str | None, str | None, float | None, int]]:
    return [(entry.outcome, entry.error, entry.seconds, entry.moved_keys) for entry in record.rescales]


def test_a_rescale_is_in_the_history_from_its_beginning_to_its_end(lake: OwnedLake) -> None:
    begun = record_of(lake).with_begun(BEGUN, "icadd", Term(1), AT)
    assert entries(begun) == [(None, None, None, 0)]
    error = LakeError("no room")
    ended = RescaleEnded(ticket=3, outcome=RescaleOutcome.FAILED, vnodes=2, error=error)
    over = begun.with_ended(ended, COST, Term(1))
    assert entries(over) == [("failed", "no room", 1.5, 7)]
    assert over.rescales_to_json() == [
        {
            "term": 1,
            "ticket": 3,
            "began_at": AT,
            "strategy": "icadd",
            "from": 2,
            "to": 4,
            "outcome": "failed",
            "error": "no room",
            "seconds": 1.5,
            "moved_vnodes": 2,
            "moved_keys": 7,
            "moved_bytes": 70,
        }
    ]


def test_tickets_of_other_terms_are_others(lake: OwnedLake) -> None:
    begun = record_of(lake).with_begun(BEGUN, "icadd", Term(1), AT).with_begun(BEGUN, "lazy", Term(2), AT)
    over = begun.with_ended(RescaleEnded(ticket=3, outcome=RescaleOutcome.FINISHED, vnodes=8), COST, Term(2))
    assert [entry.outcome for entry in over.rescales] == [None, "finished"]


def test_the_next_driver_notes_what_was_interrupted(lake: OwnedLake) -> None:
    begun = record_of(lake, 2, 4).with_begun(BEGUN, "icadd", Term(1), AT)
    after = begun.of_next_driver(begun.to_begin_with)
    why = "the driver ended during the rescale; the next one began with 4 workers"
    assert entries(after) == [("interrupted", why, None, 0)]
    assert (after.placement, after.target) == (begun.target, None)
    assert after.of_next_driver(begun.placement).rescales == after.rescales, "and leaves it so"


def test_the_last_rescales_are_kept(lake: OwnedLake) -> None:
    record = record_of(lake)
    for ticket in range(RESCALES_KEPT_MAX + 5):
        record = record.with_begun(replace(BEGUN, ticket=ticket), "icadd", Term(1), AT)
    assert [entry.ticket for entry in record.rescales] == list(range(5, RESCALES_KEPT_MAX + 5))


def test_views_are_noted_when_they_are_declared_replaced_and_dropped(lake: OwnedLake) -> None:
    other = planned("other")
    record = record_of(lake).with_views((PLAN, other), 1.0)
    record = record.with_views((replace(PLAN, sql="SELECT 1"), other), 2.0)
    record = record.with_views((replace(PLAN, sql="SELECT 1"),), 3.0)
    told = [(view["name"], view["sql"], view["since"], view["until"], view["ended"]) for view in record.views_to_json()]
    assert told == [
        ("rows", PLAN.sql, 1.0, 2.0, "replaced"),
        ("other", other.sql, 1.0, 3.0, "dropped"),
        ("rows", "SELECT 1", 2.0, None, None),
    ]


def mapped(name: str, **definitions: str) -> DataflowPlan:
    """A view that computes these stateful maps, by the definitions of their functions."""
    plan = planned(name)
    (region,) = plan.regions
    op = recall_op(TABLE.schema, ("k",), Per.ROW)
    ops = [replace(op, name=of, definition=definition) for of, definition in definitions.items()]
    nodes = tuple(Node(op, (0,), op.output) for op in ops)
    return replace(plan, regions=(replace(region, nodes=(*region.nodes, *nodes)),))


def test_stateful_maps_have_the_definitions_that_were_declared_last(lake: OwnedLake) -> None:
    record = record_of(lake).with_views((planned("rows"),), 1.0)
    assert record.maps == {}
    record = record.with_views((mapped("m", m="one"), mapped("reader", m="one")), 2.0)
    assert record.maps == {"m": "one"}
    planned_together = record.with_views((mapped("m", m="one"), mapped("reader")), 3.0)
    assert planned_together.maps == {"m": "one"}
    assert planned_together.gone == record.gone, "the reader is the same, whatever computes what it reads"
    write_control(lake, planned_together.with_views((mapped("m", m="two"), planned("reader")), 4.0), 1, AT)
    found = find_control(lake).record
    assert found is not None
    assert found.maps == {"m": "two"}
    assert [(view.name, view.ended) for view in found.gone[len(record.gone) :]] == [("m", "replaced")]
    assert found.with_views((), 5.0).maps == {}


def test_the_last_views_that_are_gone_are_kept(lake: OwnedLake) -> None:
    record = record_of(lake)
    for number in range(VIEWS_GONE_MAX + 5):
        record = record.with_views((planned(f"v{number}"),), float(number))
    assert [view.name for view in record.gone] == [f"v{number}" for number in range(4, VIEWS_GONE_MAX + 4)]


def test_an_error_of_any_class_becomes_one_of_the_lake() -> None:
    assert str(as_lake_error(pa.ArrowInvalid("odd"))) == "ArrowInvalid: odd"
    own = DeclarationError("own")
    assert as_lake_error(own) is own


def test_a_placement_of_many_vnodes_is_small(lake: OwnedLake) -> None:
    """Run lengths: a map of few ranges takes few bytes."""
    placement = Placement.initial(65_536, 64)
    assert len(str(placement.to_json())) < 2_000
    scattered = placement.vnode_map.moved({VnodeId(0): WorkerId(63)})
    assert Placement.from_json(Placement(placement.workers, scattered).to_json()).vnode_map.version == MapVersion(1)
