"""Each expression of the conformance files gives, row by row, what Spark gave, and fails where Spark raised.

Spark's answers are recorded (``recorded_answers.py``). The front end refuses a constant that fails for each row.
"""

from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from conformance_kit import Expressions, read_file
from expression_kit import BEYOND_US, computed, projection, rows_for, tried
from function_calls import function_of_each
from plain_values import RAISES, is_same, json_rows
from recorded_answers import FOLDER, Answer, read_answers, rows_path
from sql_kit import spec

from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError
from upriver.plan.plan import Projection
from upriver.plan.types import same_type
from upriver.sql.functions.signatures import RAISES as ALWAYS_RAISES

EVALUATOR = Evaluator()
read_once, answers_once, functions = cache(read_file), cache(read_answers), cache(function_of_each)
CASES = [(path, group) for path in sorted(FOLDER.glob("*.test")) for group in read_once(path).expressions]
DECIMALS = "wide_decimals"


def name_of(value: Path | Expressions) -> str:
    return value.stem if isinstance(value, Path) else f"line {value.line}"


@pytest.mark.parametrize(("path", "group"), CASES, ids=name_of)
def test_expressions_give_what_spark_gave(path: Path, group: Expressions) -> None:
    rows = read_once(path).rows_of(group.table)
    wrong = [text for text in group.texts if not _is_right(path, text, rows_for(text, rows))]
    assert not wrong


def _is_right(path: Path, text: str, rows: pa.RecordBatch) -> bool:
    """Prints what is wrong."""
    answer = answer_of(path, text)
    assert answer.values is not None
    failing = [row for row, value in enumerate(answer.values) if value == RAISES]
    try:
        one = declared(path, text, rows, answer)
    except DeclarationError as error:
        return "fails for every row" in str(error) and len(failing) == len(answer.values)
    found = computed(one, rows, failing, EVALUATOR)
    function = functions().get(text)
    is_rough = function is not None and function.is_rough
    assert function is None or function.fails or RAISES not in found, f"the table does not say that {text} fails"
    for row, (mine, spark_s) in enumerate(zip(found, answer.values, strict=True)):
        if mine is not BEYOND_US and not is_same(mine, spark_s, is_rough):
            (at_fault,) = json_rows(pa.Table.from_batches([rows.slice(row, 1)]))
            print(f"{text}: {mine}\nSpark: {spark_s}\nrow: {at_fault}")
            return False
    return True


@pytest.mark.parametrize(("path", "group"), [case for case in CASES if case[0].stem == DECIMALS], ids=name_of)
def test_decimals_with_try_are_null_where_spark_raised(path: Path, group: Expressions) -> None:
    rows = read_once(path).rows_of(group.table)
    for text in group.texts:
        mine, answer = rows_for(text, rows), answer_of(path, text)
        assert answer.values is not None
        wanted = [None if value == RAISES else value for value in answer.values]
        found = tried(declared(path, text, mine, answer), mine, EVALUATOR)
        assert all(map(is_same, found, wanted)), f"{text}: {found}\nSpark: {wanted}"


@pytest.mark.parametrize(("path", "group"), [case for case in CASES if case[1].are_samples], ids=name_of)
def test_the_table_says_what_spark_gives_without_ansi_mode_where_it_raises(path: Path, group: Expressions) -> None:
    for text in group.texts:
        function, answer = functions()[text], answer_of(path, text)
        assert answer.values is not None
        if RAISES in answer.values and function.fails:
            assert function.lenient != "NULL" or answer.lenient == "NULL", text
            assert function.lenient == ALWAYS_RAISES or answer.lenient != "raises", text


def answer_of(path: Path, text: str) -> Answer:
    found = answers_once(rows_path(path)).get(text)
    assert found is not None, f"{path.name}: Spark's answer is not recorded; `make record` asks Spark: {text}"
    return found


def declared(path: Path, text: str, rows: pa.RecordBatch, answer: Answer) -> Projection:
    """With the type that Spark gave it."""
    zone = read_once(path).timezone
    made = projection(text, rows, SharedAnalyser({"t": spec("t", rows.schema)}, timezone=zone))
    (ours,), said = made.schema.types, answer.said
    assert isinstance(said, pa.Schema)
    assert same_type(ours, said.types[0])
    return made
