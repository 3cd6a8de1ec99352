"""Nothing is wrong in any seed of any scenario while all rules are on, and all that can happen does.

``make test`` plays the first seeds of each scenario, ``make verify`` a seed that is drawn anew, and ``make
soak`` thousands. A failure names the command that plays its seed again.
"""

from collections.abc import Mapping

import pytest
from soak import drawn_seed

from simulator.campaign import RunOutcome, Simulator
from simulator.event_weights import FAULTS
from simulator.scenarios import SCENARIOS

DRAWN_SEEDS, SOAK_SEEDS, SEEDS_MAX = 1, 2_000, 150

CLUSTER = (
    *("epochs", "epochs_ended", "segments", "rows", "lookups", "lookups_in_mid_epoch", "lookups_refused", "snapshots"),
    *("snapshots_failed", "crashes", "losses_noticed", "late_reports", "takeovers", "repeats", "lookups_given_up"),
    *("mixed_epochs_ended", "loads", "rescales_live", "restarts", "rescales_aborted", "rescales_failed"),
    *("rescales_refused", "PeerLost", "torn_reads_noticed", "views_changed", "set_aside", "views_failed"),
    *("lookups_failed", "fills", "evictions"),
)
SHOWN_BY = {
    "crash": "crashes",
    "hang": "takeovers",
    "cut": "cuts",
    "driver": "drivers",
    "delay": "PeersMet",
    "duplicate": "repeats",
    "echo": "echoes",
    "nonsense": "nonsense",
    "tear": "torn_reads_noticed",
    "disk": "checkpoints_given_up",
}
LOG = ("changes_logged", "checkpoints", "views_changed")
FAILING = ("views_failed", "lookups_failed", "lookups", "checkpoints", "rescales_live")
DEADLY = ("deaths_in_steps", "views_crashed", "lookups_failed", "lookups", "checkpoints", "rescales_live")
STANDBYS = ("handed_over", "taken_over", "feeds")
SEEN: Mapping[str, tuple[str, ...]] = {
    "drawn": CLUSTER,
    "faults": (*SHOWN_BY.values(), "rescales_live", "checkpoints"),
    **{f"faults {kind}": (SHOWN_BY[kind],) for kind in ("cut", "disk", "driver")},
    "traced": ("evictions", "lookups"),
    "partial": ("evictions", "fills", "lookups"),
    "constant rows": ("epochs", "segments", "crashes", "rescales_live"),
    "restored": ("checkpoints", "checkpoints_forgotten", "rescales_live", "restored", "checkpoints_given_up"),
    "restored exchanges": ("checkpoints", "checkpoints_forgotten", "rescales_live", "restored", "checkpoints_given_up"),
    "log": ("changes_logged", "rescales_live", "checkpoints"),
    "log exchanges": ("changes_logged", "rescales_live", "checkpoints"),
    "log replanned": LOG,
    "log replanned exchanges": LOG,
    "log segmented": ("changes_logged", "segments", "checkpoints"),
    "log segmented exchanges": ("changes_logged", "segments", "checkpoints"),
    **{
        f"links broken{name}": ("links_broken", "links_mended", "meetings_due", "workers_moved", "epochs")
        for name in (" exchanges", " standbys", " standbys exchanges")
    },
    "links broken for good": ("links_broken", "workers_moved", "epochs_ended", "rescales_live"),
    "links broken for good standbys": ("links_broken", "workers_moved", "epochs_ended"),
    "links broken": ("epochs", "rescales_live"),
    "standbys": ("handed_over", "feeds", "rescales_live"),
    "standbys exchanges": (*STANDBYS, "rescales_live"),
    "taken over": ("taken_over", "feeds"),
    "records": ("drivers", "records", "rescales_live", "rescales_aborted"),
    "failing": FAILING,
    "failing exchanges": FAILING,
    "deadly": DEADLY,
    "deadly standbys exchanges": (*DEADLY, "taken_over"),
    "operators": ("views_failed", "lookups"),
    "unsure joins": ("lookups", "rescales_live", "echoes", "nonsense"),
}
"""By scenario, what happens in some of its first seeds."""
RARE = {
    **dict.fromkeys(("drawn", "faults", "operators", "restored", "restored exchanges"), pytest.mark.verify),
    "deadly standbys exchanges": pytest.mark.long,
}
"""Scenarios in which something comes about in few seeds."""


FOUND = [
    ("partial", 960_199_729),
    ("faults driver", 891_331_430),
    ("drawn 1 workers", 301),
    ("log replanned exchanges", 2),
    ("clock", 20_128),
    ("retention 0 partial", 661_820_672),
]
"""What campaigns have found: a partial view had failed, and standbys were to take its slices over; a checkpoint was
published of an epoch that had come to be within a segment, so that no worker begins with it; a rescale by learners
waited for epochs of a flow that stood aside; or for learners, where every flow was to begin anew; rescales waited for a
learner, and the views that it learned had been dropped; a worker came to the place of one whose slices standbys had
taken over, after the last view that has standbys was dropped."""


def check(scenario: str, seed: int, simulator: Simulator) -> RunOutcome:
    outcome = simulator.play(seed)
    assert outcome.violation is None, f'{outcome}\npython -m simulator --scenario "{scenario}" --seed {seed}'
    return outcome


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name in RARE or name not in SEEN])
def test_the_first_seed(scenario: str) -> None:
    assert check(scenario, 0, Simulator(SCENARIOS[scenario])).steps


@pytest.mark.parametrize(("scenario", "seed"), FOUND)
def test_a_seed_that_went_wrong_once(scenario: str, seed: int) -> None:
    assert check(scenario, seed, Simulator(SCENARIOS[scenario])).steps


@pytest.mark.verify
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seeds_drawn_anew(scenario: str) -> None:
    play_drawn(scenario, DRAWN_SEEDS)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_many_seeds(scenario: str) -> None:
    play_drawn(scenario, SOAK_SEEDS)


def play_drawn(scenario: str, seeds: int) -> None:
    first, simulator = drawn_seed(scenario), Simulator(SCENARIOS[scenario])
    for seed in range(first, first + seeds):
        check(scenario, seed, simulator)


@pytest.mark.parametrize("scenario", [pytest.param(name, marks=RARE[name]) if name in RARE else name for name in SEEN])
def test_everything_that_can_happen_does_happen(scenario: str) -> None:
    simulator, unseen = Simulator(SCENARIOS[scenario]), set(SEEN[scenario])
    for seed in range(SEEDS_MAX):
        unseen -= {what for what, times in check(scenario, seed, simulator).counters.items() if times}
        if not unseen:
            break
    assert not unseen


def test_every_kind_of_fault_is_shown() -> None:
    assert SHOWN_BY.keys() == FAULTS.keys()


@pytest.mark.parametrize("kind", ["cut", "disk", "driver"])
def test_one_kind_of_fault_comes_alone(kind: str) -> None:
    counters = check(f"faults {kind}", 1, Simulator(SCENARIOS[f"faults {kind}"])).counters
    assert not {"crashes", "repeats"} & counters.keys()
