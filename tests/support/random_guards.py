"""Queries at random in which an expression that may fail stands behind a guard, or none, in any position.

Every function, operator and cast of the front end (a *construct*) is drawn in every position, over awkward values.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from random import Random

from awkward_rows import AWKWARD, COLUMNS, rows
from conformance_kit import read_file
from function_calls import calls_of
from recorded_answers import FOLDER
from sql_kit import spec

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import UserError
from upriver.plan.source import Source
from upriver.plan.types import spark_name
from upriver.sql.expressions import RULES as OPERATORS
from upriver.sql.functions.table import TABLE
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode, read
from upriver.sql.user_functions import UserFunctions
from upriver.sql.views import RULES

# ruff: noqa: E501  queries are easier to read on one line

GUARDS = (
    "i > 0",
    "j <> 5",
    "r % 3 = 0",
    "b",
    "s <> ''",
    "y IS NOT NULL AND c",
    "(l < 5 OR d > DATE '2000-01-01')",
    "TRUE",
)
POSITIONS: Mapping[str, Sequence[str]] = {
    "select": (
        "SELECT r, {e} AS made FROM rows_ WHERE {g}",
        "SELECT r, j DIV (j - i) + length(s || CAST({e} AS STRING)) AS made FROM rows_ WHERE {g}",
        "SELECT r, coalesce(i, j) * length(CAST({e} AS STRING)) - l AS made FROM rows_ WHERE {g} AND i - length(CAST({e} AS STRING)) < 9",
    ),
    "filter": (
        "SELECT r, {e} AS made FROM rows_ WHERE {g} AND ({e}) IS NOT NULL",
        "SELECT r FROM rows_ WHERE ({e}) IS NULL AND {g}",
        "SELECT r FROM rows_ WHERE ({e}) IS NOT NULL AND {g}",
        "SELECT r FROM rows_ WHERE {g} AND NOT ({e}) <=> ({e})",
    ),
    "CASE": (
        "SELECT r, CASE WHEN {g} THEN made END AS made FROM (SELECT *, {e} AS made FROM rows_)",
        "SELECT r, coalesce(if({g}, NULL, made), made) AS made FROM (SELECT *, {e} AS made FROM rows_)",
        "SELECT r, ({g}) AND made IS NULL AS made FROM (SELECT *, {e} AS made FROM rows_)",
        "SELECT r, CASE WHEN {g} THEN {e} END AS made FROM rows_",
    ),
    "outer query": (
        "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) WHERE {g}",
        "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) WHERE {g} AND made IS NOT NULL",
        "SELECT r FROM (SELECT *, {e} AS made FROM rows_ WHERE {g})",
        "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) WHERE made IS NOT NULL AND {g}",
    ),
    "FILTER": (
        "SELECT y AS r, count(*) AS n, count({e}) FILTER (WHERE {g}) AS made FROM rows_ GROUP BY y",
        "SELECT y AS r, count(made) FILTER (WHERE {g}) AS n, 1 AS made FROM (SELECT *, {e} AS made FROM rows_) GROUP BY y",
        "SELECT y AS r, count(*) FILTER (WHERE ({e}) IS NOT NULL AND {g}) AS made FROM rows_ GROUP BY y",
    ),
    "group": (
        "SELECT {e} AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY {e}",
        "SELECT r, made FROM (SELECT y AS r, count({e}) AS made FROM rows_ GROUP BY y) WHERE r < 0",
        "SELECT CAST({e} AS STRING) AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY CAST({e} AS STRING)",
    ),
    "having": (
        "SELECT y AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY y HAVING max({e}) IS NOT NULL AND y < 9",
        "SELECT y AS r, count({e}) AS made FROM rows_ WHERE {g} GROUP BY y HAVING y > 0 AND count(*) > 0",
        "SELECT y AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY y HAVING max(CAST({e} AS STRING)) IS NOT NULL AND y < 9",
    ),
    "rank": (
        "SELECT r FROM (SELECT r, y, rank() OVER (PARTITION BY y ORDER BY {e}, r) AS n FROM rows_) WHERE n < 3 AND y > 0",
        "SELECT r, made FROM (SELECT r, {e} AS made, rank() OVER (ORDER BY r) AS n FROM rows_ WHERE {g}) WHERE n < 3",
        "SELECT r FROM (SELECT r, rank() OVER (PARTITION BY CAST({e} AS STRING) ORDER BY r) AS n FROM rows_ WHERE {g}) WHERE n < 2",
    ),
    "join": (
        "SELECT a.r, made FROM other a JOIN (SELECT r, {e} AS made FROM rows_) q ON a.r = q.r WHERE a.r % 4 = 1",
        "SELECT id AS r, made FROM (SELECT r AS id FROM other) LEFT JOIN (SELECT *, {e} AS made FROM rows_) ON id = r AND {g}",
        "SELECT id AS r, made FROM (SELECT r AS id FROM other) LEFT JOIN (SELECT *, {e} AS made FROM rows_) ON id = r WHERE {g}",
        "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) FULL JOIN (SELECT r AS id FROM other) ON id = r WHERE {g} AND id < 90",
        "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) RIGHT JOIN (SELECT r AS id FROM other) ON id = r + 7 WHERE {g} AND r > 9",
    ),
    "join condition": (
        "SELECT r FROM rows_ a LEFT JOIN (SELECT r AS id, r % 5 AS rest FROM other) q ON r = id AND ({e}) IS NOT NULL WHERE rest > 0 AND {g}",
        "SELECT a.r FROM (SELECT *, {e} AS made FROM rows_) a JOIN (SELECT r AS id FROM other) o ON a.r = o.id AND made IS NOT NULL AND {g}",
        "SELECT a.r FROM rows_ a JOIN (SELECT CAST(r AS STRING) AS id FROM other) q ON CAST({e} AS STRING) = q.id WHERE {g}",
        "SELECT a.r FROM rows_ a JOIN (SELECT r AS id FROM other) o ON ({e}) IS NOT NULL AND a.r = o.id AND {g}",
        "SELECT r, id AS made FROM rows_ LEFT JOIN (SELECT r AS id, r % 7 AS rest FROM other) ON r = id AND {g} AND ({e}) <=> ({e}) AND rest < j",
    ),
    "subquery": (
        "SELECT r FROM rows_ WHERE {g} AND CAST({e} AS STRING) IN (SELECT CAST(r AS STRING) FROM other WHERE r > 0)",
        "SELECT r FROM rows_ WHERE {g} AND EXISTS (SELECT {e} FROM others o WHERE o.r = rows_.r)",
    ),
    "union": ("SELECT r, made FROM (SELECT *, {e} AS made FROM rows_ UNION ALL SELECT *, {e} FROM rows_) WHERE {g}",),
    "distinct": ("SELECT r FROM (SELECT DISTINCT r, b, c, i, j, l, s, y, d, {e} AS made FROM rows_) WHERE {g}",),
}
"""Queries in which {e} is evaluated. r, made: the number of a row or group, and what is computed."""


TARGETS: tuple[str, ...] = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "DATE")
TARGETS += ("TIMESTAMP_NTZ", "TIMESTAMP", "DECIMAL(5,2)", "DECIMAL(38,0)")
CASTS = tuple(f"CAST({column} AS {target})" for column in (*COLUMNS, *AWKWARD) for target in TARGETS)
"""Of every column to every type; the front end refuses some."""


SPEC = spec("rows_", rows().schema)
"""The table of awkward values."""
NESTED = frozenset({"Arrays, structs and maps", "Lambdas", "URLs", "JSON"})
"""Topics of functions over nested values, URLs and JSON, which are not drawn."""


_BATCH = 60
"""Expressions that are analysed as one query: analysing a query takes long."""
_ANALYSER = SharedAnalyser({"rows_": SPEC})


def _trees(listed: Sequence[str]) -> Mapping[str, TreeNode]:
    """The expressions that Spark takes, as it has analysed them: each as a projection of it alone."""
    query = f"SELECT {', '.join(f'{text} AS e{place}' for place, text in enumerate(listed))} FROM rows_"
    try:
        plan = read(_ANALYSER.analysed("v", query, {}).plan, "UTC")
    except UserError:
        half = len(listed) // 2
        return {**_trees(listed[:half]), **_trees(listed[half:])} if half else {}
    found = {}
    for text, column in zip(listed, plan.fields["projectList"], strict=True):
        found[text] = replace(plan, fields={**plan.fields, "projectList": [column]}, output=(column.id,))
    return found


def _all_trees(listed: Sequence[str]) -> Mapping[str, TreeNode]:
    found: dict[str, TreeNode] = {}
    for start in range(0, len(listed), _BATCH):
        found |= _trees(listed[start : start + _BATCH])
    return found


def _is_translated(tree: TreeNode) -> bool:
    try:
        Translation(Source("", ""), "UTC", {"rows_": SPEC}, UserFunctions({}), RULES).relation(tree)
    except UserError:
        return False
    return True


@cache
def is_taken(expression: str) -> bool:
    """Whether the front end takes the expression."""
    return any(_is_translated(tree) for tree in _trees([expression]).values())


@cache
def casts_taken() -> Sequence[str]:
    """Those of ``CASTS`` that the front end takes."""
    return [text for text, tree in _all_trees(CASTS).items() if _is_translated(tree)]


def _constructs(tree: TreeNode) -> frozenset[str]:
    """The operators of an expression by Catalyst's class, and its casts of columns by their types."""
    found: set[str] = set()
    for node in tree.fields["projectList"][0].walk():
        found.add(node.kind)
        if node.kind == "Cast" and node.children[0].is_column:
            types = (spark_name(one.type).partition("(")[0] for one in (node.children[0], node))
            found.add(" AS ".join(types))
    return frozenset(found & OPERATORS.keys() | {one for one in found if " AS " in one})


@cache
def expressions() -> Mapping[str, Sequence[str]]:
    """The expressions that the front end takes, by construct: the first name of a function, or as of ``_constructs``. A
    constant that fails is Spark's to raise for no rows as well as for all, so each names a column."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    plain = [one for topic, functions in TABLE.items() if topic not in NESTED for one in functions]
    samples = {call: one.all_names[0] for one in plain for call in calls_of(one)}
    written = (group.texts for group in read_file(FOLDER / "expressions.test").expressions)
    for expression, tree in _all_trees(list(dict.fromkeys((*chain(*written), *samples, *casts_taken())))).items():
        names_column = any(node.is_column for node in tree.fields["projectList"][0].walk())
        if names_column and "CAST('x' AS INT)" not in expression:
            for construct in (*_constructs(tree), *([samples[expression]] if expression in samples else [])):
                found[construct].append(expression)
    return {construct: tuple(found[construct]) for construct in sorted(found)}


def draws(rng: Random) -> Iterator[tuple[str, str]]:
    """Each construct in each position once, in any order, over and over."""
    pairs = list(product(expressions(), POSITIONS))
    while True:
        rng.shuffle(pairs)
        yield from pairs


def guarded(rng: Random, construct: str, position: str) -> str:
    """A query with the construct in the position."""
    expression = rng.choice(expressions()[construct])
    as_text = is_taken(f"CAST({expression} AS STRING)")
    form = rng.choice([form for form in POSITIONS[position] if as_text or "CAST({e} AS STRING)" not in form])
    return form.replace("{e}", expression).replace("{g}", rng.choice(GUARDS))
