"""Leaves in analysed plans: the DataFrames of an app's tables, which have rows while the app runs; and the sources of
the DataFrames from which tables are declared.

A leaf is a map in Arrow; its function's name has its app, and its table or view. In SQL a
temporary view of the table's name is above it.
"""

from collections.abc import Mapping

import pyarrow as pa

from upriver.plan.plan import Scan
from upriver.plan.relation import Relation
from upriver.sql.relations import renamed
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode

LEAF_PREFIX = "upriver:"
"""The beginning of the name of a leaf's function: ``upriver:APP:NAME``."""


def _leaf(translation: Translation, node: TreeNode) -> Relation:
    """A declared table, or a stateful map. What else a DataFrame reads has been refused before."""
    function = node.fields.get("functionExpr") or node.fields.get("func")
    name = function.fields["name"] if isinstance(function, TreeNode) else ""
    read = name.rpartition(":")[2].lower() if name.startswith(LEAF_PREFIX) else ""
    rows = translation.declared(read, node.place, node.fields["output"])
    if rows is None:
        raise translation.source.unsupported(
            node.place, "mapInArrow()", "Declare a stateful map, or call a function of yours by app.function()."
        )
    return rows


def _source(translation: Translation, node: TreeNode) -> Relation:
    """The files, or the catalog's table, that a table's DataFrame reads."""
    columns = node.fields["output"]
    for one in columns:
        if one.type is None:
            raise translation.source.unsupported(node.place, f"a column of {one.fields['dataType']}", "Leave it out.")
    schema = pa.schema([pa.field(one.fields["name"], one.type) for one in columns])
    return renamed(Relation(Scan(SOURCE), (), schema, node.place), [translation.name(one) for one in columns])


SOURCE = "its source"
RULES: Mapping[str, Rule] = {"MapInArrow": _leaf, "PythonMapInArrow": _leaf}
OF_SOURCES: Mapping[str, Rule] = {"StreamingRelation": _source, "LogicalRelation": _source}
"""Leaves of a table's own DataFrame; those of a view have no rows but the app's."""
