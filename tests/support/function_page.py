"""The page of functions in the documents, made from the table. Run as a program, it writes the page."""

from pathlib import Path

import pyarrow as pa

from upriver.plan.types import spark_name
from upriver.sql.functions.signatures import Function, OperandKind
from upriver.sql.functions.table import REFUSED, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "functions.md"
_HEAD = """# Functions

Each function gives what Spark gives for it, over the same operands. A test runs each of them beside Spark over awkward
values: NULL, NaN, infinities, the ends of each type, texts of any letters, far dates.

Operands are of the types below, or of types that Spark makes these without loss. Optional operands are in brackets. A
function is NULL where an operand is, unless the table says otherwise. Where a function raises, the row is bad
([bad rows](../guide/sql/bad-rows.md)).
"""


def page() -> str:
    parts = [_HEAD]
    for topic, functions in TABLE.items():
        parts.append(f"\n## {topic}\n")
        parts.append("| function | gives | NULL | raises |\n|---|---|---|---|")
        parts += [_row(function) for function in sorted(functions, key=lambda one: one.names)]
    parts.append("\n## Not supported\n")
    parts.append("`app.view()` refuses any other function. For some, this can be written instead:\n")
    parts.append("| function | instead |\n|---|---|")
    parts += [f"| `{name}` | {instead} |" for name, instead in sorted(REFUSED.items())]
    return "\n".join(parts) + "\n"


def _row(function: Function) -> str:
    first, *others = function.all_names
    names = f"`{first}({_operands(function)})`" + "".join(f", `{name}`" for name in others)
    gives = spark_name(function.gives) if isinstance(function.gives, pa.DataType) else function.gives
    gives += "; its last digit may differ, as between processors" if function.is_rough else ""
    return f"| {names} | {gives} | {function.nulls} | {function.fails} |"


def _operands(function: Function) -> str:
    least, _ = function.counts
    names = [_name(kind) for kind in function.takes]
    if function.repeats:
        names.append("...")
    needed, optional = names[:least] if not function.repeats else names, names[least:] if not function.repeats else []
    return ", ".join(needed) + "".join(
        f"[, {name}]" if needed or place else f"[{name}]" for place, name in enumerate(optional)
    )


def _name(kind: OperandKind) -> str:
    return _NAMES[kind]


_NAMES = {
    OperandKind.STRING: "STRING",
    OperandKind.INT: "INT",
    OperandKind.WHOLE: "BIGINT",
    OperandKind.DOUBLE: "DOUBLE",
    OperandKind.BINARY: "BINARY",
    OperandKind.BYTES: "STRING or BINARY",
    OperandKind.CONDITION: "BOOLEAN",
    OperandKind.DATE: "DATE",
    OperandKind.CLOCK: "TIMESTAMP or TIMESTAMP_NTZ",
    OperandKind.INSTANT: "TIMESTAMP",
    OperandKind.MOMENT: "DATE or TIMESTAMP",
    OperandKind.WRITTEN: "constant",
    OperandKind.NUMBER: "number",
    OperandKind.ANY: "any",
    OperandKind.LAMBDA: "x -> ...",
}

if __name__ == "__main__":
    PAGE.write_text(page())
