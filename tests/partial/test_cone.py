"""What a cone does in which order: stories of a few rows. ``test_cone_oracle.py`` says that what it keeps is right."""

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from cone_kit import ComparedCone, LoneCone, hashed, offer, trade, visit
from soak import every_third

from upriver.errors import ProtocolError
from upriver.ids import Epoch
from upriver.partial.cone_tasks import FILLS_MAX
from upriver.partial.rules import ALL_RULES, UpqueryRules


def fans() -> ComparedCone:
    """Two epochs: page a has visits of 1 and 2 milliseconds, page b of 2 and 3."""
    cone = ComparedCone("fans")
    cone.publish(visit("a", 1), visit("a", 2), visit("b", 2), trade("X", 1))
    cone.publish(visit("b", 3), trade("X", 2), trade("Y", 3))
    return cone


def hits() -> ComparedCone:
    """Pages of offers rest on symbols, and those on sites, and on quantities of trades."""
    cone = ComparedCone("hits")
    cone.publish(offer(1, "a", "X"), offer(1, "b", "Y"), trade("X", 1), trade("Y", 2), visit("/", 1), visit("/", 2))
    cone.publish(trade("Z", 3), visit("/", 3), offer(2, "c", "Z"))
    return cone


# What is kept -------------------------------------------------------------------------------------------------------


def test_a_key_is_filled_as_of_the_applied_epoch() -> None:
    cone = fans()
    cone.want("a")
    cone.step()
    cone.finish()
    assert cone.cone.applied == 0, "the lookup came first"
    assert cone.look_up("a") == []
    cone.check()
    cone.run()
    assert cone.look_up("a") == [("a", 2)]
    cone.fill("b")
    assert cone.cone.through(hashed("a", "b")).tolist() == [2, 2]
    assert cone.look_up("a", "b") == [("a", 2), ("b", 2)]
    cone.check()


def test_epochs_pass_without_a_read_when_nothing_is_kept() -> None:
    cone = fans()
    assert cone.cone.work(cone.published) == []
    assert cone.cone.applied == 2
    cone.fill("a")
    cone.evict("a")
    cone.publish(visit("a", 1))
    assert cone.cone.work(cone.published) == []
    assert cone.cone.applied == 3


def test_cones_keep_what_keys_rest_on_a_key_gains_what_it_has_not_rested_on_with_all_its_rows() -> None:
    cone = fans()
    cone.fill("a")
    assert (cone.look_up("a"), cone.resting) == ([("a", 2)], 2)
    cone.publish(visit("a", 3))  # trade Y of the second epoch is of 3
    cone.run()
    assert (cone.look_up("a"), cone.resting) == ([("a", 3)], 3)
    cone.check()


# Evictions ----------------------------------------------------------------------------------------------------------


def test_the_state_of_what_one_key_has_rested_on_goes_a_few_keys_at_a_time() -> None:
    cone = ComparedCone("fans")
    cone.publish(*(visit("a", ms) for ms in range(10)), visit("b", 9), *(trade("X", ms) for ms in range(10)))
    cone.fill("a", "b")
    held = cone.cone.stats()["held"]
    cone.evict("a")
    assert cone.resting == 1, "which b rests on"
    assert [cone.cone.drop_forgotten(4) for _ in range(4)] == [4, 4, 1, 0]
    assert cone.cone.stats()["held"] < held - 9
    cone.check()


def a_gain() -> ComparedCone:
    """Two keys are kept, one that shares what it rests on, and both gain some; another is about to be filled."""
    cone = hits()
    cone.fill("a", "b")
    cone.publish(offer(2, "a", "Z"), offer(2, "b", "Z"), trade("Y", 1), trade("X", 3), offer(1, "d", "X"))
    cone.want("d")
    return cone


def count_of_steps() -> int:
    cone = a_gain()
    steps = 0
    while cone.step():
        steps += 1
    return steps


def test_a_gain_and_a_fill_take_some_reads() -> None:
    assert count_of_steps() == STEPS


STEPS = 10
"""Until all is done that ``a_gain`` leaves to do."""


MOMENTS = list(combinations_with_replacement(range(STEPS + 1), 2))


@pytest.mark.verify
@pytest.mark.parametrize(("keys", "first"), [("a", 0), ("ab", 1), ("abd", 2)])
def test_keys_are_evicted_between_any_two_reads(keys: str, first: int) -> None:
    for evicted_after, let_go_after in every_third(MOMENTS, first):
        cone = a_gain()
        for _ in range(evicted_after):
            cone.step()
        cone.evict(*keys)
        for _ in range(let_go_after - evicted_after):
            cone.step()
        cone.drop_forgotten()
        cone.run()
        cone.check()
        assert set("ab") - set(keys) <= {key for key in "ab" if not cone.cone.lacks(hashed(key))}
        cone.fill(*keys)
        assert cone.look_up("a", "b", "d") == cone.expected("a", "b", "d") == [("a", 3, 7), ("b", 3, 6), ("d", 2, 4)]
        cone.check()


@pytest.mark.parametrize("p6", [True, False])
def test_partial_asked_keys_stay_a_key_that_a_lookup_waits_for_is_not_evicted(p6: bool) -> None:
    cone = LoneCone("fans", replace(ALL_RULES, partial_asked_keys_stay=p6))
    cone.publish(visit("a", 1), visit("b", 1))
    cone.fill("a", "b")
    cone.look_up("b")
    cone.want("b")
    assert cone.cone.evict_oldest(5, [hashed("a")]) == (0 if p6 else 1)
    assert cone.cone.evict_oldest(5, []) == (1 if p6 else 0)
    assert cone.present == hashed("b").tolist(), "it was read last"


# Keys that move -----------------------------------------------------------------------------------------------------


def test_state_does_not_travel() -> None:
    cone = fans()
    cone.fill("a")
    with pytest.raises(ProtocolError):
        cone.cone.collect(hashed("a"))
    with pytest.raises(ProtocolError):
        cone.cone.install(())


@pytest.mark.parametrize("k2", [True, False])
def test_cones_catch_up_first_keys_are_not_shown_before_the_epoch_that_was_shown_elsewhere(k2: bool) -> None:
    cone = LoneCone("fans", ALL_RULES if k2 else replace(ALL_RULES, cones_never_back=False))
    cone.publish(visit("a", 1), trade("X", 1))
    cone.run()
    cone.cone.wait_until(Epoch(2))
    cone.cone.wait_until(Epoch(1))
    cone.fill("a")
    assert (cone.cone.lacks(hashed("a")), bool(cone.cone.awaited(hashed("a")).any())) == (k2, k2)
    cone.publish(trade("Y", 1))
    cone.run()
    assert cone.look_up("a") == [("a", 2)]
    assert not cone.cone.awaited(hashed("a")).any()


# Turns --------------------------------------------------------------------------------------------------------------


def test_lookups_and_epochs_take_turns() -> None:
    """Keys are looked up all the time, and epochs are published all the time."""
    cone = fans()
    stands = []
    for key in ("a", "b", "c", "d", "e"):
        cone.want(key)
        cone.publish(trade("X", 2))
        cone.step()
        cone.finish()
        stands.append((cone.cone.applied, len(cone.present)))
    assert stands == [(0, 1), (4, 1), (4, 3), (6, 3), (6, 5)]
    cone.check()


def test_keys_that_are_wanted_in_the_midst_of_a_fill_wait_for_the_next() -> None:
    cone = fans()
    cone.run()
    cone.want("a")
    cone.step()
    cone.want("a", "b")
    assert cone.cone.awaited(hashed("b")).any()
    cone.finish()
    assert cone.present == hashed("a").tolist()
    assert cone.cone.awaited(hashed("b")).any()
    cone.run()
    assert len(cone.present) == 2
    assert cone.cone.stats()["missed"] == 3, "a was missing twice: each lookup counts"
    assert cone.cone.stats()["looked_up"] == 0, "none was answered"


# Long fills ---------------------------------------------------------------------------------------------------------


def with_many_rows(view: str, rules: UpqueryRules = ALL_RULES) -> ComparedCone:
    """Page a rests on many trades, and page b on one; rows are taken in one by one."""
    cone = ComparedCone(view, rules)
    cone.publish(visit("a", 1), visit("b", 2), *(trade(symbol, 1) for symbol in "UVWXYZ"), trade("X", 2))
    cone.run()
    cone.rows_max = 1
    return cone


def take_some_in(cone: ComparedCone, *keys: str) -> None:
    """Begin to fill these keys, and take some of their rows in."""
    cone.want(*keys)
    cone.begin()
    while not cone.cone.unfilled:
        cone.go_on()
    for _ in range(3):
        cone.go_on()
    assert cone.cone.unfilled
    assert not cone.unread


def finish_next_task(cone: ComparedCone) -> None:
    done = cone.cone.done
    while cone.cone.done == done:
        cone.go_on()


def test_an_epoch_does_not_wait_for_a_long_fill() -> None:
    cone = with_many_rows("fans")
    cone.fill("b")
    take_some_in(cone, "a")
    cone.publish(trade("Y", 2))
    cone.begin()
    finish_next_task(cone)
    assert cone.cone.applied == 2
    assert cone.look_up("b") == [("b", 2)]
    assert cone.cone.lacks(hashed("a"))
    cone.run()
    assert cone.look_up("a") == [("a", 6)]
    cone.check()


@pytest.mark.parametrize("is_on", [True, False])
def test_cones_whole_epochs_only_keys_that_an_epoch_may_change_wait_for_all_of_its_rows(is_on: bool) -> None:
    cone = ComparedCone("fans", replace(ALL_RULES, cones_whole_epochs=is_on))
    cone.publish(visit("a", 1), visit("b", 2), trade("X", 1), trade("X", 2))
    cone.fill("a", "b")
    cone.publish(*[trade("Y", 1)] * 9)
    cone.rows_max = 4
    while not cone.cone.unfilled:
        cone.step()
    assert cone.cone.applied == 1
    assert cone.look_up("b") == [("b", 1)]
    if is_on:
        assert cone.shown == hashed("b").tolist()
        assert cone.cone.awaited(hashed("a")).all()
    for _ in range(2):
        cone.go_on()
        assert cone.cone.lacks(hashed("a")) == is_on
    cone.run()
    assert cone.cone.applied == 2
    assert cone.look_up("a", "b") == [("a", 10), ("b", 1)]
    cone.check()


def test_keys_are_evicted_and_wanted_while_an_epoch_is_taken_in() -> None:
    cone = ComparedCone("fans")
    cone.publish(visit("a", 1), visit("b", 2), visit("c", 1), trade("X", 1), trade("X", 2))
    cone.fill("a", "b")
    cone.publish(*[trade("Y", 1)] * 9, *[trade("Y", 2)] * 9)
    cone.rows_max = 4
    while not cone.cone.unfilled:
        cone.step()
    cone.evict("a")
    cone.want("a", "c")
    cone.begin()
    cone.drop_forgotten()
    cone.run()
    assert cone.look_up("a", "b", "c") == [("a", 10), ("b", 10), ("c", 10)]
    cone.check()


def test_another_key_does_not_wait_for_a_long_fill() -> None:
    cone = with_many_rows("fans")
    take_some_in(cone, "a")
    cone.rows_max = 100
    cone.want("b")
    cone.begin()
    while cone.unread:
        cone.go_on()
    assert cone.look_up("b") == [("b", 1)]
    assert cone.cone.lacks(hashed("a"))
    cone.run()
    assert cone.look_up("a", "b") == [("a", 6), ("b", 1)]
    cone.check()


def test_the_task_with_the_fewest_rows_goes_on_first() -> None:
    cone = with_many_rows("fans")
    take_some_in(cone, "a")
    cone.want("b")
    cone.begin()
    finish_next_task(cone)
    assert cone.look_up("b") == [("b", 1)]
    assert cone.cone.lacks(hashed("a"))


def test_only_so_many_fills_are_under_way() -> None:
    cone = with_many_rows("fans")
    for number in range(FILLS_MAX):
        cone.want(str(number))
        cone.begin()
        cone.overtake()
    assert cone.cone.stats()["pending"] == FILLS_MAX
    cone.want("b")
    cone.begin()
    assert cone.cone.stats()["pending"] == FILLS_MAX
    cone.run()
    assert cone.look_up("b") == [("b", 1)]


def test_a_task_begins_beside_another_one_that_reads_for_long() -> None:
    cone = with_many_rows("fans")
    cone.want("a")
    cone.begin()
    cone.publish(trade("Y", 2))
    cone.want("b")
    cone.begin()
    assert (cone.cone.applied, cone.cone.stats()["pending"]) == (1, 1), "the fill may end at once"
    cone.overtake()
    cone.begin()
    assert (cone.cone.applied, cone.cone.stats()["pending"]) == (2, 2)
    cone.run()
    assert cone.look_up("a", "b") == [("a", 6), ("b", 2)]
    cone.check()


def test_a_long_fill_with_a_bad_row_spoils_just_its_key() -> None:
    cone = LoneCone("numbers")
    cone.publish(visit("a", 1), visit("b", 2), *(trade(str(n), 1) for n in range(9)), trade("x", 2), trade("5", 2))
    cone.run()
    cone.rows_max = 1
    cone.fill("a", "b")
    assert [each.keys.tolist() for each in cone.cone.unanswered()] == [hashed("b").tolist()]
    assert cone.look_up("a") == [("a", 9, 36)]


@pytest.mark.parametrize("is_on", [True, False])
def test_without_catch_up_first_a_key_lacks_the_rows_of_epochs_that_passed(is_on: bool) -> None:
    cone = with_many_rows("fans", replace(ALL_RULES, cones_catch_up_first=is_on))
    cone.publish(visit("b", 1))
    cone.fill("b")
    take_some_in(cone, "a")
    cone.publish(trade("Y", 1))
    cone.begin()
    finish_next_task(cone)
    assert cone.cone.applied == 3
    cone.run()
    assert cone.look_up("a") == [("a", 7 if is_on else 6)]


@pytest.mark.parametrize("is_on", [True, False])
def test_without_join_between_epochs_a_key_lacks_the_rows_of_the_epoch_under_way(is_on: bool) -> None:
    cone = with_many_rows("fans", replace(ALL_RULES, cones_join_between_epochs=is_on))
    cone.fill("b")
    take_some_in(cone, "a")
    cone.publish(trade("Y", 1), trade("Y", 2))
    cone.begin()
    while not any(read.channel == "trades/qty" for read in cone.reads):
        cone.go_on()
    (asked,) = cone.unread
    cone.unread.clear()
    while cone.cone.unfilled:
        cone.go_on()
    assert cone.cone.lacks(hashed("a")) == is_on
    cone.unread.append(asked)
    cone.run()
    assert cone.look_up("b") == [("b", 2)]
    assert cone.look_up("a") == [("a", 7 if is_on else 6)]


@pytest.mark.parametrize("many", ["a", "b"])
def test_the_smaller_state_is_copied_and_no_time_of_reading_is_lost(many: str) -> None:
    """Whether the kept keys or the filled ones have more rows, the key that was read last stays."""
    cone = ComparedCone("fans")
    times = {"a": 1, "b": 2}[many]
    cone.publish(visit("a", 1), visit("b", 2), trade("X", 1), trade("X", 2), *(trade(s, times) for s in "UVWYZ"))
    cone.run()
    cone.fill("a")
    cone.look_up("a")
    cone.fill("b")
    cone.look_up("b")
    cone.look_up("a")
    cone.check()
    assert cone.cone.evict_oldest(1, []) == 1
    assert cone.present == hashed("a").tolist()
    cone.check()
