"""Random faults on real processes, while views are read and rescaled: see campaign_kit.

Each test prints what was done, and when; ``pytest -s`` shows it.
"""

from pathlib import Path

import pytest
from campaign_kit import campaign

pytestmark = pytest.mark.cluster

SEEDS_SOAK = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--campaign-seed`` gives one seed alone."""
    if "seed" in metafunc.fixturenames:
        given = metafunc.config.getoption("--campaign-seed")
        metafunc.parametrize("seed", range(SEEDS_SOAK) if given is None else [given])


@pytest.mark.long
def test_a_round_of_random_faults(tmp_path: Path) -> None:
    with campaign(tmp_path, seed=1) as harmed:
        harmed.round(steps=4)
        assert harmed.log[-1].endswith("checked")


@pytest.mark.long
def test_rounds_of_random_faults_and_another_driver(tmp_path: Path, seed: int) -> None:
    with campaign(tmp_path, seed, standbys={"replicas": seed % 2}) as harmed:
        for _ in range(3):
            harmed.round(steps=5)
        harmed.restart()
        harmed.round(steps=5)
        assert harmed.log[-1].endswith("checked")
