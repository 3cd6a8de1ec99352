"""Which views can be partial (document 004, "Partial Eligibility"): keep only the keys that are looked up.

A missing key is filled by reading its rows out of the lake. In a region that only lake edges feed, each input is
indexed by the routing key, so the lake has them at hand. Over an exchange edge they are found by way of the keys that
the key rests on, if those can be traced (``provenance.py``).
"""

from collections.abc import Collection

from upriver.plan.graph import NOT_WANTED, DataflowPlan, LakeEdge
from upriver.plan.ops import StatefulMap
from upriver.plan.provenance import why_untraced


def why_full(plan: DataflowPlan, wanted: bool, sets_aside: Collection[str]) -> str | None:
    """Why all keys of a view are kept, in words; ``None`` if only those need be that are looked up.

    wanted: as declared. sets_aside: the tables whose bad rows are set aside.
    """
    if not wanted:
        return NOT_WANTED
    if (untraced := why_untraced(plan)) is not None:
        return untraced
    if any(isinstance(node.op, StatefulMap) for region in plan.regions for node in region.nodes):
        return "a user's function is to see each row, and once"
    edges = [entry.edge for region in plan.regions for entry in region.inputs]
    aside = sorted({edge.table for edge in edges if isinstance(edge, LakeEdge)} & set(sets_aside))
    if aside:
        return f"bad rows of {', '.join(aside)} are set aside as they come, whether somebody reads their keys or not"
    return None
