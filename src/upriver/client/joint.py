"""Several lookups of a view as one: their keys put together, and the rows that were found dealt out again."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.client.asking import Found, KeySet, Places
from upriver.client.keys import KeyColumns
from upriver.hashing import hash64
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
    def of(cls, lookups: Sequence[KeyColumns], schema: pa.Schema) -> Self | None:
        """The keys of several lookups, each of one at least. ``None`` if hashes do not tell them apart."""
        columns = [pa.concat_arrays(parts) for parts in zip(*lookups, strict=True)]
        keys = pa.RecordBatch.from_arrays(columns, schema=schema)
        hashes, ends = hash64(columns), np.cumsum([len(columns[0]) for columns in lookups])
        distinct, firsts, wanted = np.unique(hashes, return_index=True, return_inverse=True)
        asked = KeySet(taken(keys, firsts), distinct, np.arange(len(distinct)))
        if not taken(asked.keys, wanted).equals(keys):
            return None
        of_lookup = np.repeat(np.arange(len(lookups)), np.diff(ends, prepend=0)) * len(distinct)
        each = of_lookup + wanted
        if not is_any_twice(each):
            return cls(asked, wanted, ends)
        kept = np.sort(np.unique(each, return_index=True)[1])  # a lookup's keys are each wanted once
        return cls(asked, wanted[kept], np.searchsorted(kept, ends))

    def deal(self, found: Sequence[Found], schema: pa.Schema) -> list[pa.Table]:
        """Each lookup's rows, in the order of its keys. Raises ValueError if they are too many for one batch."""
        places = np.concatenate([part.places for part in found])
        of_key = np.bincount(places, minlength=len(self.asked.hash64))
        begins, counts = (of_key.cumsum() - of_key)[self.wanted], of_key[self.wanted]
        rows = pa.concat_batches([part.answered.rows for part in found])
        dealt = pa.Table.from_batches([taken(rows, places.argsort(kind="stable")[spread(begins, counts)])], schema)
        stops = counts.cumsum()[self.ends - 1].tolist()
        return [dealt.slice(start, stop - start) for start, stop in pairwise([0, *stops])]
