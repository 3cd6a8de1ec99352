"""Slots: where rows meet that no column brings together (docs/internals/decisions)."""

from dataclasses import dataclass

SLOTS = 64
"""Slots over which rows are spread that meet by no column: how many workers may share them, and how often the rows of
the other side of a join are kept."""
REPLICATED_ROWS_MAX = 100_000
"""Rows of a side of a join that are kept in all slots."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """The side of a join that is in all slots. port: 0 for the left input, 1 for the right. tables: that its rows come
    from."""

    port: int
    tables: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What is wrong if the side has more than ``REPLICATED_ROWS_MAX`` rows, and what to do."""
        named = " and ".join(map(repr, self.tables)) or "the query itself"
        return (
            f"a join without an equality has more than {REPLICATED_ROWS_MAX:,} rows from {named} on the side that it "
            f"keeps {SLOTS} times. Put a column of equality into its ON, such as a.day = b.day AND a.at > b.at; or "
            "filter or group that side in a subquery"
        )
