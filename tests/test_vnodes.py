"""Vnodes of hashes, and the vnode map: even, and moving no more than it must."""

import json
import pickle
from collections import Counter
from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.vnodes import VnodeGroup, VnodeMap, check_vnodes, hashes_in, offsets_by_vnode, vnodes_of

VNODE_COUNTS = [2**bits for bits in range(8, 17)]
MANY = settings(derandomize=True, deadline=None, max_examples=examples(25))


def workers(*ids: int) -> list[WorkerId]:
    return [WorkerId(worker) for worker in ids]


def worker_range(count: int) -> list[WorkerId]:
    return workers(*range(count))


def worker_sets() -> st.SearchStrategy[set[int]]:
    """1 to 200 of 1,000 ids; a worker of one set is often in the next as well."""
    return st.integers(1, 200).flatmap(lambda most: st.sets(st.integers(0, 999), min_size=1, max_size=most))


def least_moves(owners: Iterable[int], to: Iterable[int]) -> int:
    """The formula: moves = V - sum(min(c, q)) - min(r, how many c > q), over the workers that stay."""
    counts, remaining = Counter(owners), set(to)
    lower, higher_places = divmod(counts.total(), len(remaining))
    staying = [count for worker, count in counts.items() if worker in remaining]
    kept = sum(min(count, lower) for count in staying)
    return counts.total() - kept - min(higher_places, sum(count > lower for count in staying))


def assert_even(owners: VnodeMap, expected_workers: Iterable[int]) -> None:
    counts = Counter(owners.owners)
    assert sorted(counts) == sorted(expected_workers)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("vnodes", [1, 2, 256, 65_536])
def test_powers_of_two_are_vnode_counts(vnodes: int) -> None:
    check_vnodes(vnodes)


@pytest.mark.parametrize("vnodes", [-4, 0, 3, 255, 131_072])
def test_other_vnode_counts_are_refused(vnodes: int) -> None:
    with pytest.raises(DeclarationError, match=f"power of two from 1 to 65536, not {vnodes}"):
        check_vnodes(vnodes)


@MANY
@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 16))
def test_a_vnode_is_the_top_bits(hashes: list[int], bits: int) -> None:
    vnodes = vnodes_of(np.array(hashes, np.uint64), 2**bits)
    assert vnodes.tolist() == [number >> (64 - bits) for number in hashes]


@MANY
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 255).map(lambda vnode: vnode << 56)), st.integers(0, 16))
def test_offsets_slice_each_vnode(hashes: list[int], bits: int) -> None:
    ordered = np.array(sorted(hashes), np.uint64)
    offsets = offsets_by_vnode(ordered, 2**bits)
    per_vnode = np.bincount(vnodes_of(ordered, 2**bits), minlength=2**bits)
    assert offsets[0] == 0
    np.testing.assert_array_equal(np.diff(offsets), per_vnode)


def test_the_initial_map_is_even_and_in_ranges() -> None:
    first = VnodeMap.initial(8, workers(7, 2, 5))
    assert first.version == 0
    assert first.owners == (2, 2, 2, 5, 5, 5, 7, 7)
    assert first.workers == (2, 5, 7)


def test_the_example_of_the_document() -> None:
    """12 vnodes on 3 workers, and a fourth comes: a quarter of the vnodes moves, one from each."""
    before = VnodeMap.initial(12, worker_range(3))
    after = before.rebalanced(worker_range(4))
    assert after.version == 1
    assert before.diff(after) == {3: (0, 3), 7: (1, 3), 11: (2, 3)}
    assert after.vnodes_of_worker(WorkerId(3)) == (3, 7, 11)


@pytest.mark.parametrize(
    ("vnodes", "before", "after", "moves"),
    [
        *[(12, 1, 2, 6), (12, 2, 3, 4), (12, 3, 4, 3), (12, 4, 5, 2), (12, 4, 8, 4)],
        *[(12, 3, 2, 4), (12, 4, 3, 3), (12, 5, 4, 2), (12, 7, 10, 3)],
        *[(256, 1, 2, 128), (256, 2, 3, 85), (256, 3, 4, 64), (256, 4, 5, 51), (256, 4, 8, 128), (256, 8, 16, 128)],
        *[(256, 3, 2, 85), (256, 4, 3, 64), (256, 5, 4, 51), (256, 16, 8, 128), (256, 7, 10, 75), (256, 100, 101, 2)],
    ],
)
def test_table_of_moves(vnodes: int, before: int, after: int, moves: int) -> None:
    first = VnodeMap.initial(vnodes, worker_range(before))
    assert len(first.diff(first.rebalanced(worker_range(after)))) == moves


@MANY
@given(st.sampled_from(VNODE_COUNTS), st.integers(1, 1000), st.integers(1, 1000))
def test_resizing_moves_the_least_and_back(vnodes: int, before: int, after: int) -> None:
    before, after = min(before, vnodes), min(after, vnodes)
    first = VnodeMap.initial(vnodes, worker_range(before))
    second = first.rebalanced(worker_range(after))
    moves = first.diff(second)
    assert_even(second, range(after))
    assert len(moves) == least_moves(first.owners, range(after))
    if after > before:
        assert all(new >= before for _, new in moves.values()), "only joiners gain"
    else:
        assert all(old >= after for old, _ in moves.values()), "only leavers lose"

    back = second.rebalanced(worker_range(before))
    assert len(second.diff(back)) == least_moves(second.owners, range(before))
    assert sorted(Counter(back.owners).values()) == sorted(Counter(first.owners).values())


@MANY
@given(st.sampled_from([256, 1024]), worker_sets(), worker_sets(), st.data())
def test_any_start_to_any_workers_moves_the_least(
    vnodes: int, old: set[int], new: set[int], data: st.DataObject
) -> None:
    """Joiners and leavers at once, from a map that is not even."""
    skewed = data.draw(st.lists(st.sampled_from(sorted(old)), min_size=vnodes, max_size=vnodes))
    start = VnodeMap(MapVersion(5), tuple(map(WorkerId, skewed)))
    evened = start.rebalanced(workers(*new))
    if new == set(skewed):
        assert evened is start
        return
    assert evened.version == 6
    assert_even(evened, new)
    assert len(start.diff(evened)) == least_moves(start.owners, new)


@MANY
@given(st.lists(st.integers(0, 3), min_size=4, max_size=7), st.sets(st.integers(0, 4), min_size=1, max_size=4))
def test_no_even_map_is_nearer(owners: list[int], new: set[int]) -> None:
    """The formula itself, against every even map there is."""
    even = (
        candidate
        for candidate in product(sorted(new), repeat=len(owners))
        if max(map(candidate.count, new)) - min(map(candidate.count, new)) <= 1
    )
    nearest = min(sum(a != b for a, b in zip(owners, candidate, strict=True)) for candidate in even)
    assert least_moves(owners, new) == nearest


@MANY
@given(st.lists(worker_sets(), min_size=1, max_size=30))
def test_a_chain_of_resizes_stays_even(chain: list[set[int]]) -> None:
    current = VnodeMap.initial(256, workers(*chain[0]))
    for members in chain:
        following = current.rebalanced(workers(*members))
        assert len(current.diff(following)) == least_moves(current.owners, members)
        assert_even(following, members)
        current = following


def test_a_thousand_resizes_stay_even() -> None:
    rng = np.random.default_rng(3)
    current = VnodeMap.initial(256, worker_range(4))
    for size in rng.integers(1, 65, 1_000).tolist():
        current = current.rebalanced(worker_range(size))
        assert_even(current, range(size))


def test_the_order_of_workers_does_not_matter() -> None:
    start = VnodeMap.initial(256, worker_range(5))
    assert start.rebalanced(workers(9, 1, 3)) == start.rebalanced(workers(3, 9, 1))
    assert start.rebalanced(workers(4, 3, 2, 1, 0)) is start


def test_a_map_that_was_made_uneven_stays_so_for_the_same_workers() -> None:
    skewed = VnodeMap.initial(4, worker_range(2)).moved({VnodeId(2): WorkerId(0)})
    assert skewed.owners == (0, 0, 0, 1)
    assert skewed.rebalanced(worker_range(2)) is skewed


@pytest.mark.parametrize("ids", [[], [0, 0], [0, 1, 2, 3, 4], [-1]])
def test_impossible_workers_are_refused(ids: list[int]) -> None:
    with pytest.raises(DeclarationError):
        VnodeMap.initial(4, workers(*ids))
    with pytest.raises(DeclarationError):
        VnodeMap.initial(4, worker_range(2)).rebalanced(workers(*ids))


@pytest.mark.parametrize("owners", [(), (WorkerId(0),) * 65_537], ids=["none", "too many"])
def test_impossible_sizes_are_refused(owners: tuple[WorkerId, ...]) -> None:
    with pytest.raises(DeclarationError, match="1 to 65536 vnodes"):
        VnodeMap(MapVersion(0), owners)


def test_explicit_moves() -> None:
    start = VnodeMap.initial(4, worker_range(2))
    after = start.moved({VnodeId(0): WorkerId(1), VnodeId(3): WorkerId(7)})
    assert (after.version, after.owners) == (1, (1, 0, 1, 7))
    assert start.owners == (0, 0, 1, 1)
    assert start.moved({}) is start
    assert start.moved({VnodeId(0): WorkerId(0)}) is start


@pytest.mark.parametrize(("vnode", "worker"), [(4, 0), (-1, 0), (0, -1)])
def test_impossible_moves_are_refused(vnode: int, worker: int) -> None:
    with pytest.raises(DeclarationError):
        VnodeMap.initial(4, worker_range(2)).moved({VnodeId(vnode): WorkerId(worker)})


def test_owners_of_many_vnodes_at_once() -> None:
    owners = VnodeMap.initial(256, worker_range(3)).rebalanced(worker_range(5))
    vnodes = vnodes_of(np.random.default_rng(1).integers(0, 2**64, 1_000, np.uint64), 256)
    assert owners.owners_of(vnodes).tolist() == [owners.owners[vnode] for vnode in vnodes]
    assert owners.vnodes_of_worker(WorkerId(99)) == ()
    assert sum(len(owners.vnodes_of_worker(worker)) for worker in owners.workers) == 256


def test_a_map_is_a_value() -> None:
    """What it works out and keeps for itself shows neither in equality nor in a pickle."""
    used, fresh = VnodeMap.initial(256, worker_range(3)), VnodeMap.initial(256, worker_range(3))
    used.owners_of(np.array([0]))
    assert used.workers == (0, 1, 2)
    assert used == fresh
    assert hash(used) == hash(fresh)
    assert pickle.dumps(used) == pickle.dumps(fresh)
    assert pickle.loads(pickle.dumps(used)) == used


def test_maps_of_different_sizes_cannot_be_compared() -> None:
    with pytest.raises(ProtocolError, match="4 and of 8 vnodes"):
        VnodeMap.initial(4, worker_range(2)).diff(VnodeMap.initial(8, worker_range(2)))


def test_json_holds_runs() -> None:
    owners = VnodeMap.initial(256, worker_range(2)).moved({VnodeId(0): WorkerId(1)})
    assert owners.to_json() == {"version": 1, "owners": [[1, 1], [0, 127], [1, 128]]}


@MANY
@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(0, 9))
def test_json_both_ways(owners: list[int], version: int) -> None:
    value = VnodeMap(MapVersion(version), tuple(map(WorkerId, owners)))
    assert VnodeMap.from_json(json.loads(json.dumps(value.to_json()))) == value


@pytest.mark.parametrize("vnodes", [1, 2, 16, 65_536])
@pytest.mark.parametrize("groups", [1, 2, 3, 7, 16])
def test_groups_share_out_all_vnodes(vnodes: int, groups: int) -> None:
    if groups > vnodes:
        with pytest.raises(DeclarationError, match=f"{groups} partitions: there are 1 to {vnodes}"):
            VnodeGroup.all(vnodes, groups)
        return
    made = VnodeGroup.all(vnodes, groups)
    assert [vnode for group in made for vnode in range(group.first, group.behind)] == list(range(vnodes))
    sizes = {group.behind - group.first for group in made}
    assert max(sizes) - min(sizes) <= 1
    of_vnode = [((vnode + 1) * groups - 1) // vnodes for vnode in range(vnodes)]  # as Spark computes it
    assert all(of_vnode[vnode] == number for number, g in enumerate(made) for vnode in (g.first, g.behind - 1))
    ends = np.array([end for group in made for end in group.hashes], np.uint64)
    assert vnodes_of(ends, vnodes).tolist() == [v for group in made for v in (group.first, group.behind - 1)]
    assert [hashes_in(group.hashes, ends) for group in made] == [slice(2 * n, 2 * n + 2) for n in range(groups)]
