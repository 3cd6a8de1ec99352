"""Control records: what one driver leaves for the next one, and the history of rescales and views.

::

    cluster/<term>-<number>.json

Each record is whole: it makes all earlier ones obsolete, and the last ``RECORDS_KEPT_MAX`` are kept. A later term's
record counts before an earlier term's, so a driver that has lost the root cannot overrule its successor. A record that
is damaged is skipped, and the one before counts: no row depends on which worker owns a vnode.

``docs/internals/lake.md``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from upriver.coordinator.freshness import ReadThrough
from upriver.errors import CorruptFile, LakeError, NotRead, UpriverError
from upriver.ids import Term
from upriver.lake.lake import Lake, OwnedLake, term_path
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, WriteControl
from upriver.records import typed
from upriver.vnodes import Placement

DIRECTORY = "cluster"
RECORDS_KEPT_MAX = 4
"""Records that are kept; older ones are removed when a newer one is there."""
RESCALES_KEPT_MAX = 200
"""Rescales, the last ones, that a record has."""
VIEWS_GONE_MAX = 100
"""Views that were dropped or replaced, the last ones, that a record has."""
INTERRUPTED, DROPPED, REPLACED = "interrupted", "dropped", "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleEntry:
    """One rescale. term, ticket: name it. began_at: in seconds since 1970, by the driver's clock. before, after:
    numbers of workers. outcome: ``None`` while it goes on; else as in its report, or ``interrupted``. error: why.
    seconds: how long it took; ``None`` if that is not known."""

    term: int
    ticket: int
    began_at: float
    strategy: str
    before: int
    after: int
    outcome: str | None = None
    error: str | None = None
    seconds: float | None = None
    moved_vnodes: int = 0
    moved_keys: int = 0
    moved_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {{"before": "from", "after": "to"}.get(name, name): field for name, field in fields.items()}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return typed(cls(**{{"from": "before", "to": "after"}.get(name, name): field for name, field in json.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleCost:
    """What a rescale has cost, as far as workers have reported."""

    seconds: float
    moved_keys: int
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEntry:
    """A declared view. since, until: seconds since 1970, of its first and last record. ended: ``dropped`` or
    ``replaced``; ``None`` while it is declared. functions: those of the user's that it calls, each as its name and a
    digest. maps: as of :class:`DataflowPlan`."""

    name: str
    sql: str
    key: tuple[str, ...]
    is_partial: bool
    since: float
    until: float | None = None
    ended: str | None = None
    functions: tuple[str, ...] = ()
    maps: Mapping[str, str] = field(default_factory=dict)

    def declares_the_same(self, plan: DataflowPlan) -> bool:
        """Other maps that it computes depend on what it is planned together with."""
        function = plan.maps.get(self.name)
        declared = plan.sql, plan.key, plan.full_because is None, _functions_of(plan), function
        return (self.sql, self.key, self.is_partial, self.functions, self.maps.get(self.name, function)) == declared

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": list(self.key), "functions": list(self.functions)}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return typed(cls(**{**json, "key": tuple(json["key"]), "functions": tuple(json.get("functions", ()))}))


def _functions_of(plan: DataflowPlan) -> tuple[str, ...]:
    return tuple(f"{function.name} {function.digest}" for function in plan.functions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """placement: in force when it was written. target: the placement that the cluster was on its way to, if it was.
    rescales: oldest first. views: declared. gone: views that are so no more, oldest first. marks: how far the source of
    each table was read, in seconds since 1970, the last that counted."""

    placement: Placement
    target: Placement | None = None
    rescales: tuple[RescaleEntry, ...] = ()
    views: tuple[ViewEntry, ...] = ()
    gone: tuple[ViewEntry, ...] = ()
    marks: Mapping[str, ReadThrough] = field(default_factory=dict)

    @property
    def maps(self) -> dict[str, str]:
        """The stateful maps of the declared views, each with the definition of its function."""
        return {name: definition for view in self.views for name, definition in view.maps.items()}

    @property
    def to_begin_with(self) -> Placement:
        """The placement of the next driver."""
        return self.target or self.placement

    def of_next_driver(self, placement: Placement) -> Self:
        """What the next driver makes of it. placement: that it begins with."""
        why = f"the driver ended during the rescale; the next one began with {len(placement.workers)} workers"
        rescales = (
            replace(entry, outcome=INTERRUPTED, error=why) if entry.outcome is None else entry
            for entry in self.rescales
        )
        return replace(self, placement=placement, target=None, rescales=tuple(rescales))

    def after(self, action: WriteControl) -> Self:
        """With the placements that the coordinator wants recorded."""
        return replace(self, placement=action.placement, target=action.target)

    def with_begun(self, begun: RescaleBegun, strategy: str, term: Term, at: float) -> Self:
        """A rescale begins."""
        entry = RescaleEntry(
            term=term,
            ticket=begun.ticket,
            began_at=at,
            strategy=strategy,
            before=begun.before,
            after=begun.after,
        )
        return replace(self, rescales=(*self.rescales, entry)[-RESCALES_KEPT_MAX:])

    def with_ended(self, ended: RescaleEnded, cost: RescaleCost, term: Term) -> Self:
        """A rescale has ended; one that has never begun, because it changes nothing, is not in the record."""
        error = None if ended.error is None else str(ended.error)
        rescales = (
            replace(entry, outcome=str(ended.outcome), error=error, moved_vnodes=ended.vnodes, **asdict(cost))
            if (entry.term, entry.ticket) == (term, ended.ticket)
            else entry
            for entry in self.rescales
        )
        return replace(self, rescales=tuple(rescales))

    def with_views(self, plans: Sequence[DataflowPlan], at: float) -> Self:
        """These are the declared views."""
        declared, known = {plan.name: plan for plan in plans}, {view.name: view for view in self.views}
        views, gone = [], list(self.gone)
        for view in self.views:
            if view.name not in declared:
                gone.append(replace(view, until=at, ended=DROPPED))
            elif not view.declares_the_same(declared[view.name]):
                gone.append(replace(view, until=at, ended=REPLACED))
        for plan in plans:
            before = known.get(plan.name)
            if before is not None and before.declares_the_same(plan):
                views.append(replace(before, maps=plan.maps))
            else:
                is_partial = plan.full_because is None
                entry = ViewEntry(
                    name=plan.name,
                    sql=plan.sql,
                    key=plan.key,
                    is_partial=is_partial,
                    since=at,
                    functions=_functions_of(plan),
                    maps=plan.maps,
                )
                views.append(entry)
        return replace(self, views=tuple(views), gone=tuple(gone[-VIEWS_GONE_MAX:]))

    def rescales_to_json(self) -> list[dict[str, Any]]:
        """The rescales as users get them, oldest first."""
        return [entry.to_json() for entry in self.rescales]

    def views_to_json(self) -> list[dict[str, Any]]:
        """The views as users get them: those that are gone, oldest first, then those that are declared."""
        return [view.to_json() for view in (*self.gone, *self.views)]

    def to_json(self) -> dict[str, Any]:
        return {
            "placement": self.placement.to_json(),
            "target": None if self.target is None else self.target.to_json(),
            "rescales": self.rescales_to_json(),
            "views": [view.to_json() for view in self.views],
            "gone": [view.to_json() for view in self.gone],
            "marks": {table: asdict(mark) for table, mark in self.marks.items()},
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        target = json["target"]
        return cls(
            placement=Placement.from_json(json["placement"]),
            target=None if target is None else Placement.from_json(target),
            rescales=tuple(map(RescaleEntry.from_json, json["rescales"])),
            views=tuple(map(ViewEntry.from_json, json["views"])),
            gone=tuple(map(ViewEntry.from_json, json["gone"])),
            marks={table: typed(ReadThrough(**mark)) for table, mark in json.get("marks", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class FoundControl:
    """What a lake has. record: ``None`` if there is none. damaged: why newer ones were skipped."""

    record: ControlRecord | None = None
    damaged: tuple[str, ...] = ()


def find_control(lake: Lake) -> FoundControl:
    """The newest control record that can be read; in a lake of version 0.2, what its last driver was told. Raises
    NotRead if the lake cannot be read now."""
    kept, damaged = lake.record(), []
    if kept is None:
        return FoundControl()
    for name in reversed(lake.files.names(DIRECTORY)):
        path = f"{DIRECTORY}/{name}"
        try:
            record = lake.read_as(path, ControlRecord.from_json)
            vnodes = len(record.to_begin_with.vnode_map.owners)
            if vnodes != kept.vnodes:
                raise CorruptFile(f"{lake.root}/{path}: it has {vnodes} vnodes, and the lake has {kept.vnodes}")
        except NotRead:
            raise
        except (UpriverError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
            damaged.append(str(error) if isinstance(error, UpriverError) else f"{lake.root}/{path}: {error!r}")
        else:
            return FoundControl(record, tuple(damaged))
    return FoundControl(_from_term(lake, kept.vnodes), tuple(damaged))


def _from_term(lake: Lake, vnodes: int) -> ControlRecord | None:
    """Version 0.2 recorded only how many workers each driver had begun with."""
    term = lake.last_number("control")
    if not term:
        return None
    try:
        workers = lake.read_record(term_path(Term(term))).get("workers")
        return None if workers is None else ControlRecord(placement=Placement.initial(vnodes, int(workers)))
    except (UpriverError, TypeError, ValueError, FileNotFoundError):
        return None


def write_control(lake: OwnedLake, record: ControlRecord, number: int, at: float) -> None:
    """Write a record of this term. number: counts up in a term. at: seconds since 1970.

    Raises LakeInUse, NotWritten.
    """
    name = f"{lake.term:08d}-{number:08d}.json"
    lake.commit(f"{DIRECTORY}/{name}", {"term": lake.term, "at": at, **record.to_json()}, f"control record {name}")


def sweep_control(lake: OwnedLake) -> None:
    """Remove all but the last records."""
    lake.remove_all(f"{DIRECTORY}/{name}" for name in lake.files.names(DIRECTORY)[:-RECORDS_KEPT_MAX])


def as_lake_error(error: Exception) -> UpriverError:
    """An error of a write, of any class, for the coordinator."""
    return error if isinstance(error, UpriverError) else LakeError(f"{type(error).__name__}: {error}")
