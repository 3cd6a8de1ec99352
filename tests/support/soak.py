"""How much is tried: a few examples and cases in each run of the tests, and many more with ``--soak``."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

Case = TypeVar("Case")

SOAK = "UPRIVER_TESTS_SOAK"
"""The environment variable that ``tests/conftest.py`` sets for ``--soak``."""


def examples(usual: int) -> int:
    return 10 * usual if SOAK in os.environ else usual


def every_third(cases: Sequence[Case], first: int) -> Sequence[Case]:
    """From this place on; all with ``--soak``. Tests that begin at different places leave none out."""
    return cases if SOAK in os.environ else cases[first::3]


def a_tenth(cases: Sequence[Case]) -> Sequence[Case]:
    """About a tenth, which the commit's hash chooses, so that each commit asks for others; all with ``--soak``."""
    count = -(-len(cases) // 10)
    return (
        cases if SOAK in os.environ else [cases[place] for place in sorted(chance().sample(range(len(cases)), count))]
    )


def drawn_seed(what: str) -> int:
    """The first seed of a campaign whose seeds are drawn anew. It is printed."""
    seed = SystemRandom().randrange(10**9)
    print(f"{what} from seed {seed} on")
    return seed


def chance() -> Random:
    """Chance that is the same for all runs of a commit."""
    head = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(head, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    print(f"chosen by the commit {found.stdout.strip() or 'that is not known'}")
    return Random(found.stdout.strip())
