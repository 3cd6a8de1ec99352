"""DatedRows: the rows of a lookup, how old they are, and their forms in pandas and polars."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from upriver.client.freshness import AGE_S, COMMITTED_AT, SOURCES
from upriver.errors import DeclarationError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class DatedRows:
    """The rows of a lookup, and how old they are. epoch: the one that they reflect; 0 for no keys. committed_at: when
    that was committed. age_s: seconds that they are old at most. sources: the state of the view's sources. What is not
    known is ``None``.

    Whatever takes an Arrow table by its C interface takes this, too: ``pa.table(found)``, ``duckdb``, ``polars``.
    """

    rows: pa.Table
    epoch: int
    committed_at: datetime | None
    age_s: float | None
    sources: str | None

    @classmethod
    def of(cls, rows: pa.Table, epoch: int) -> Self:
        """From a client's answer."""
        told = rows.schema.metadata or {}
        committed, age, sources = (told.get(name) for name in (COMMITTED_AT, AGE_S, SOURCES))
        return cls(
            rows,
            epoch,
            None if committed is None else datetime.fromisoformat(committed.decode()),
            None if age is None else float(age),
            None if sources is None else sources.decode(),
        )

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts by column name."""
        rows: list[dict[str, Any]] = self.rows.to_pylist()
        return rows

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return self.rows.to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """A polars DataFrame. Raises DeclarationError if polars is not installed."""
        try:
            import polars
        except ImportError:
            raise DeclarationError("to_polars() needs the package polars: pip install 'upriver[polars]'") from None
        frame = polars.from_arrow(self.rows)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)
