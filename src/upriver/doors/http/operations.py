"""The app over HTTP: status, rescales, evictions, and its picture: once, or again and again as server-sent events, as
the page follows it."""

import time
from typing import Any

from upriver.client.rescale import GOING_ON
from upriver.doors.http.messages import Events, HttpAnswer, HttpQuestion, Json, bad_request, event_bytes
from upriver.doors.http.problems import HttpProblem
from upriver.doors.http.views import json_keys

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVICT_KEYS_MAX = 10_000
"""Keys of one request to evict."""
PICTURE_EVERY_S = 1.0
"""Seconds between two pictures of a stream."""


def session(question: HttpQuestion) -> HttpAnswer:
    """What the caller may do."""
    return HttpAnswer.of_json({"role": question.role.name.lower()})


def status(question: HttpQuestion) -> HttpAnswer:
    return HttpAnswer.of_json(question.gateway.status())


def metrics(question: HttpQuestion) -> HttpAnswer:
    """For Prometheus."""
    return HttpAnswer(question.gateway.metrics().encode(), METRICS_TYPE)


def rescales(question: HttpQuestion) -> HttpAnswer:
    return HttpAnswer.of_json({"rescales": question.gateway.rescales()})


def begin_rescale(question: HttpQuestion) -> HttpAnswer:
    """Begin a rescale; answers with its progress."""
    asked = question.json(("workers", "moves", "strategy", "keys_max"))
    moves = asked.get("moves")
    begun = question.gateway.rescale(
        asked.get("workers"),
        moves=None if moves is None else _moves(moves),
        strategy=asked.get("strategy", "icadd"),
        keys_max=asked.get("keys_max"),
    )
    return HttpAnswer.of_json(begun.progress(), 202)


def _moves(given: Any) -> dict[int, int]:
    if not isinstance(given, dict):
        raise bad_request('"moves": give an object, the worker by vnode')
    try:
        return {int(vnode): worker for vnode, worker in given.items()}
    except ValueError:
        raise bad_request('"moves": a vnode is a whole number') from None


def rescale_progress(question: HttpQuestion) -> HttpAnswer:
    ticket = _ticket(question)
    return HttpAnswer.of_json(question.gateway.rescale_of(ticket).progress())


def abort_rescale(question: HttpQuestion) -> HttpAnswer:
    """Request the end of a rescale; answers with its progress."""
    ticket = _ticket(question)
    rescale = question.gateway.rescale_of(ticket)
    if rescale.progress()["state"] not in GOING_ON:
        raise HttpProblem(409, "RescaleIsOver", f"rescale {ticket} has ended already")
    rescale.abort()
    return HttpAnswer.of_json(rescale.progress(), 202)


def _ticket(question: HttpQuestion) -> int:
    """The ticket in the query, or that of the rescale under way."""
    given = question.one("ticket")
    if given is not None:
        if not given.isascii() or not given.isdecimal() or len(given) > 18:
            raise bad_request(f"ticket={given[:20]!r}: give a whole number")
        return int(given)
    rescale = question.gateway.rescale_under_way()
    if rescale is None:
        raise HttpProblem(404, "NoRescale", "no rescale is under way; /v1/rescales has the last ones")
    return rescale.ticket


def evict(question: HttpQuestion) -> HttpAnswer:
    """Evict keys of a partial view: those of the body, or all."""
    view, keys = question.path["view"], question.json(("keys",)).get("keys")
    if keys is None:
        question.gateway.evict(view)
        return HttpAnswer.of_json({"view": view, "evicted": "all"})
    if not isinstance(keys, list):
        raise bad_request('"keys": give a list of keys, or null for all')
    if len(keys) > EVICT_KEYS_MAX:
        raise HttpProblem(413, "TooManyKeys", f"{len(keys):,} keys: give at most {EVICT_KEYS_MAX:,} in a request")
    question.gateway.evict(view, json_keys(question.gateway, view, keys))
    return HttpAnswer.of_json({"view": view, "evicted": len(keys)})


def river(question: HttpQuestion) -> HttpAnswer:
    return HttpAnswer.of_json(question.gateway.river.picture())


def river_events(question: HttpQuestion) -> Events:
    """A picture each ``PICTURE_EVERY_S``. The first has the whole history, later ones only its new points."""
    next_at, sent_through = 0.0, None
    while True:
        if time.monotonic() < next_at:
            yield None
            continue
        next_at = time.monotonic() + PICTURE_EVERY_S
        found = question.gateway.river.picture()
        yield event_bytes("river", {**found, **_news(found["history"], sent_through)})
        sent_through = found["history"]["at"][-1]


def _news(history: Json, sent_through: float | None) -> Json:
    """The points of a history after those that were sent. ``None``: none was."""
    known = 0 if sent_through is None else sum(at <= sent_through for at in history["at"])
    return {
        "history": {name: values[known:] for name, values in history.items()},
        "history_is_whole": sent_through is None,
    }
