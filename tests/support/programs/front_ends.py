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

import test_conformance as old
from conformance_kit import read_file
from expression_kit import rows_for  # noqa: F401
from pyspark.sql.pandas.types import from_arrow_schema
from recorded_answers import FOLDER

from upriver.plan.explain import why_full
from upriver.spark import analysed_plans
from upriver.sql.resolved.views import declare

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
        print(f"== {name}: {dict(own)}", flush=True)
        counts += own
    print("total", dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
