"""How fresh tables and views are, and the states of sources, as the coordinator reports them to clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from upriver.ids import BEGINNING, Epoch
from upriver.protocol.json_forms import record_form


class SourceState(StrEnum):
    """The state of a source, as users see it."""

    RUNNING = "running"
    """Its attempt is alive, and takes rows or waits for some."""
    STALLED = "stalled"
    """Its attempt is alive and has work, but has finished no batch for ``STALLED_S``, or the source has not answered
    for ``UNANSWERED_S``."""
    FAILING = "failing"
    """Its attempt follows a failure, has shown nothing yet, and is not stalled either."""
    FAILED = "failed"
    """Its last attempt ended with an error; the next one, if there will be one, has not begun."""
    FINISHED = "finished"
    """All rows are in the lake, and no more will come."""


TROUBLED = (SourceState.FAILED, SourceState.FAILING, SourceState.STALLED)
"""In the order in which a view's answers name them."""


@dataclass(frozen=True, slots=True)
class TableFreshness:
    """A table's freshness, as clients get it. age_s: seconds since the newest moment whose offered rows are all
    reflected; ``None`` if there is no such moment. cause: why it is not fresher. lacks: what it lacks until it is
    ready; ``None`` if it is."""

    state: str
    age_s: float | None
    cause: str
    lacks: str | None

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "age_s": self.age_s, "cause": self.cause, "lacks": self.lacks}


@dataclass(frozen=True, slots=True)
class FreshnessReport:
    """The coordinator's report on all tables. epoch: the last one that every worker reflects: no later lookup gets an
    answer as of an earlier one. Without tables nothing is known, and no client waits. unread: by table, why its rows
    were not all read since the start, where lookups go on without that. later: the tables that were added to the
    running app, which is ready without them."""

    epoch: Epoch
    tables: Mapping[str, TableFreshness]
    unread: Mapping[str, str] = field(default_factory=dict)
    later: tuple[str, ...] = ()

    def app_lacks(self) -> str | None:
        """What the app lacks to be ready; ``None`` if it is. Lookups of one view ask for its own tables' ``lacks``."""
        unread = (f"table {table!r}: {why}" for table, why in self.unread.items())
        return self.lacks(table for table in self.tables if table not in self.later) or next(unread, None)

    def lacks(self, tables: Iterable[str]) -> str | None:
        """What the first of these tables that is not ready lacks; ``None`` if all are ready."""
        lacking = ((table, self.tables[table].lacks) for table in tables if table in self.tables)
        return next((f"table {table!r}: {lacks}" for table, lacks in lacking if lacks is not None), None)

    def age_s(self, tables: Iterable[str]) -> float | None:
        """Seconds since the newest moment as of which all these tables are reflected; ``None`` if it is not known."""
        ages = [self.tables[table].age_s if table in self.tables else None for table in tables]
        known = [age for age in ages if age is not None]
        return max(known) if ages and len(known) == len(ages) else None

    def cause(self, tables: Iterable[str]) -> str:
        """Why these tables are not fresher: the cause of the oldest one."""
        known = [(table, self.tables[table]) for table in tables if table in self.tables]
        if not known:
            return "nothing is known of its sources"
        table, oldest = max(known, key=lambda each: float("inf") if each[1].age_s is None else each[1].age_s)
        return f"table {table!r}: {oldest.cause}"

    def sources(self, tables: Iterable[str]) -> str | None:
        """``running``, or every other state with its tables, as in ``failed: orders``. ``None``: not known."""
        states: dict[str, list[str]] = {}
        for table in tables:
            if table in self.tables:
                states.setdefault(self.tables[table].state, []).append(table)
        troubled = [f"{state}: {', '.join(states[state])}" for state in TROUBLED if state in states]
        return "; ".join(troubled) or (SourceState.RUNNING if states else None)

    def to_json(self) -> dict[str, Any]:
        tables = {name: table.to_json() for name, table in self.tables.items()}
        return {"epoch": self.epoch, "tables": tables, "unread": dict(self.unread), "later": list(self.later)}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        _, from_json = record_form(FreshnessReport)
        report: Self = from_json(json)
        return report


NOTHING_KNOWN = FreshnessReport(BEGINNING, {})
