"""What operators ask of whoever evaluates scalar expressions."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.plan.plan import Projection


class Evaluator(Protocol):
    """Evaluates DuckDB SQL over the columns of a batch; raises RowError when a row makes an expression fail."""

    def curt(self) -> "Evaluator":
        """The same, but for its errors: they do not say which row it was, which takes time to find out."""
        ...

    def project(self, rows: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
        """The projection's columns, one row for each of ``rows``, in order."""
        ...

    def mask(self, rows: pa.RecordBatch, predicate: str) -> npt.NDArray[np.bool_]:
        """Where the predicate is true; null counts as false."""
        ...
