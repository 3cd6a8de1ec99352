"""Compaction and collection of a root whose app is stopped. A running app does both by itself."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from upriver.engine.expressions import Evaluator
from upriver.errors import CorruptFile, DeclarationError
from upriver.ids import Epoch, Term
from upriver.lake.change_folding import ChangeFolding, RemovedChanges
from upriver.lake.change_log import sweep_changes
from upriver.lake.collection import RemovedFiles, collect, remove_litter, superseded
from upriver.lake.compaction import Merge, MergeResult, SegmentPlan, SegmentPlanner, remove_strays, try_merge
from upriver.lake.ingest_history import IngestHistory, check_taken, fence
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, term_path
from upriver.lake.manifests import Segment
from upriver.lake.reclamation import Reclamation
from upriver.lake.repair import replace_damaged
from upriver.lake.report import horizon_of_stopped
from upriver.plan.plan import TableSpec, table_of


def existing(root: str) -> tuple[Lake, LakeRecord]:
    """The lake at a root, and its record. Raises DeclarationError if there is none, CorruptFile."""
    lake = Lake(root)
    record = lake.record()
    if record is None:
        lake.check_not_foreign()
        raise DeclarationError(f"root={str(root)!r}: there is no app's lake")
    return lake, record


@contextmanager
def taken(root: str) -> Iterator[OwnedLake]:
    """The lake, taken as a driver takes it, with everything declared as it is kept; released in the end.

    Repairs what can be repaired, and reads every span. Raises LakeInUse if an app runs on it, CorruptFile if epochs are
    missing, and DeclarationError if there is no lake.
    """
    lake, record = existing(root)
    owned = OwnedLake(root, record, _facts(lake))
    try:
        replace_damaged(owned)
        fence(owned)
        history = IngestHistory()
        for span in owned.spans(owned.last_epoch()):
            history.add(owned.epochs(span))
        check_taken(owned, history)
        yield owned
    finally:
        owned.release()


def _facts(lake: Lake) -> dict[str, Any]:
    """This process, and what the last driver has recorded: readers need some of that."""
    term = lake.last_number("control")
    last = lake.read_record(term_path(Term(term))) if term else {}
    of_driver = {name: fact for name, fact in last.items() if name not in ("term", "owner")}
    return {**of_driver, "host": socket.gethostname(), "process": os.getpid(), "started_at": time.time()}


def compact(lake: OwnedLake, horizon: Epoch) -> Iterator[Segment]:
    """Make all segments that are due, rewrite those with many rows that have left, and give each once it is committed.
    horizon: no epoch up to it is needed apart. Raises NotWritten, LakeInUse; at the end CorruptFile, if blocks stay as
    they are because files cannot be read."""
    record = lake.kept_record()
    tables = {table.name: table for table in record.tables}
    plans, reclamation = SegmentPlanner(lake, record.vnodes), Reclamation(lake, record.vnodes)
    merge = partial(_merged, lake, tables, record.vnodes, Evaluator())
    while spans := plans.due(horizon):
        for span in spans:
            if plans.is_waiting(span) or (plan := plans.plan(span, horizon)) is None:
                continue
            if (segment := _carried_out(lake, plans, plan, merge)) is not None:
                yield segment
    if not plans.failures:
        for span in reclamation.due(horizon, tables):
            plan = reclamation.plan(span, horizon, tables)
            if (segment := _carried_out(lake, plans, plan, merge)) is not None:
                yield segment
    if plans.failures:
        raise CorruptFile("; ".join(plans.failures))


def _merged(
    lake: OwnedLake, tables: Mapping[str, TableSpec], vnodes: int, evaluator: Evaluator, merge: Merge
) -> MergeResult:
    return try_merge(lake, merge, tables[table_of(merge.channel)], vnodes, evaluator)


def _carried_out(
    lake: OwnedLake, plans: SegmentPlanner, plan: SegmentPlan, carry_out: Callable[[Merge], MergeResult]
) -> Segment | None:
    """The segment, committed; ``None`` if a file cannot be read."""
    segment = plans.segment(plan, [carry_out(merge) for merge in plan.merges], lake.term)
    if segment is None:
        remove_strays(lake, [(plan, None)])
    else:
        lake.publish_segment(segment)
    return segment


def collect_changes(lake: OwnedLake, grace_s: float) -> RemovedChanges:
    """Remove what has been folded of the change log, and the parts that nothing names. grace_s: as for ``collect_all``.
    Raises CorruptFile, LakeInUse."""
    folding = ChangeFolding(lake, None)
    removed = folding.remove(grace_s)
    sweep_changes(lake, folding.log)
    return removed


def collect_all(lake: OwnedLake, grace_s: float) -> RemovedFiles:
    """Remove everything that is not needed any more. grace_s: seconds for which replaced files stay. Raises
    CorruptFile, LakeInUse."""
    lake.sweep()
    total, horizon, made_before = RemovedFiles(), horizon_of_stopped(lake), time.time() - grace_s
    while spans := list(superseded(lake, horizon, made_before)):
        removed = collect(lake, spans)
        total += removed
        if not removed.epochs:
            break  # damage: these files stay
    return total + remove_litter(lake, lake.run_paths())
