"""A query and a subscriber read the changes of a view for minutes, while all that can be killed is: each change
comes once.

``pytest -s`` shows what was done, and when; ``--campaign-seed`` repeats it, ``--soak-minutes`` says for how long.
"""

from pathlib import Path

import pytest
from harmed_query_kit import harm

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_each_change_comes_once_whatever_is_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    harm(tmp_path, request.config)
