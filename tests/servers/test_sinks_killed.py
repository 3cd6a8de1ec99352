"""A table of Delta or Iceberg is kept equal to a view for minutes, while all that can be killed is. A consumer of Kafka
counts the changes that are published.

``pytest -s`` shows what was done, and when; ``--campaign-seed`` repeats it, ``--soak-minutes`` says for how long.
"""

from pathlib import Path

import pytest
from harmed_query_kit import Sinks, harm

pytestmark = [pytest.mark.servers, pytest.mark.long]


def settings_with(*connectors: str) -> dict[str, str]:
    """Of a Spark session. Skips the test where this machine or this version of Spark lacks a connector."""
    from servers.connectors import settings_of
    from servers.maven import Missing

    try:
        return settings_of(*connectors)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("connectors", [("kafka",), ("delta",), ("iceberg",), ("delta", "kafka")], ids="-and-".join)
def test_sinks_are_right_whatever_is_killed(
    connectors: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = settings_with(*connectors)
    broker = request.getfixturevalue("kafka") if "kafka" in connectors else None
    table = next((name for name in connectors if name != "kafka"), None)
    harm(tmp_path, request.config, Sinks(settings, table, broker))
