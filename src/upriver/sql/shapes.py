"""The shape of a plan: what it has but for the ids of its columns, which tell its uses apart.

Two parts of a query with one shape have the same rows. Spark gives each use of a table or of a subquery ids of its own.
"""

import hashlib
import json
from typing import Any

from upriver.sql.tree import TreeNode

_IDS = frozenset({"exprId", "resultId"})
_COMMON = "CommonExpressionId"


def shape_of(plan: TreeNode) -> tuple[str, tuple[int, ...]]:
    """A text that is the same for plans of one shape, and the ids in the plan, which correspond to each other by
    their places."""
    ids: dict[Any, int] = {}

    def number(id: Any) -> str:
        return f"#{ids.setdefault(id, len(ids))}"

    def said(value: Any, children: tuple[TreeNode, ...]) -> Any:
        if isinstance(value, TreeNode):
            place = next((place for place, one in enumerate(children) if one is value), None)
            return node(value) if place is None else place
        if isinstance(value, list):
            if value and value[0] == _COMMON:
                return number(tuple(map(str, value)))
            return [said(one, children) for one in value]
        return value

    def node(one: TreeNode) -> Any:
        below = [node(child) for child in one.children]
        fields = [
            [name, number(value) if name in _IDS else said(value, one.children)] for name, value in one.fields.items()
        ]
        return [one.kind, str(one.type), below, fields, list(map(number, one.output))]

    text = json.dumps(node(plan), default=str)
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), tuple(ids)
