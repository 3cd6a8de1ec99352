"""One view's plan on its way to relations: what all operators share.

A column is known by its id. In relations it has a name: its title, made unique in the order of the walk. Ids differ
each time that a query is analysed, and the plans of a restarted app must not.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType

import pyarrow as pa

from upriver.plan.column_names import NAME_CHARS_MAX, unique
from upriver.plan.plan import ALL_ALIKE, Scan, TableSpec
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import Source
from upriver.plan.types import is_null
from upriver.sql.expressions import Expressions
from upriver.sql.functions.scalars import column_scalar, null
from upriver.sql.relations import ALIKE, Output, projected, relabelled, renamed
from upriver.sql.shapes import shape_of
from upriver.sql.time_windows import bounds, field_of, is_made, is_window, unnamed, window_of
from upriver.sql.tree import TreeNode
from upriver.sql.user_functions import UserFunctions

Rule = Callable[["Translation", TreeNode], Relation]
NO_OPERATOR = "Write the query with SELECT, JOIN, GROUP BY, window functions and set operations."
_IN_SQL = {"Sample": "TABLESAMPLE", "CollectMetrics": "observe()"}
"""Spark's classes of operators, as queries name them."""
_WITH_STATE = frozenset({"Aggregate", "Join", "Window", "Distinct", "Deduplicate", "Except", "Intersect"})
"""Operators whose rows cost state or a move between workers."""
_OF_SPARK = re.compile(r"_groupingexpression|_w\d+|_we\d+")
"""Names that Spark gives to what it computes ahead of groups and of window functions."""
_ID = re.compile(r"(?<=\w)#\d+L?\b")
"""The id of a column in names that Spark 4.0 gives: another one each time."""
_AROUND = frozenset({"AggregateExpression", "Alias"})
"""Classes that are shown as their first operand."""
_SIGNS = {
    "Add": "+",
    "And": "AND",
    "Divide": "/",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "Multiply": "*",
    "Or": "OR",
    "Remainder": "%",
    "Subtract": "-",
}
_CAST = re.compile(
    r"(?:(?:try_)?cast|boolean|tinyint|smallint|int|bigint|float|double|decimal|date|timestamp|binary|string)\s*\(",
    re.IGNORECASE,
)
_CAST_BY_SIGN = re.compile(r"[^\s()]+\s*::\s*\w+(?:\([\d, ]+\))?")


def _is_one_call(text: str) -> bool:
    """Whether the parenthesis that opens first closes at the end."""
    depths = list(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in text))
    return 0 not in depths[text.index("(") : -1] and depths[-1] == 0


class Translation:
    """The translation of one view. rules: by the class of an operator. functions: the user's own. taken: names that no
    column may have, lower case."""

    def __init__(
        self,
        source: Source,
        zone: str,
        tables: Mapping[str, TableSpec],
        functions: UserFunctions,
        rules: Mapping[str, Rule],
        maps: Mapping[str, Relation] = MappingProxyType({}),
    ) -> None:
        self.source, self.zone, self.functions = source, zone, functions
        self.tables = {name.lower(): spec for name, spec in tables.items()}
        self.maps = {name.lower(): rows for name, rows in maps.items()}
        """The rows of stateful maps."""
        self.taken: set[str] = set()
        self.queries: dict[int, tuple[Relation, tuple[int, ...]]] = {}
        """Of WITH, by id: the rows, and the ids of their columns."""
        self._rules = rules
        self._names: dict[int, str] = {}
        self._translated: dict[str, tuple[Relation, tuple[int, ...]]] = {}
        """The rows of operators with a state, by their shapes, and the ids in their plans."""
        self.ignored: list[tuple[int, str, str]] = []
        """What the SQL says to no effect: its place, what it is, and why."""
        self.beside: dict[str, str] = {}
        """The columns of what is computed beside the rows of an expression, by its meaning."""

    def relation(self, node: TreeNode) -> Relation:
        """The rows of an operator. Raises UnsupportedSql, DeclarationError."""
        rule = self._rules.get(node.kind)
        if rule is None:
            raise self.source.unsupported(node.place, _IN_SQL.get(node.kind, node.kind), NO_OPERATOR)
        if node.kind not in _WITH_STATE:
            return rule(self, node)
        shape, ids = shape_of(node)
        if shape not in self._translated:
            self._translated[shape] = rule(self, node), ids
            return self._translated[shape][0]
        known, places = self._translated[shape][0], dict(zip(ids, self._translated[shape][1], strict=True))
        return self._again(known, node, places)

    def _again(self, known: Relation, node: TreeNode, places: Mapping[int, int]) -> Relation:
        """The rows of an operator that the query has twice, so that they are computed once. known: its rows. places:
        the ids of the known columns, by those of this use."""
        names: dict[str, str] = {}
        for id in node.output:
            name = self._names[places[id]]
            if name not in known.schema.names:
                return self._rules[node.kind](self, node)
            names[self._names.setdefault(id, unique(name, self.taken))] = name
        return relabelled(known, names)

    def declared(self, name: str, place: int | None, columns: Sequence[TreeNode]) -> Relation | None:
        """The rows of a declared table, or of a stateful map, which each view computes by itself; ``None`` if there is
        none. name: in lower case. columns: of the rows, as the plan has them."""
        if name in self.maps:
            rows = replace(self.maps[name], place=place)
        elif name in self.tables:
            rows = Relation(Scan(self.tables[name].name), (), self.tables[name].schema, place)
        else:
            return None
        return renamed(rows, [self.name(one) for one in columns])

    # Columns

    def name(self, column: TreeNode) -> str:
        """The name of the column that a node is, or makes."""
        if column.id not in self._names:
            title = _ID.sub("", column.fields["name"])
            if _OF_SPARK.fullmatch(title) and column.kind == "Alias":
                title = self.worded(column.children[0])
            self._names[column.id] = unique(title[:NAME_CHARS_MAX], self.taken)
        return self._names[column.id]

    def name_of(self, id: int) -> str:
        """The name of a column that is known by now."""
        return self._names[id]

    def column(self, rows: Relation, name: str) -> Scalar:
        """A column of the rows, with what is known of it."""
        nulls = frozenset[str]() if name in rows.certain else None
        return replace(column_scalar(name, rows.schema.field(name).type), fails=name in rows.deferred, nulls=nulls)

    def exact(self, rows: Relation, ids: Sequence[int]) -> Relation:
        """These columns alone, in this order; a repeated one under a name of its own."""
        outputs: list[Output] = []
        for id in ids:
            name = self._names[id]
            title = unique(name, self.taken) if any(one.name == name for one in outputs) else name
            outputs.append(Output(title, self.column(rows, name)))
        outputs = outputs or self.alike()
        return rows if [one.name for one in outputs] == rows.schema.names else projected(rows, outputs, None)

    def names_in(self, node: TreeNode) -> frozenset[str]:
        """The columns that an expression uses: those that it names, and those of what is computed beside its rows."""
        if node.is_column:
            return frozenset({self.name(node)})
        beside = self.beside.get(node.meaning) if self.beside else None
        if beside is not None:
            return frozenset({beside})
        return frozenset[str]().union(*map(self.names_in, node.children))

    def uses(self, nodes: Iterable[TreeNode]) -> Counter[str]:
        """How often expressions name each column."""
        found = Counter[str]()
        for node in nodes:
            beside = self.beside.get(node.meaning) if self.beside else None
            if node.is_column or beside is not None:
                found[self.name(node) if beside is None else beside] += 1
            else:
                found += self.uses(node.children)
        return found

    def worded(self, node: TreeNode) -> str:
        """The name of a column that is computed: as the SQL has it, because messages show such names."""
        while node.kind == "Cast" and not self._is_written(node):
            (node,) = node.children
        if node.is_column:
            return self.name(node)
        if node.place is not None and node.end is not None:
            text = self.source.sql[node.place : node.end + 1]
        else:
            text = self._spelled(node)
        text = " ".join(text.replace('"', "").replace("`", "").split())
        return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}..."

    def _spelled(self, node: TreeNode) -> str:
        """An expression that has no text here, such as one of a view that this view reads."""
        if node.kind == "Literal":
            return str(node.fields["value"])
        operands = [self.worded(one) for one in node.children]
        if node.kind in _AROUND and operands:
            return operands[0]
        sign = _SIGNS.get(node.kind)
        if sign is not None:
            return f" {sign} ".join(operands)
        return f"{node.name or node.kind.lower()}({', '.join(operands)})"

    def _is_written(self, cast: TreeNode) -> bool:
        """Whether the SQL has a cast. One that Spark has added has the place of the expression around, and a column the
        place of its first use anywhere."""
        if cast.place is None or cast.end is None:
            return False
        text = self.source.sql[cast.place : cast.end + 1]
        return _CAST_BY_SIGN.fullmatch(text) is not None or (_CAST.match(text) is not None and _is_one_call(text))

    def of_name(self, name: str, type: pa.DataType) -> TreeNode:
        """A column that an operator makes, as a node of conditions."""
        id = -len(self._names) - 1
        self._names[id] = name
        return TreeNode("AttributeReference", {"exprId": id, "name": name}, type=type)

    # Expressions

    def over(self, *relations: Relation) -> Expressions:
        """The expressions over rows with the columns of all these relations."""

        def leaf(node: TreeNode) -> Scalar | None:
            name = self.name(node) if node.is_column else self.beside.get(node.meaning) if self.beside else None
            rows = next((one for one in relations if name is not None and name in one.schema.names), None)
            return None if rows is None or name is None else self.column(rows, name)

        return Expressions(self.source, self.zone, leaf, self.functions)

    def outputs(self, listed: Sequence[TreeNode], over: Expressions) -> list[Output]:
        """The columns that a projection lists, each once."""
        found: dict[str, Output] = {}
        for one in listed:
            for output in self._windowed(one, over) or [Output(self.name(one), self._typed(over.of(one)))]:
                found.setdefault(output.name, output)
        return list(found.values()) or self.alike()

    def _typed(self, value: Scalar) -> Scalar:
        return null(pa.bool_()) if is_null(value.type) else value

    def _windowed(self, node: TreeNode, over: Expressions) -> list[Output]:
        """A window of time, with its start and its end beside it; empty for other columns."""
        sides = bounds(node, over) if is_window(node) else None
        if sides is None:
            return []
        parts = zip(self.parts_of_window(node), sides, strict=True)
        window = window_of(*sides, node.type) if is_made(node) else over.of(node)
        return [Output(self.name(node), window), *(Output(name, side) for name, side in parts)]

    def parts_of_window(self, node: TreeNode) -> tuple[str, str]:
        """The names of the columns with the start and the end of a window of time that is a column, or becomes one."""
        start, end = (self._part(node, place) for place in (0, 1))
        return start, end

    def _part(self, node: TreeNode, place: int) -> str:
        field = field_of(node, place)
        if field.meaning not in self.beside:
            name = unique(f"{self.name(node)}.{field.fields['name']}", self.taken)
            self.beside |= {field.meaning: name, unnamed(field).meaning: name}
        return self.beside[field.meaning]

    def alike(self) -> list[Output]:
        """A column that all rows have alike, for rows without any: a batch would not know how many there are."""
        return [Output(unique(ALL_ALIKE, self.taken), ALIKE)]
