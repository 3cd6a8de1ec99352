"""The sources of a streaming DataFrame, in a few words: Spark's errors seldom name the server or the table."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

_SERVERS = ("kafka.bootstrap.servers",)
_THINGS = ("subscribe", "subscribePattern", "assign", "path")
"""Options of readers that name a source. Other options may hold secrets and are not shown."""
NAMED_MAX = 3
"""Sources of one DataFrame that are named."""


def source_names(rows: DataFrame) -> str:
    """The topics with their servers, and the paths, that a streaming DataFrame reads; empty if its plan has none."""
    plan = rows._jdf.queryExecution().analyzed()
    named = dict.fromkeys(name for options in _options(plan) if (name := _name(options)))
    return ", ".join(list(named)[:NAMED_MAX])


def _options(plan: Any) -> Iterator[dict[str, str]]:
    """For each streaming source in a plan, in lower case, the options of its reader."""
    leaves = plan.collectLeaves()
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        match str(leaf.getClass().getSimpleName()):
            case "StreamingRelationV2":
                told = leaf.extraOptions().asCaseSensitiveMap()
                yield {str(name).lower(): str(told[name]) for name in told}
            case "StreamingRelation":
                told = leaf.dataSource().options()
                names = (*_SERVERS, *_THINGS)
                yield {name.lower(): str(told.apply(name)) for name in names if told.contains(name)}


def _name(options: dict[str, str]) -> str:
    thing = next((options[name.lower()] for name in _THINGS if name.lower() in options), "")
    server = next((options[name] for name in _SERVERS if name in options), "")
    return f"{thing} at {server}" if server else thing
