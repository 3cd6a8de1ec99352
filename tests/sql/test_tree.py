"""Analysed plans of several versions of Spark have the same classes when they are read."""

import json
from typing import Any

from upriver.sql.tree import read


def written(kind: str, name: str, **fields: Any) -> str:
    return json.dumps({"c": kind, "p": name, "f": fields, "ch": []})


def test_classes_of_spark_4_0_have_their_later_names() -> None:
    node = read(written("TimeAdd", "timeadd", timeZoneId="UTC"), "UTC")
    assert (node.kind, node.name) == ("TimestampAddInterval", "timestampaddinterval")


def test_an_item_that_fails_on_no_place_is_get() -> None:
    node = read(written("GetArrayItem", "getarrayitem", failOnError=False), "UTC")
    assert (node.kind, node.name, dict(node.fields)) == ("Get", "get", {})
    node = read(written("GetArrayItem", "getarrayitem", failOnError=True), "UTC")
    assert (node.kind, node.fields["failOnError"]) == ("GetArrayItem", True)
