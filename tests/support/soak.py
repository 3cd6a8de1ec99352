"""How much is tried: a few examples and cases in each run of the tests, and many more with ``--soak``."""

import os
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

SOAK = "UPRIVER_TESTS_SOAK"
"""The environment variable that ``tests/conftest.py`` sets for ``--soak``."""


def examples(usual: int) -> int:
    return 10 * usual if SOAK in os.environ else usual


def every_third(cases: Sequence[Case], first: int) -> Sequence[Case]:
    """From this place on; all with ``--soak``. Tests that begin at different places leave none out."""
    return cases if SOAK in os.environ else cases[first::3]
