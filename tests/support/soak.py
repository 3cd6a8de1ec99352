"""How many examples Hypothesis makes: a few in each run of the tests, and ten times as many with ``--soak``."""

import os

SOAK = "UPRIVER_TESTS_SOAK"
"""The environment variable that ``tests/conftest.py`` sets for ``--soak``."""


def examples(usual: int) -> int:
    return 10 * usual if SOAK in os.environ else usual
