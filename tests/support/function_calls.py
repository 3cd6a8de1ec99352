"""Calls of every function of the table of functions, for tests."""

from collections.abc import Mapping, Sequence

from upriver.sql.functions.signatures import Function, OperandKind
from upriver.sql.functions.table import TABLE

BY_KIND: Mapping[OperandKind, Sequence[str]] = {
    OperandKind.STRING: ("s", "u", "k"),
    OperandKind.INT: ("i", "j", "imax", "y"),
    OperandKind.WHOLE: ("l", "i", "lmax", "y"),
    OperandKind.DOUBLE: ("x", "w", "i", "f", "p"),
    OperandKind.BYTES: ("s", "bin", "k"),
    OperandKind.BINARY: ("bin",),
    OperandKind.CONDITION: ("b", "c"),
    OperandKind.DATE: ("d", "e", "o", "n", "ltz"),
    OperandKind.CLOCK: ("n", "t", "ntz", "ltz"),
    OperandKind.INSTANT: ("t", "ltz"),
    OperandKind.MOMENT: ("d", "n", "t", "ltz"),
    OperandKind.NUMBER: ("i", "x", "p", "lmax", "f"),
}
"""The columns of :func:`awkward_rows.rows` that a kind of operand is tried with."""
CALLS = 4
"""Calls that are made from the kinds of a function's operands."""


def calls_of(function: Function) -> list[str]:
    """Its samples; if it has none, calls over columns of the kinds that it takes."""
    if function.samples:
        return [sample.strip() for sample in function.samples.split(";")]
    found = []
    for turn in range(CALLS):
        given = (BY_KIND[kind][(turn + place) % len(BY_KIND[kind])] for place, kind in enumerate(function.takes))
        found.append(f"{function.all_names[turn % len(function.all_names)]}({', '.join(given)})")
    return list(dict.fromkeys(found))


def function_of_each() -> dict[str, Function]:
    """By call, the function that it is a sample of."""
    return {call: one for functions in TABLE.values() for one in functions for call in calls_of(one)}


def samples() -> Sequence[str]:
    """All calls, each once."""
    return list(function_of_each())
