"""Conformance: each view of the files is what Spark said after each epoch, whatever is cut and moved.

Spark's answers are recorded (``recorded_answers.py``; ``make record`` asks Spark). Rows come in any cuts, keys move
between workers at any time, and every row is found by its key, too. Views that may be partial are kept as such, too:
their keys are read, evicted and read again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from conformance_kit import ConformanceFile, View, read_file, used_tables, with_one_form
from guards_kit import kept
from partial_world import PartialWorld
from plain_values import json_rows
from query_kit import names_are_apart, same_rows
from recorded_answers import FOLDER, Answer, Rows, read_answers, rows_path, types_text
from rows_kit import rows_of

from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.errors import UserError
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.sql.views import compile_view, declare_view

MOVES_ODDS = 0.1
"""How likely keys move at a point at which they may: there are hundreds of such points in a join."""
EVICTED_SHARE = 0.3
"""Of all keys: how many are evicted after each read."""
EVERYTHING = pa.RecordBatch.from_pylist([{EVERYTHING_KEY.names[0]: 0}], EVERYTHING_KEY)
"""The key of a view that is looked up as a whole."""
EVALUATOR = Evaluator()
Keys = Mapping[str, tuple[Any, ...]]
read_once = cache(read_file)
CASES = [(path, view) for path in sorted(FOLDER.glob("*.test")) for view in read_once(path).views]
ANSWERED = [case for case in CASES if case[1].error is None and not case[1].sets_aside]
SETTING_ASIDE = [case for case in CASES if case[1].sets_aside]
REFUSED = [case for case in CASES if case[1].error is not None]


def name_of(value: Path | View) -> str:
    return value.stem if isinstance(value, Path) else f"line {value.line}"


@pytest.mark.parametrize(("path", "view"), ANSWERED, ids=name_of)
def test_a_view_is_what_spark_said_after_each_epoch(path: Path, view: View) -> None:
    file, answer = read_once(path), answer_of(path, view)
    plan = declared(file, view)
    assert types_text(plan.schema) == types_text(answer.said)
    assert names_are_apart(compile_view("v", view.sql, file.tables, {}, analyser(file)).relation)
    assert answer.rows is not None
    assert len(answer.rows) == len(file.contents)
    check_moving(file, plan, answer.rows, Random(view.line))
    if plan.key and why_full(plan, True, sets_aside=()) is None:
        check_partial(file, plan, answer.rows, Random(view.line))


@pytest.mark.parametrize(("path", "view"), SETTING_ASIDE, ids=name_of)
def test_rows_are_set_aside_exactly_where_spark_raised(path: Path, view: View) -> None:
    file, answer = read_once(path), answer_of(path, view)
    found = kept(view.sql, view.key, used_tables(file, view), EVALUATOR, sets_aside=True)
    assert list(found.aside[next(iter(file.tables))]) == answer.aside
    assert json_rows(found.rows) == answer.good_rows


@pytest.mark.parametrize(("path", "view"), REFUSED, ids=name_of)
def test_what_is_refused_says_why(path: Path, view: View) -> None:
    with pytest.raises(UserError) as raised:
        declared(read_once(path), view)
    assert view.error is not None
    assert view.error in str(raised.value)


def check_moving(file: ConformanceFile, plan: DataflowPlan, expected: Sequence[Rows], rng: Random) -> None:
    """All keys are kept, and move between workers."""
    world = DataflowWorld(plan, file.tables, EVALUATOR, rng, moves_odds=MOVES_ODDS)
    for number, changes in enumerate(file.changes):
        world.run_epoch(changes, file.instants[number] if plan.is_clocked else None)
        found, wanted = with_one_form(rows_of(world.scan())), with_one_form(expected[number])
        assert same_rows(found, wanted), f"epoch {number}: {found}\nSpark: {wanted}"
        by_key = with_one_form(looked_up(world, plan, expected[number]))
        assert same_rows(by_key, wanted), f"epoch {number}, by its key: {by_key}\nSpark: {wanted}"


def check_partial(file: ConformanceFile, plan: DataflowPlan, expected: Sequence[Rows], rng: Random) -> None:
    """Keys are read and evicted after each epoch: those of any epoch so far, so some are new and some have no rows."""
    world = PartialWorld(replace(plan, full_because=None), file.tables, EVALUATOR, rng)
    keys: dict[str, tuple[Any, ...]] = {}
    for number, changes in enumerate(file.changes):
        world.run_epoch(changes, file.instants[number] if plan.is_clocked else None)
        keys |= keys_of(plan, expected[number])
        found = with_one_form(rows_of(world.lookup(as_batch(plan, keys)))) if keys else []
        wanted = with_one_form(expected[number])
        assert same_rows(found, wanted), f"epoch {number}, partial: {found}\nSpark: {wanted}"
        world.evict(EVICTED_SHARE)


@cache
def answers(path: Path) -> Mapping[str, Answer]:
    return read_answers(rows_path(path))


def answer_of(path: Path, view: View) -> Answer:
    found = answers(path).get(view.sql)
    assert found is not None, f"{path.name}, line {view.line}: Spark's answer is not recorded; `make record` asks Spark"
    return found


def declared(file: ConformanceFile, view: View) -> DataflowPlan:
    key = view.key if view.error is None else "k"
    return declare_view("v", view.sql, key, file.tables, {}, analyser(file))


def analyser(file: ConformanceFile) -> SharedAnalyser:
    return SharedAnalyser(file.tables, timezone=file.timezone)


def looked_up(world: DataflowWorld, plan: DataflowPlan, wanted: Rows) -> Rows:
    """What is found by the keys that Spark's rows have."""
    if not plan.key:
        return rows_of(world.lookup(EVERYTHING))
    keys = keys_of(plan, wanted)
    return rows_of(world.lookup(as_batch(plan, keys))) if keys else []


def keys_of(plan: DataflowPlan, rows: Rows) -> Keys:
    """The keys of these rows, each once, by a text that tells them apart."""
    places = [plan.schema.get_field_index(name) for name in plan.key]
    return {repr(key): key for key in (tuple(row[place] for place in places) for row in rows)}


def as_batch(plan: DataflowPlan, keys: Keys) -> pa.RecordBatch:
    columns = [
        pa.array(list(values), field.type)
        for values, field in zip(zip(*keys.values(), strict=True), plan.key_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plan.key_schema)
