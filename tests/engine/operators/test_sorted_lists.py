"""New members are put in their places as sorting all of them would."""

import numpy as np
import pyarrow as pa
import pytest

from upriver.engine.operators.sorted_lists import with_new_members
from upriver.engine.operators.topk import SortKey, in_order


@pytest.mark.parametrize("seed", range(12))
def test_the_order_is_that_of_all_members(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 5, 63, 64, 65, 700, 5000], 6)
    news = rng.choice([0, 1, 3, 90], 6)
    lists = np.repeat(np.arange(6), sizes + news)
    cells = rng.permutation(len(lists)) if seed % 2 else np.sort(rng.permutation(2 * len(lists))[: len(lists)])
    values = pa.array(cells, pa.int64())
    keys = [SortKey(0, pa.int64(), descending=bool(seed % 3))]

    def read(place: int, at: np.typing.NDArray[np.int64]) -> pa.Array:
        return values.take(pa.array(at))

    nth = np.concatenate([np.arange(size + more) for size, more in zip(sizes, news, strict=True)])
    new = nth >= np.repeat(sizes, sizes + news)
    values = values.take(pa.array(_old_in_order(lists, new, keys, values)))
    wanted, _ = in_order(lists, keys, read)
    assert with_new_members(lists, new, keys, read).tolist() == wanted.tolist()


def _old_in_order(
    lists: np.typing.NDArray[np.int64], new: np.typing.NDArray[np.bool_], keys: list[SortKey], values: pa.Array
) -> np.typing.NDArray[np.int64]:
    """The members, the old ones of each list in order."""
    old = np.flatnonzero(~new)
    order, _ = in_order(lists[old], keys, lambda place, at: values.take(pa.array(old[at])))
    found = np.arange(len(lists))
    found[old] = old[order]
    return found
