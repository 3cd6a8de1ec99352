"""One picture of a running app as plain JSON: what the page draws, served at ``/v1/river``.

``picture`` is a pure function of what the coordinator says. ``RiverFeed`` asks the coordinator, at most once in
``PICTURE_S_MIN`` for all viewers together, and keeps a bounded history for the charts. The shape:

| key | |
|---|---|
| `at` | when the picture was made, in seconds since 1970 |
| `epoch`, `published` | as in the status: the last epoch that every view reflects, and the last in the lake |
| `summary` | `level` (`good`, `note`, `warning`, `bad`) and `text`, one plain sentence |
| `troubles` | worst first: `level`, `kind` and `name` of what has it; `what`, `why`, `then`, stale `views`, `hint` |
| `tables` | each table with its source: the status of it, and `name`, `level`, `age_s`, `cause`, `lacks` |
| `views` | each view: the status of it, and `name`, `level`, `key`, `tables`, `is_partial`, `regions`, `age_s` |
| `workers` | as in the status, with `level`; `vnodes` counted in `owners`, which change during a rescale |
| `vnodes` | `version` of the map, and `owners`: the worker of each vnode |
| `rescale`, `rescales_waiting`, `rescales` | as in the status; and the last ended rescales of the app, oldest first |
| `history` | `at`, `epoch`, `published`, `age_s`, `rows_per_s` and `map_version` over time, a list each, oldest first |
"""

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from upriver.client.client import Client
from upriver.errors import ClusterError, UpriverError
from upriver.plan.types import spark_name
from upriver.protocol.freshness import FreshnessReport
from upriver.protocol.lookups import Routing, ViewRoute

Json = dict[str, Any]

PICTURE_S_MIN = 0.5
"""Seconds between two pictures: all viewers meanwhile get the same one."""
PICTURE_S_MAX = 5.0
"""Seconds that a viewer waits for the picture that another one has asked for."""
POINTS_MAX = 600
"""Points of the history that are kept; the oldest is forgotten first."""
POINT_S_MIN = 1.0
"""Seconds between two points of the history, at least."""
SAMPLE_S = 5.0
"""Seconds between two points of the history without a viewer."""
RESCALES_SHOWN_MAX = 10
"""Ended rescales in a picture: the last ones."""
EXPLAINED_AT_ONCE_MAX = 20
"""Views that one picture asks the coordinator to explain; the next pictures ask for the others."""
BEHIND_S = 30.0
"""Seconds of age from which a table whose source runs counts as behind."""

GOOD, NOTE, WARNING, BAD = "good", "note", "warning", "bad"
LEVELS = (GOOD, NOTE, WARNING, BAD)
"""How bad something is, from well to bad."""
HISTORY = ("at", "epoch", "published", "age_s", "rows_per_s", "map_version")
"""What a point of the history has."""


def picture(
    status: Mapping[str, Any],
    routing: Routing,
    explained: Mapping[str, Mapping[str, Any]],
    rescales: Sequence[Mapping[str, Any]],
    at: float,
) -> Json:
    """The picture without its history. explained: as ``Client.explain``, of the views that are explained so far.
    rescales: as in ``Client.rescales``. at: seconds since 1970."""
    tables = [_table(name, told, routing.freshness) for name, told in sorted(status.get("tables", {}).items())]
    levels = {table["name"]: table["level"] for table in tables}
    views = [
        _view(name, told, routing, explained.get(name), levels)
        for name, told in sorted(status.get("views", {}).items())
    ]
    owned = Counter(int(each) for each in routing.vnode_map.owners)
    workers = [
        {**worker, "vnodes": owned[worker["worker"]], "level": _worker_level(worker)}
        for worker in status.get("workers", ())
    ]
    troubles = _troubles(status, tables, views, workers)
    return {
        "at": at,
        "epoch": status["epoch"],
        "published": status.get("published", status["epoch"]),
        "summary": _summary(tables, views, troubles),
        "troubles": troubles,
        "tables": tables,
        "views": views,
        "workers": workers,
        "vnodes": {
            "version": int(routing.vnode_map.version),
            "owners": [int(each) for each in routing.vnode_map.owners],
        },
        "rescale": status.get("rescale"),
        "rescales_waiting": status.get("rescales_waiting", 0),
        "rescales": [rescale for rescale in rescales if rescale["outcome"] is not None][-RESCALES_SHOWN_MAX:],
    }


def _table(name: str, told: Mapping[str, Any], report: FreshnessReport) -> Json:
    freshness = report.tables.get(name)
    age_s = freshness.age_s if freshness else None
    lacks = freshness.lacks if freshness else None
    state = told.get("state", "running")
    level = GOOD
    if state in ("failed", "failing"):
        level = BAD
    elif state == "stalled":
        level = WARNING
    elif lacks is not None:
        level = NOTE
    elif state == "running" and age_s is not None and age_s >= BEHIND_S:
        level = WARNING
    cause = freshness.cause if freshness else None
    return {**told, "name": name, "level": level, "age_s": _rounded(age_s), "cause": cause, "lacks": lacks}


def _view(
    name: str,
    told: Mapping[str, Any],
    routing: Routing,
    explained: Mapping[str, Any] | None,
    levels: Mapping[str, str],
) -> Json:
    route = routing.views.get(name)
    tables = list(route.tables) if route else []
    regions = [] if explained is None else [_region(region) for region in explained.get("regions", ())]
    level = max((levels.get(table, GOOD) for table in tables), key=LEVELS.index, default=GOOD)
    if told.get("state") == "failed":
        level = BAD
    elif told.get("error") is not None:
        level = _worse(level, WARNING)
    elif level == BAD:  # the view answers: only its rows are old
        level = WARNING
    return {
        **told,
        "name": name,
        "level": level,
        "key": [] if route is None else _key(route),
        "tables": tables,
        "is_partial": bool(regions) and regions[-1]["state"] == "partial",
        "regions": regions,
        "age_s": None if told.get("state") == "failed" else _rounded(routing.freshness.age_s(tables)),
    }


def _region(region: Mapping[str, Any]) -> Json:
    return {
        "name": region["region"],
        "stage": region["depth"],
        "key": list(region["routing_key"]),
        "state": region["state"],
        "sends": [send["to"] for send in region["sends"]],
    }


def _key(route: ViewRoute) -> list[Json]:
    return [
        {"name": field.name, "type": spark_name(field.type)}
        for field in (route.schema.field(name) for name in route.key if name in route.schema.names)
    ]


def _worker_level(worker: Mapping[str, Any]) -> str:
    if worker.get("address") is None:
        return BAD
    return WARNING if worker.get("held_up") else GOOD


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _worse(one: str, other: str) -> str:
    return max(one, other, key=LEVELS.index)


# In plain words

_SPARK_CODES = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\] ?| ?SQLSTATE: [0-9A-Z]{5}")
"""Codes in errors of Spark. The sentences around them say the same; a table's own ``error`` keeps them."""


def _trouble(
    level: str,
    of: tuple[str, str],
    what: str,
    *,
    why: str | None = None,
    then: str | None = None,
    views: Iterable[str] = (),
    hint: str | None = None,
) -> Json:
    """of: kind and name of what has the trouble."""
    kind, name = of
    why = None if why is None else _SPARK_CODES.sub("", why).strip()
    words = {"what": what, "why": why, "then": then, "views": list(views), "hint": hint}
    return {"level": level, "kind": kind, "name": name, **words}


def _troubles(
    status: Mapping[str, Any], tables: Sequence[Json], views: Sequence[Json], workers: Sequence[Json]
) -> list[Json]:
    found = [_of_table(table, views) for table in tables if table["level"] != GOOD]
    found += [_of_view(view) for view in views if view.get("state") == "failed" or view.get("error") is not None]
    found += [_of_worker(worker) for worker in workers if worker["level"] != GOOD]
    found += _of_app(status, has_failed_source=any(table["level"] in (WARNING, BAD) for table in tables))
    return sorted(found, key=lambda trouble: -LEVELS.index(trouble["level"]))


def _of_table(table: Json, views: Sequence[Json]) -> Json:
    name = table["name"]
    stale = [view["name"] for view in views if name in view["tables"]]
    of, level = ("table", name), table["level"]
    if table.get("state") in ("failed", "failing"):
        retry_in_s, attempts = table.get("retry_in_s"), table.get("attempts")
        then = "It is not tried again by itself."
        if table["state"] == "failing":
            then = f"It is being tried again: attempt {attempts} has run for {table['attempt_for_s'] or 0:.0f} s."
        elif retry_in_s is not None:
            then = f"It is tried again in {retry_in_s:.0f} s. Attempts so far: {attempts}."
        return _trouble(
            level,
            of,
            f"The source of table {name} has failed. No new rows of it arrive.",
            why=table.get("error"),
            then=then,
            views=stale,
            hint=f"Mend what the error names. app.restart_source({name!r}) then tries at once. No rows are lost: the "
            f"source goes on where it stopped.",
        )
    if table.get("state") == "stalled":
        for_s = table.get("stalled_for_s")
        since = "makes no progress" if for_s is None else f"has finished no batch for {for_s:.0f} s"
        return _trouble(
            level,
            of,
            f"The source of table {name} {since}.",
            why=table.get("error"),
            views=stale,
            hint="See whether Spark has free cores for its query, and whether the source itself answers.",
        )
    if table["lacks"] is not None:
        return _trouble(
            level,
            of,
            f"Table {name} is warming up: its views do not have all rows from before the start yet.",
            why=table["lacks"],
            views=stale,
            then="Lookups are refused until then, unless they allow for it (allow_warming).",
        )
    return _trouble(
        level,
        of,
        f"Table {name} is behind: rows of the last {table['age_s']:.0f} s may be missing.",
        why=table["cause"],
        views=stale,
        hint="If it stays so, let each batch take more rows (limits such as maxFilesPerTrigger), or give Spark more "
        "cores, or the app more workers.",
    )


def _of_view(view: Json) -> Json:
    name, of = view["name"], ("view", view["name"])
    if view.get("state") == "failed":
        return _trouble(
            BAD,
            of,
            f"View {name} has failed. Its lookups raise the error; other views go on.",
            why=view.get("error"),
            hint=f"Correct its query, then app.drop_view({name!r}) and app.view({name!r}, ...) with the new one.",
        )
    return _trouble(
        WARNING, of, f"View {name} could not fill a key.", why=view["error"], then="Other keys are answered."
    )


def _of_worker(worker: Json) -> Json:
    number = worker["worker"]
    of = ("worker", str(number))
    if worker["level"] == BAD:
        return _trouble(
            BAD,
            of,
            f"Worker {number} is not up. Lookups of its keys wait.",
            why=worker.get("last_failure"),
            then="Upriver starts it again by itself.",
            hint="If it stays so, Spark has no free slot for it: give the application another core or executor.",
        )
    why = str(worker["held_up"])
    return _trouble(WARNING, of, f"Worker {number} cannot read the lake.", why=why, then="It tries again by itself.")


def _of_app(status: Mapping[str, Any], has_failed_source: bool) -> list[Json]:
    found: list[Json] = []
    if status.get("failure") and not has_failed_source:
        hint = "Stop the app, mend what the error names, and start it on the same root: it goes on where it was."
        found.append(_trouble(BAD, ("app", "app"), "The app has failed.", why=status["failure"], hint=hint))
    for part, what in (
        ("checkpoint", "The last checkpoint was given up. A restart would take longer."),
        ("lake", "Old files of the lake are not merged or removed. Lookups go on."),
    ):
        failed = (status.get(part) or {}).get("failed")
        if failed:
            found.append(_trouble(WARNING, (part, part), what, why=str(failed), then="It is tried again by itself."))
    for one, other in status.get("broken_links") or ():
        what = f"Workers {one} and {other} do not reach each other. Views that exchange rows show their last epoch."
        then = "They are tried again by itself. If a slot is free on another host, one of them moves there."
        hint = "If it stays so, look at the network between the two hosts, or stop one of the two executors."
        found.append(_trouble(WARNING, ("worker", str(one)), what, then=then, hint=hint))
    if why := (status.get("standbys") or {}).get("why"):
        what = "Not all standbys are ready. A lost worker's keys may be unserved until its state is read again."
        found.append(_trouble(NOTE, ("standbys", "standbys"), what, why=why))
    if status.get("unrecorded"):
        what = "The lake does not know of the last change of workers or views."
        then = "It is tried again by itself."
        found.append(_trouble(WARNING, ("lake", "record"), what, why=status["unrecorded"], then=then))
    return found


def _summary(tables: Sequence[Json], views: Sequence[Json], troubles: Sequence[Json]) -> Json:
    level = troubles[0]["level"] if troubles else GOOD
    if level in (WARNING, BAD):
        text = troubles[0]["what"]
        if stale := len(troubles[0]["views"]):
            text += f" {stale} {'view is' if stale == 1 else 'views are'} stale by it."
        return {"level": level, "text": text}
    if level == NOTE and troubles[0]["kind"] != "table":
        return {"level": level, "text": troubles[0]["what"]}
    if level == NOTE:
        return {"level": level, "text": "Warming up: the views read the rows from before the start."}
    if not views:
        return {"level": NOTE, "text": "The app runs. It has no views yet."}
    ages = [table["age_s"] for table in tables if table["age_s"] is not None and table.get("state") != "finished"]
    fresh = f" Answers are at most {max(ages):.0f} s old." if ages and max(ages) >= 1 else ""
    return {"level": GOOD, "text": "All is well." + (fresh or " Answers are less than a second old." * bool(ages))}


class RiverFeed:
    """Pictures of one app for all its viewers, with their history. Usable by many threads.

    connected: the app's client, or raises why there is none yet. clock: monotonic. today: seconds since 1970. The
    history grows with each picture, and with each call of ``sample``.
    """

    def __init__(
        self,
        connected: Callable[[], Client],
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        self._connected, self._clock, self._today = connected, clock, today
        self._asking = threading.Lock()
        """Held while a thread asks the coordinator; guards all that follows."""
        self._last: Json | None = None
        self._last_at = 0.0
        self._points: deque[tuple[Any, ...]] = deque(maxlen=POINTS_MAX)
        self._point_at = 0.0
        self._explained: dict[str, tuple[object, Mapping[str, Any]]] = {}
        """By view: since when it is declared, and its explanation. Dropped views are forgotten."""

    def picture(self) -> Json:
        """The picture of now, or of at most ``PICTURE_S_MIN`` ago. Raises ClusterError if the app does not answer."""
        with self._in_turn():
            now = self._clock()
            if self._last is None or now >= self._last_at + PICTURE_S_MIN:
                self._last, self._last_at = self._asked(now), now
            return self._last

    def sample(self) -> None:
        """Add a point to the history, unless a viewer has just done so. Raises ClusterError if the app does not
        answer."""
        with self._in_turn():
            now = self._clock()
            if not self._points or now >= self._point_at + SAMPLE_S:
                self._asked(now)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if not self._asking.acquire(timeout=PICTURE_S_MAX):
            raise ClusterError(f"the app has not answered in {PICTURE_S_MAX:g} s")
        try:
            yield
        finally:
            self._asking.release()

    def _asked(self, now: float) -> Json:
        status, routing = self._connected().status(), self._connected().routing()
        explained = self._explanations()
        found = picture(status, routing, explained, self._connected().rescales(), self._today())
        self._note(found, now)
        columns = list(zip(*self._points, strict=True)) or [()] * len(HISTORY)
        return {**found, "history": {name: list(column) for name, column in zip(HISTORY, columns, strict=True)}}

    def _note(self, found: Json, now: float) -> None:
        if self._points and now < self._point_at + POINT_S_MIN:
            return
        self._point_at = now
        live = [table for table in found["tables"] if table.get("state") != "finished"]
        ages = [table["age_s"] for table in live if table["age_s"] is not None]
        rate = round(sum(table.get("rows_per_s") or 0.0 for table in found["tables"]), 1)
        version = found["vnodes"]["version"]
        self._points.append((found["at"], found["epoch"], found["published"], max(ages, default=None), rate, version))

    def _explanations(self) -> Mapping[str, Mapping[str, Any]]:
        """Of the declared views: those that are known, and some more."""
        declared = {view["name"]: view["since"] for view in self._connected().views() if view["until"] is None}
        self._explained = {
            name: known for name, known in self._explained.items() if name in declared and declared[name] == known[0]
        }
        lacking = (name for name in declared if name not in self._explained)
        for name in islice(lacking, EXPLAINED_AT_ONCE_MAX):
            try:
                self._explained[name] = declared[name], self._connected().explain(name)
            except UpriverError:  # dropped meanwhile
                continue
        return {name: known for name, (_, known) in self._explained.items()}
