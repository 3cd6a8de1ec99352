"""Several lookups of a view as one: their keys put together, and the rows that were found dealt out again."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.shell.asking import Found, KeySet, Places, in_key_order
from upriver.state.columns import taken
from upriver.state.ragged import spread
from upriver.state.vectors import is_any_twice


@dataclass(frozen=True, slots=True)
class Joint:
    """asked: each key once. wanted: places in it, of the keys of one lookup after the other. ends: where those of each
    lookup end."""

    asked: KeySet
    wanted: Places
    ends: Places

    @classmethod
    def of(cls, lookups: Sequence[pa.RecordBatch]) -> Self | None:
        """The keys of several lookups, each of one at least, all of the same key columns; ``None`` if hashes do not
        tell them apart."""
        columns = [pa.concat_arrays(parts) for parts in zip(*(keys.columns for keys in lookups), strict=True)]
        keys = pa.RecordBatch.from_arrays(columns, schema=lookups[0].schema)
        hashes, ends = hash64(keys.columns, keys.num_rows), np.cumsum([len(keys) for keys in lookups])
        if not is_any_twice(hashes):
            places = np.arange(len(hashes))
            return cls(KeySet(keys, hashes, places), places, ends)
        distinct, firsts, wanted = np.unique(hashes, return_index=True, return_inverse=True)
        asked = KeySet(taken(keys, firsts), distinct, np.arange(len(distinct)))
        if not taken(asked.keys, wanted).equals(keys):
            return None
        of_lookup = np.repeat(np.arange(len(lookups)), np.diff(ends, prepend=0)) * len(distinct)
        kept = np.sort(np.unique(of_lookup + wanted, return_index=True)[1])  # a lookup's keys are each wanted once
        return cls(asked, wanted[kept], np.searchsorted(kept, ends))

    def deal(self, found: Sequence[Found], schema: pa.Schema) -> list[pa.Table]:
        """Each lookup's rows, in the order of its keys. Raises ValueError if they are too many for one batch."""
        batches = in_key_order(found, schema).combine_chunks().to_batches()
        if not batches:
            return [schema.empty_table()] * len(self.ends)
        places = np.sort(np.concatenate([part.places for part in found]))
        begins = np.searchsorted(places, np.arange(len(self.asked.hash64) + 1))
        counts = np.diff(begins)[self.wanted]
        (rows,) = batches
        if (counts != 1).any() or not np.array_equal(self.wanted, self.asked.places):
            rows = taken(rows, spread(begins[self.wanted], counts))
        stops = counts.cumsum()[self.ends - 1].tolist()
        return [pa.Table.from_batches([rows.slice(start, stop - start)]) for start, stop in pairwise([0, *stops])]
