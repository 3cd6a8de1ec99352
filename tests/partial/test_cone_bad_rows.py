"""What a cone does about rows from which the view cannot be computed: no more is spoiled than rests on them."""

import pytest
from cone_kit import LoneCone, hashed, offer, trade, visit


def refused(cone: LoneCone) -> dict[int, str]:
    """By key: why it could not be filled."""
    return {key: str(one.error) for one in cone.cone.unanswered() for key in one.keys.tolist()}


def numbers() -> LoneCone:
    """Trade "x" of 2 is no number; pages b and c rest on it."""
    cone = LoneCone("numbers")
    cone.publish(visit("a", 1), visit("b", 1), visit("b", 2), visit("c", 2), visit("d", 3))
    cone.publish(trade("10", 1), trade("x", 2), trade("30", 3))
    cone.run()
    return cone


def test_a_bad_row_spoils_just_the_keys_that_rest_on_it() -> None:
    cone = numbers()
    cone.fill("a", "b", "c", "d")
    why = refused(cone)
    assert sorted(why) == hashed("b", "c").tolist()
    assert all("'x'" in reason for reason in why.values())
    assert refused(cone) == {}
    assert cone.look_up("a", "d") == [("a", 1, 10), ("d", 1, 30)]
    assert cone.resting == 2
    cone.evict("a", "d")
    cone.drop_forgotten()
    assert (cone.resting, cone.cone.stats()["held"]) == (0, 0)


def test_a_row_that_is_alone_only_until_the_rest_is_read_is_not_bad() -> None:
    cone = LoneCone("quotients")
    cone.publish(visit("a", 1), visit("b", 2), visit("c", 3), trade("x", 1), trade("x", 2))
    cone.run()
    cone.fill("a", "b", "c")
    assert list(refused(cone)) == hashed("c").tolist()
    assert cone.look_up("a", "b") == [("a", 12.0), ("b", 6.0)]
    cone.publish(visit("a", 4), trade("x", 4), trade("x", 3))
    cone.run()
    cone.fill("c")
    assert (refused(cone), cone.look_up("a", "c")) == ({}, [("a", 12.0), ("c", 4.0)])


@pytest.mark.parametrize("view", ["numbers", "numbers of offers"])
def test_a_key_that_comes_to_rest_on_a_bad_row_is_missing(view: str) -> None:
    cone = LoneCone(view)
    cone.publish(visit("a", 1, 1), visit("c", 2, 2), visit("d", 3, 3), offer(1, "a"), offer(3, "d"))
    cone.publish(trade("10", 1), trade("x", 2), trade("30", 3))
    cone.fill("a", "d")
    kept = cone.resting
    cone.publish(visit("a", 2, 1), visit("d", 1, 3))
    cone.run()
    assert cone.cone.applied == 3
    assert refused(cone) == {}, "no lookup has asked for it since"
    assert cone.present == hashed("d").tolist()
    assert cone.look_up("d") == [("d", 2, 40)]
    assert cone.resting == kept - (1 if view == "numbers of offers" else 0), "1 goes with a, and comes with d"
    cone.fill("a")
    assert list(refused(cone)) == hashed("a").tolist()
    assert cone.cone.lacks(hashed("a"))


def test_a_bad_row_of_a_present_key_makes_all_keys_missing_and_its_own_says_why() -> None:
    cone = numbers()
    cone.fill("a")
    cone.publish(trade("30", 3))
    cone.publish(trade("y", 1))
    cone.run()
    assert (cone.cone.applied, cone.present) == (4, [])
    cone.fill("a", "d")
    assert list(refused(cone)) == hashed("a").tolist()
    assert cone.present == hashed("d").tolist()


def test_a_bad_row_of_a_key_that_is_evicted_meanwhile_stops_nothing() -> None:
    cone = numbers()
    cone.fill("a", "d")
    cone.publish(trade("y", 1))
    while not any(read.channel == "trades/qty" for read in cone.reads):
        cone.step()
    cone.evict("a")
    cone.run()
    assert cone.cone.applied == 3
    assert cone.look_up("d") == [("d", 1, 30)]


def test_a_key_that_cannot_be_filled_is_told_once_while_another_fill_is_under_way() -> None:
    cone = numbers()
    cone.want("a")
    cone.begin()
    cone.overtake()
    cone.want("b")
    cone.begin()
    done = cone.cone.done
    while cone.cone.done == done:
        cone.go_on(-1)
    assert list(refused(cone)) == hashed("b").tolist()
    cone.run()
    assert cone.look_up("a") == [("a", 1, 10)]
    assert refused(cone) == {}
