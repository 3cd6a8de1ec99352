"""A Delta table is kept equal to a view for minutes, while all that can be killed is.

``pytest -s`` shows what was done, and when; ``--campaign-seed`` repeats it.
"""

from pathlib import Path

import pytest
from harmed_query_kit import harm

pytestmark = [pytest.mark.servers, pytest.mark.long]


def test_a_delta_table_equals_the_view_whatever_is_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    from servers.connectors import delta_settings
    from servers.maven import Missing

    try:
        settings = delta_settings()
    except Missing as missing:
        pytest.skip(str(missing))
    harm(tmp_path, request.config.getoption("--campaign-seed"), settings)
