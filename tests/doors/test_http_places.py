"""Places at the HTTP door: what one caller, one role, and all of them may take."""

import pytest

from upriver.doors.http.places import CallerPlaces, HttpCaller
from upriver.doors.http.problems import HttpProblem
from upriver.doors.shares import Bounds
from upriver.net.handshake import Role

BOUNDS = Bounds(total=7, group=5, caller=3)


def taken(places: CallerPlaces, caller: HttpCaller) -> int:
    """How many places this caller gets."""
    for count in range(BOUNDS.total + 1):
        try:
            places.take(caller)
        except HttpProblem:
            return count
    raise AssertionError("there is no bound")


def test_no_caller_and_no_role_takes_all_places() -> None:
    places = CallerPlaces("requests", "are under way", BOUNDS)
    reader, other, third = (HttpCaller(Role.READER, host) for host in "abc")
    operator = HttpCaller(Role.OPERATOR, "a")
    assert [taken(places, each) for each in (reader, other, third, operator)] == [3, 2, 0, 2]
    with pytest.raises(HttpProblem, match="3 requests of the reader's token at this host are under way: try again"):
        places.take(reader)
    with pytest.raises(HttpProblem, match="5 requests of the reader's token are under way"):
        places.take(third)
    with pytest.raises(HttpProblem, match="7 requests of all callers are under way") as refused:
        places.take(operator)
    assert (refused.value.status, refused.value.kind) == (503, "Busy")
    places.leave(reader)
    with places.held(operator), pytest.raises(HttpProblem):
        places.take(third)
    assert taken(places, third) == 1
