"""The condition that makes a version of a row a deletion: what it says, and what is refused."""

import pyarrow as pa
import pytest

from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.errors import UserError
from upriver.plan.plan import TableSpec
from upriver.sql.views import deletion

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("op", pa.string()),
        ("gone", pa.bool_()),
        ("odd `name`", pa.int32()),
        ("tags", pa.list_(pa.int32())),
    ]
)
CHANGES = TableSpec("changes", SCHEMA, ("id",), ("odd `name`",), ("id",))
OPS = ["D", "U", None, "d", "D"]
ROWS = pa.RecordBatch.from_pydict(
    {
        "id": range(5),
        "op": OPS,
        "gone": [None, True, False, True, None],
        "odd `name`": [1, 2, 3, None, 5],
        "tags": [None] * 5,
    },
    schema=SCHEMA,
)


def translated(sql: str) -> str:
    return deletion(sql, CHANGES, SharedAnalyser({"changes": CHANGES}))


@pytest.mark.parametrize(
    ("sql", "deleted"),
    [
        ("op = 'D'", [0, 4]),
        ("OP = 'D'", [0, 4]),
        ("changes.op = 'D'", [0, 4]),
        ("gone", [1, 3]),
        ("NOT gone", [2]),
        ("op IS NULL OR lower(op) = 'd' AND id > 0", [2, 3, 4]),
        ("`odd ``name``` >= 3", [2, 4]),
        ("op IN ('D', 'X') -- whatever else", [0, 4]),
        ("op = 'D'\n  AND /* ( */ id = 4", [4]),
        ("(op = 'D') AND (id < 3)", [0]),
        ("op = ')'", []),
        ("true", [0, 1, 2, 3, 4]),
        ("op = 'D' AND 1 / id > 0", [4]),
    ],
)
def test_it_says_what_spark_says(sql: str, deleted: list[int]) -> None:
    rows = ROWS.slice(1) if "1 / id" in sql else ROWS
    is_deleted = Evaluator().mask(rows, translated(sql))
    assert [id for id, gone in zip(rows.column("id").to_pylist(), is_deleted, strict=True) if gone] == deleted


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", r"table 'changes', deletes: .*empty statement"),
        ("op = 'D' AND nothing > 1", r"table 'changes', deletes: .*`nothing`.*line 1 pos 13"),
        ("op = 'D'\n AND nothing > 1", r"table 'changes', deletes: .*`nothing`.*line 2 pos 5"),
        (
            "id = 1\n AND rand() > 1",
            r"table 'changes', deletes: line 2, column 6: rand\(\).* is not supported",
        ),
        ("tags IS NULL AND shuffle(tags) = tags", r"table 'changes', deletes: line 1.* is not supported"),
        ("id + 1", "table 'changes', deletes"),
        ("count(*) > 1", "table 'changes', deletes"),
        ("id IN (SELECT id FROM changes)", "deletes: .*a condition on other rows is not supported"),
        ("id > (SELECT max(id) FROM changes)", "deletes: .*a condition on other rows is not supported"),
        ("op = 'D' GROUP BY op", "table 'changes', deletes"),
        ("op = 'D", "table 'changes', deletes"),
        ("op = 'D') OR (id = 1", r"near '\)'.*line 1, pos 8"),
        ("op = 'D'; DROP TABLE changes", "near ';'.*line 1, pos 8"),
    ],
)
def test_what_is_no_condition_is_refused(sql: str, said: str) -> None:
    with pytest.raises(UserError, match=f"(?s){said}"):
        translated(sql)
