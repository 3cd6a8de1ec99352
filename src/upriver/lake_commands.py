"""``upriver lake``: the files of a root, for a person; compaction and collection while no app runs."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from upriver.arguments import seconds
from upriver.cli import LAKE_ACTIONS
from upriver.errors import CorruptFile, LakeInUse, UserError
from upriver.lake.address import object_address
from upriver.lake.collection import GRACE_S
from upriver.lake.report import horizon_of_stopped, report_of
from upriver.lake.upkeep import collect_all, collect_changes, compact, existing, taken
from upriver.settings import absolute
from upriver.text import print_json, render_bytes, render_rows


def lake(options: argparse.Namespace) -> int:
    """Report on a root, compact it or collect it."""
    if options.action is None and options.root in LAKE_ACTIONS:
        raise UserError(f"upriver lake {options.root} ROOT: the root is missing. One of that name is ./{options.root}")
    if options.grace is not None and options.action == "compact":
        raise UserError("--grace goes without compact, which removes nothing")
    grace_s = seconds("--grace", GRACE_S if options.grace is None else options.grace)
    root = absolute(options.root)
    if options.action is None:
        told = report_of(existing(root)[0], grace_s).to_json()
        print_json(told) if options.json else print(render_lake(told))
        return 0
    if object_address(root) is not None and not options.stopped:
        raise UserError(
            f"{root}: an object store has no locks, and an app that runs there would fail: stop it, and give --stopped"
        )
    try:
        told, damage = _compacted(root) if options.action == "compact" else _collected(root, grace_s)
    except LakeInUse as error:
        raise LakeInUse(f"{error} (a running app compacts and collects by itself)") from error
    print_json(told) if options.json else print(render_work(told), flush=True)
    if damage:
        raise CorruptFile(damage)
    return 0


def _compacted(root: str) -> tuple[dict[str, Any], str]:
    """What was done, and what stays as it is because files cannot be read."""
    made, damage = 0, ""
    with taken(root) as owned:
        horizon = horizon_of_stopped(owned)
        try:
            for _ in compact(owned, horizon):
                made += 1
        except CorruptFile as error:
            damage = str(error)
        return {"horizon": horizon, "made": made, "spans": len(owned.spans(owned.last_epoch()))}, damage


def _collected(root: str, grace_s: float) -> tuple[dict[str, Any], str]:
    """The same of collection."""
    with taken(root) as owned:
        removed, changes = collect_all(owned, grace_s), collect_changes(owned, grace_s)
        return {"removed": removed.to_json(), "changes": asdict(changes)}, "; ".join(removed.damage)


def render_lake(told: Mapping[str, Any]) -> str:
    """A report for a person."""
    rows = [
        [channel, level, *(f"{tier[name]:,}" for name in ("spans", "runs", "rows")), render_bytes(tier["bytes"])]
        for channel, tiers in told["indexes"].items()
        for level, tier in tiers.items()
    ]
    table = render_rows(["index", "level", "spans", "runs", "rows", "size"], rows, [False, *([True] * 5)])
    removable = told["removable"]
    too_large = f"; {told['too_large']:,} blocks of epochs are too large" if told["too_large"] else ""
    lines = [
        f"{told['root']}: {told['epochs']:,} epochs in {told['spans']:,} spans "
        f"({told['manifests']:,} manifests, {told['segments']:,} segments)",
        "",
        table,
        "",
        f"due: {told['due']:,} segments, up to epoch {told['horizon']:,}{too_large}",
        *(
            f"expired in {table}: {rows['rows']:,} rows or more ({render_bytes(rows['bytes'])}) in all indexes; "
            f"due to be rewritten: {rows['due']:,} segments"
            for table, rows in told["expired"].items()
        ),
        f"may be removed: {removable['epochs']:,} manifests and segments, {removable['runs']:,} runs "
        f"({render_bytes(removable['bytes'])})",
    ]
    return "\n".join(lines)


def render_work(told: Mapping[str, Any]) -> str:
    """What compaction or collection has done, for a person."""
    if "removed" not in told:
        return f"made {told['made']:,} segments up to epoch {told['horizon']:,}: {told['spans']:,} spans"
    removed, changes = told["removed"], told["changes"]
    lines = [
        f"removed {removed['epochs']:,} manifests and segments, {removed['runs']:,} runs "
        f"({render_bytes(removed['bytes'])} of those named)"
    ]
    if changes["files"]:
        lines.append(
            f"removed from the change log: {changes['files']:,} commits and folds, {changes['parts']:,} files of "
            f"changes ({render_bytes(changes['bytes'])})"
        )
    return "\n".join(lines)
