"""What several tests of the simulator need."""

from collections.abc import Iterator

import duckdb
import pytest


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection
