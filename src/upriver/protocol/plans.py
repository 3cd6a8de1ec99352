"""Plans as JSON, as they are sent and recorded."""

from collections.abc import Mapping
from typing import Any

from upriver.plan.plan import DataflowPlan
from upriver.protocol.json_forms import record_form


def plan_to_json(plan: DataflowPlan) -> dict[str, Any]:
    """A plan as JSON, as it is sent and recorded."""
    to_json, _ = record_form(DataflowPlan)
    json: dict[str, Any] = to_json(plan)
    return json


def plan_from_json(json: Mapping[str, Any]) -> DataflowPlan:
    """The inverse of :func:`plan_to_json`."""
    _, from_json = record_form(DataflowPlan)
    plan: DataflowPlan = from_json(json)
    return plan
