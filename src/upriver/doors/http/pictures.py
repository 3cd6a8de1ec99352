"""The picture of the app over HTTP: once, or again and again as server-sent events, as the page follows it."""

import time

from upriver.doors.http.messages import Events, HttpAnswer, HttpQuestion, Json, event_bytes

PICTURE_EVERY_S = 1.0
"""Seconds between two pictures of a stream."""


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
