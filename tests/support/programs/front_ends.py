"""Compares both front ends over the conformance files: front_ends.py [-v] [NAME[:LINE] ...]

Each view is declared by both; the new plan must give Spark's recorded rows, whatever is moved and evicted. Plans that
Spark has analysed are kept in a folder beside (``PLANS``), by the walker, the tables and the query.
"""

import hashlib
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "engine")]

import pyarrow as pa
import test_conformance as old
from conformance_kit import read_file
from expression_kit import BEYOND_US, computed, query_of, rows_for
from function_calls import function_of_each
from plain_values import RAISES, is_same, json_rows
from pyspark.sql.pandas.types import from_arrow_schema
from recorded_answers import FOLDER, read_answers, rows_path
from sql_kit import spec

from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError
from upriver.plan.column_names import plain_column
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan, Projection, ProjectOp
from upriver.plan.planning import plan_regions, view_key
from upriver.plan.source import Source
from upriver.plan.types import same_type
from upriver.spark import analysed_plans
from upriver.sql.curves import with_curves
from upriver.sql.resolved.translation import Translation
from upriver.sql.resolved.tree import read
from upriver.sql.resolved.views import RULES, relation_of
from upriver.sql.window_functions import all_numbered

PLANS = Path(os.environ.get("PLANS", "/tmp/plans"))


class Analyser:
    def __init__(self):
        self.spark = None
        self.walker = None
        self.version = hashlib.sha1(Path(analysed_plans.__file__).read_bytes()).hexdigest()[:12]

    def start(self):
        from jvm import start_quickly
        from session import session

        os.environ["TZ"] = "UTC"
        time.tzset()
        start_quickly()
        self.spark = session("local[1]", {"spark.sql.session.timeZone": "UTC"})
        self.spark.sparkContext.setLogLevel("OFF")
        self.walker = analysed_plans.PlanWalker(self.spark)

    def plan(self, sql, tables, zone):
        said = repr((self.version, sql, zone, sorted((n, str(t.schema)) for n, t in tables.items())))
        path = PLANS / hashlib.sha1(said.encode()).hexdigest()
        if path.exists():
            titles, _, text = path.read_text().partition("\n")
            return eval(titles), text
        if self.spark is None:
            self.start()
        self.spark.conf.set("spark.sql.session.timeZone", zone)
        for name, table in tables.items():
            schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
            self.spark.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
        frame = self.spark.sql(sql)
        titles, text = frame.columns, self.walker.text_of(frame, sql)
        PLANS.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{titles!r}\n{text}")
        return titles, text


ANALYSER = Analyser()


def declare(name, sql, text, titles, key, tables, zone, typer):
    translation = Translation(Source(name, sql), zone, tables, typer.functions, RULES)
    relation = with_curves(all_numbered(relation_of(translation, read(text, zone), titles)), typer.curve)
    named = view_key(name, relation.schema, tuple(key))
    return DataflowPlan(name, sql, named, relation.schema, plan_regions(name, relation, named, tables, sql))


def check(path, file, view, verbose):
    answer = old.answer_of(path, view)
    before = old.declared(file, view, answer)
    try:
        titles, text = ANALYSER.plan(view.sql, file.tables, file.timezone)
        plan = declare("v", view.sql, text, titles, before.key, file.tables, file.timezone, old.typer_of(answer))
    except Exception as error:
        if verbose:
            traceback.print_exc()
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    if [(f.name, f.type) for f in plan.schema] != [(f.name, f.type) for f in before.schema]:
        return f"schema: {plan.schema} {before.schema}"
    said = ""
    if len(plan.regions) != len(before.regions):
        said += f" regions {len(before.regions)}->{len(plan.regions)}"
    fulls = [why_full(one, True, sets_aside=()) for one in (before, plan)]
    if (fulls[0] is None) != (fulls[1] is None):
        said += f" full {fulls[0]} -> {fulls[1]}"
    try:
        if view.sets_aside:
            return f"ok{said}"
        old.check_moving(file, plan, answer.rows, Random(view.line))
        if plan.key and fulls[1] is None:
            old.check_partial(file, plan, answer.rows, Random(view.line))
    except Exception as error:
        if verbose:
            traceback.print_exc()
        return f"wrong: {type(error).__name__}: {str(error)[: 1500 if verbose else 200]}"
    return f"ok{said}"


def projection(text, rows, zone):
    """How the new front end computes the expression."""
    tables = {"t": spec("t", rows.schema)}
    sql = query_of(text, rows)
    titles, plan = ANALYSER.plan(sql, tables, zone)
    translation = Translation(Source("v", sql), zone, tables, {}, RULES)
    relation, name = relation_of(translation, read(plan, zone), titles), "e"
    while True:
        assert isinstance(relation.op, ProjectOp), relation.op
        place = relation.schema.get_field_index(name)
        sql, field = relation.op.projection.expressions[place], relation.schema.field(place)
        name = plain_column(sql)
        if name is None or not isinstance(relation.inputs[0].op, ProjectOp):
            return Projection((sql,), pa.schema([field.with_name("e")]))
        (relation,) = relation.inputs


def check_expression(text, all_rows, zone, answer, functions, verbose):
    rows = rows_for(text, all_rows)
    failing = [row for row, value in enumerate(answer.values) if value == RAISES]
    try:
        one = projection(text, rows, zone)
    except Exception as error:
        if isinstance(error, DeclarationError) and "fails for every row" in str(error):
            return "ok" if len(failing) == len(answer.values) else "wrong: fails for every row"
        if verbose:
            traceback.print_exc()
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
    (type_,) = answer.asked[text].types
    if not same_type(one.schema.types[0], type_):
        return f"wrong: {one.schema.types[0]} for {type_}"
    function = functions.get(text)
    is_rough = function is not None and function.is_rough
    for row, (mine, spark_s) in enumerate(zip(computed(one, rows, failing, EVALUATOR), answer.values, strict=True)):
        if mine is not BEYOND_US and not is_same(mine, spark_s, is_rough):
            (at_fault,) = json_rows(pa.Table.from_batches([rows.slice(row, 1)]))
            return f"wrong: {str(mine)[:300]} for {str(spark_s)[:300]}" + (f" at {at_fault}" if verbose else "")
    return "ok"


EVALUATOR = Evaluator()


def check_expressions(path, file, verbose, lines):
    own = Counter()
    answers, functions = read_answers(rows_path(path)), function_of_each()
    for group in file.expressions:
        if lines and (path.stem, group.line) not in lines:
            continue
        rows = file.rows_of(group.table)
        for text in group.texts:
            said = check_expression(text, rows, file.timezone, answers[text], functions, verbose)
            own[f"expression {said.split()[0].rstrip(':')}"] += 1
            if said != "ok":
                print(f"{path.stem}:{group.line}: {text}: {said}", flush=True)
    return own


def main(args):
    verbose = "-v" in args
    wanted = [arg for arg in args if arg != "-v"]
    names = [one.partition(":")[0] for one in wanted] or [p.stem for p in sorted(FOLDER.glob("*.test"))]
    lines = {(one.partition(":")[0], int(one.partition(":")[2])) for one in wanted if ":" in one}
    counts = Counter()
    for name in dict.fromkeys(names):
        path = FOLDER / f"{name}.test"
        file = read_file(path)
        own = Counter()
        for view in file.views:
            if view.error is not None or (lines and (name, view.line) not in lines):
                continue
            said = check(path, file, view, verbose)
            own[said.split()[0].rstrip(":")] += 1
            if said != "ok":
                print(f"{name}:{view.line}: {said}", flush=True)
        own += check_expressions(path, file, verbose, lines)
        print(f"== {name}: {dict(own)}", flush=True)
        counts += own
    print("total", dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
