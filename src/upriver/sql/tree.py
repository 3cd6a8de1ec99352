"""Catalyst's resolved trees as records: nodes of plans and of expressions, with Arrow's types.

The text comes from :class:`upriver.spark.analysed_plans.PlanWalker`. The ids of columns tell those of one
name apart; they are others each time that a query is analysed.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from upriver.plan.types import EMPTY_MAP, array_type, is_null, map_type, struct_type

_PLAIN = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_COLUMN = "AttributeReference"


def arrow_type(written: Any, zone: str) -> pa.DataType:
    """Spark's type, as its JSON has it, in a session of this time zone. Raises TypeError for one that no column has."""
    if isinstance(written, Mapping):
        kind = written["type"]
        if kind == "array":
            return array_type(arrow_type(written["elementType"], zone))
        if kind == "map":
            key, value = arrow_type(written["keyType"], zone), arrow_type(written["valueType"], zone)
            return EMPTY_MAP if is_null(key) else map_type(key, value)
        if kind == "struct":
            fields = written["fields"]
            return struct_type([one["name"] for one in fields], [arrow_type(one["type"], zone) for one in fields])
        raise TypeError(kind)
    if written == "timestamp":
        return pa.timestamp("us", tz=zone)
    if written.startswith("interval") and "month" not in written and "year" not in written:
        return pa.duration("us")
    decimal = _DECIMAL.fullmatch(written)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if written in _PLAIN:
        return _PLAIN[written]
    raise TypeError(written)


@dataclass(frozen=True, eq=False)
class TreeNode:
    """A plan or an expression.

    kind: Catalyst's class. fields: its parts by name. children: its operands, or the plans beneath. type: of an
    expression; ``None`` for a plan, and for a type that no column has. nullable, deterministic: of an expression, as
    Spark has it. name: of a function. place, end: the offsets of the first and the last letter of its text in the SQL;
    ``None`` for what Spark has added. Of a DataFrame the place is the number of a place in Python. output: the ids of
    a plan's columns. parameters: what a function was called with, if Spark replaces it by another expression; they may
    name columns that are no longer there.
    """

    kind: str
    fields: Mapping[str, Any]
    children: tuple["TreeNode", ...] = ()
    type: pa.DataType | None = None
    nullable: bool = True
    deterministic: bool = True
    name: str = ""
    place: int | None = None
    end: int | None = None
    output: tuple[int, ...] = ()
    parameters: tuple["TreeNode", ...] | None = None

    def walk(self) -> Iterator["TreeNode"]:
        """The node and all below, parents first."""
        yield self
        for one in self.children:
            yield from one.walk()

    def over(
        self, children: Sequence["TreeNode"], other: Callable[["TreeNode"], "TreeNode"] = lambda one: one
    ) -> "TreeNode":
        """The same over other children, which its fields name, too. other: gives what takes the place of a node in its
        fields that is no child."""
        places = {id(old): new for old, new in zip(self.children, children, strict=True)}

        def part(value: Any) -> Any:
            if isinstance(value, TreeNode):
                return places[id(value)] if id(value) in places else other(value)
            return [part(one) for one in value] if isinstance(value, list) else value

        fields = {name: part(value) for name, value in self.fields.items()}
        return replace(self, fields=fields, children=tuple(children))

    @property
    def id(self) -> int:
        """Of a column, or of what is named."""
        found: int = self.fields["exprId"]
        return found

    @property
    def is_column(self) -> bool:
        return self.kind == _COLUMN

    @cached_property
    def meaning(self) -> str:
        """The same for expressions that mean the same, wherever they stand. Of a column it is the id, since what Spark
        knows of its values differs by the place."""
        if self.is_column:
            return f"#{self.id}"
        parts = {name: _plain(value) for name, value in self.fields.items()}
        text = json.dumps([self.kind, parts, [one.meaning for one in self.children]], default=str)
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def references(self) -> frozenset[int]:
        """The ids of the columns that an expression names."""
        return frozenset(one.id for one in self.walk() if one.is_column)


def _plain(value: Any) -> Any:
    if isinstance(value, TreeNode):
        return value.meaning
    return [_plain(one) for one in value] if isinstance(value, list) else value


def read(text: str, zone: str, places: list[str] | None = None) -> TreeNode:
    """The plan that a walker has written. zone: the session's time zone. places: of a DataFrame's plan, gets the places
    in Python."""
    return _node(json.loads(text), zone, places)


def _node(given: Mapping[str, Any], zone: str, places: list[str] | None, around: int | None = None) -> TreeNode:
    """around: the place of the expression around it."""
    place = given["o"][0] if "o" in given else around
    if places is not None and "py" in given:
        place = _place_in_python(given["py"], places)
    below = place if "t" in given and places is not None else None
    children = tuple(_node(one, zone, places, below) for one in given["ch"])
    if given["c"] == "With":
        return _without_shared(*children)
    if given["c"] == "Between":
        return children[0]  # two conditions, joined by AND

    def value(part: Any) -> Any:
        if isinstance(part, list):
            return [value(one) for one in part]
        if isinstance(part, dict):
            if "$" in part:
                return children[part["$"]]
            if "c" in part:
                return _node(part, zone, places, below)
        return part

    try:
        type = arrow_type(given["t"], zone) if "t" in given else None
    except TypeError:
        type = None
    kind, name = _RENAMED.get(given["c"], (given["c"], given.get("p", "")))
    fields = {name: value(part) for name, part in given["f"].items()}
    if kind == "GetArrayItem" and fields.get("failOnError") is False:  # what Spark 4.0 makes of get()
        kind, name = "Get", "get"
        del fields["failOnError"]
    return TreeNode(
        kind=kind,
        fields=fields,
        children=children,
        type=type,
        nullable=given.get("n", True),
        deterministic=given.get("d", True),
        name=name,
        place=place,
        end=given["o"][1] if "o" in given else None,
        output=tuple(given.get("out", ())),
        parameters=tuple(value(given["ps"])) if "ps" in given else None,
    )


_RENAMED = {"TimeAdd": ("TimestampAddInterval", "timestampaddinterval")}
"""The later class, and name, of expressions of Spark 4.0."""


def _place_in_python(context: Sequence[str], places: list[str]) -> int:
    """context: the method that was called in Python, and its file and line."""
    method, place = context
    shown = f"{place} ({method})"
    if shown not in places:
        places.append(shown)
    return places.index(shown)


def _without_shared(node: TreeNode, *shared: TreeNode) -> TreeNode:
    """An expression with the values that it uses several times in their places."""
    values = {_shared_id(one): one.children[0] for one in shared}
    return changed(node, lambda one: values.get(_shared_id(one)) if one.kind == "CommonExpressionRef" else None)


def _shared_id(node: TreeNode) -> str:
    return str(node.fields["id"])


def changed(node: TreeNode, change: Callable[[TreeNode], TreeNode | None]) -> TreeNode:
    """The tree with other nodes in place of those for which ``change`` gives one, from the top."""
    found = change(node)
    if found is not None:
        return found
    children = tuple(changed(one, change) for one in node.children)
    if all(new is old for new, old in zip(children, node.children, strict=True)):
        return node
    return node.over(children)


def chain(node: TreeNode, kind: str) -> list[TreeNode]:
    """The operands of a chain of AND, or of OR, in order. kind: ``And`` or ``Or``."""
    if node.kind != kind:
        return [node]
    return [part for one in node.children for part in chain(one, kind)]


def conjuncts(node: TreeNode) -> Sequence[TreeNode]:
    """The conditions that this one joins by AND."""
    return chain(node, "And")


def substituted(node: TreeNode, columns: Mapping[int, TreeNode]) -> TreeNode:
    """An expression with other ones in the places of columns. columns: by their ids."""
    if node.is_column:
        return columns.get(node.id, node)
    if node.references.isdisjoint(columns):
        return node

    def inner(one: TreeNode) -> TreeNode:
        return substituted(one, columns)

    parameters = None if node.parameters is None else tuple(map(inner, node.parameters))
    return replace(node.over(tuple(map(inner, node.children)), inner), parameters=parameters)
