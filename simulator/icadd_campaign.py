"""Random runs of live migration: each is made and driven by one seed, and goes again the same way."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from simulator.icadd_cases import NEXT
from simulator.icadd_coordinator import ModelRescale
from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_rows import Key, TracedRow
from simulator.icadd_scenario import Rulebook, Scenario, mended, published
from simulator.icadd_trace import told
from simulator.icadd_world import IcaddStep, IcaddWorld
from upriver.ids import VnodeId, WorkerId
from upriver.migration.icadd import TOGETHER_KEYS
from upriver.vnodes import VnodeMap

RUN_STEPS_MAX = 20_000
"""A run this long goes round in circles."""

WORKERS_MAX = 5
"""Workers of the old and of the new configuration, each."""

RULEBOOKS: dict[str, Callable[[], Rulebook]] = {"fixed": mended, "published": published}
"""By the name that a user gives."""

GRAPH_SHARE = 0.25  # of the runs
_PACES = (0.02, 0.2, 1.0, 1.0, 5.0)


def icadd_campaign(
    first_seed: int, runs: int, *, rules: str = "fixed", workers: int | None = None, rulebook: Rulebook | None = None
) -> dict[str, Any]:
    """Run the seeds from ``first_seed`` on. For JSON.

    rules: ``"fixed"``, which ships, or ``"published"``. workers: of the old configuration; drawn, unless given.
    rulebook: in place of ``rules``, for a test that switches a rule off.

    Keys: protocol, rules, runs, violations (how many seeds), kinds (violations by kind), steps, rescales (asked for in
    all runs), counters (runs by what was asked of them, and by what happened: a rule passed a row, a message of a kind
    came, rows had to wait); and of the first seed with a violation ``seed``, ``kind``, ``message`` and ``trace``, a
    list of lines.
    """
    book = rulebook or RULEBOOKS[rules]()
    kinds: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    steps_taken = rescales = 0
    first: dict[str, Any] = {}
    for seed in range(first_seed, first_seed + runs):
        scenario = random_scenario(seed, workers, aborts=book.aborts)
        steps, violation, happened = run(seed, scenario, book)
        counters.update(happened)
        counters.update(_asked(scenario))
        steps_taken += len(steps)
        rescales += len(scenario.requests)
        if violation is not None:
            kinds[str(violation.kind)] += 1
            first = first or _told(seed, scenario, book, steps, violation)
    return {
        "protocol": "icadd",
        "rules": rules,
        "runs": runs,
        "violations": kinds.total(),
        "kinds": dict(sorted(kinds.items())),
        "steps": steps_taken,
        "rescales": rescales,
        "counters": dict(sorted(counters.items())),
        **first,
    }


def _asked(scenario: Scenario) -> Iterator[str]:
    """What a run is about, by name."""
    yield f"case {scenario.name}"
    yield f"regions {len(scenario.maps) - len(scenario.feeds)}"
    yield f"workers before {len(scenario.workers)}"
    yield f"workers after {len(scenario.requests[0].workers or ())}"
    yield f"rescales {len(scenario.requests)}"
    if scenario.slow_operators:
        yield "slow operators"


def run(
    seed: int, scenario: Scenario, rulebook: Rulebook
) -> tuple[list[IcaddStep], ProtocolViolation | None, frozenset[str]]:
    """One run to its end, or to the first violation: the steps taken, what was found, and what happened on the way."""
    world = IcaddWorld(scenario, rulebook)
    taken, violation = play(seed, world)
    return taken, violation, world.happened


def play(seed: int, world: IcaddWorld) -> tuple[list[IcaddStep], ProtocolViolation | None]:
    """Let a world go on to its end, or to the first violation: the steps taken, and what was found.

    Each kind of step at each place has its own pace for the whole run, so some channels and workers are slow.
    """
    rng = random.Random(f"schedule {seed}")
    paces: dict[IcaddStep, float] = {}
    taken: list[IcaddStep] = []
    try:
        while steps := world.possible():
            if len(taken) >= RUN_STEPS_MAX:
                raise ProtocolViolation(NodeKind.STUCK, f"after {RUN_STEPS_MAX} steps there is no end")
            for step in steps:
                if step not in paces:
                    paces[step] = rng.choice(_PACES)
            step = rng.choices(steps, [paces[step] for step in steps])[0]
            taken.append(step)
            world.take(step)
        world.check_end()
    except ProtocolViolation as violation:
        return taken, violation
    return taken, None


def _told(
    seed: int, scenario: Scenario, rulebook: Rulebook, steps: list[IcaddStep], violation: ProtocolViolation
) -> dict[str, Any]:
    trace = told(IcaddWorld(scenario, rulebook), steps)
    return {"seed": seed, "kind": str(violation.kind), "message": str(violation), "trace": trace}


def random_scenario(seed: int, workers: int | None = None, *, aborts: bool = True) -> Scenario:
    """Up to 5 workers go up, down, both at once, or only swap vnodes; 1 to 3 regions, and one that they may feed; one
    or two rescales; slices one by one or together.

    workers: at the start; drawn, unless given. aborts: whether some of the rescales are given up.
    """
    rng = random.Random(f"scenario {seed}")
    count = workers or rng.randint(1, WORKERS_MAX)
    old = tuple(map(WorkerId, range(count)))
    direction, new = _new_workers(rng, old)
    vnodes = rng.choice([8, 16])
    regions = tuple(f"region {number}" for number in range(rng.choice([1, 1, 2, 3])))
    busy = rng.sample(range(vnodes), 2)
    keys = tuple(Key(VnodeId(rng.choice(busy)), rng.randint(1, 3)).hash64(vnodes) for _ in range(rng.randint(1, 4)))
    requests = [ModelRescale(workers=new, moves=_moves(rng, vnodes, new, direction))]
    if rng.random() < 0.4:
        more = (*new, WorkerId(count + WORKERS_MAX))
        second = tuple(sorted(rng.sample(more, rng.randint(1, len(more)))))
        requests.append(ModelRescale(workers=second))
    graph = random.Random(f"graph {seed}")
    fed = {NEXT: graph.choice(regions)} if graph.random() < GRAPH_SHARE else {}
    everybody = sorted({*old, *(worker for request in requests for worker in request.workers or ())})
    return Scenario(
        name=direction,
        workers=old,
        maps={region: VnodeMap.initial(vnodes, old) for region in (*regions, *fed)},
        requests=tuple(requests),
        inputs={(worker, region): _items(rng, worker, keys) for worker in everybody for region in regions},
        feeds={region: (to, {key: graph.choice(keys) for key in keys}) for to, region in fed.items()},
        prior={region: tuple(sorted({key for key in keys if rng.random() < 0.7})) for region in regions},
        keys_max=rng.randint(1, 3),
        together=random.Random(f"together {seed}").choice([1, 2, TOGETHER_KEYS]),
        asked_at_once=rng.random() < 0.5,
        slow_operators=rng.random() < 0.4,
        aborts=aborts and rng.random() < 0.25,
    )


def _new_workers(rng: random.Random, old: tuple[WorkerId, ...]) -> tuple[str, tuple[WorkerId, ...]]:
    joining = tuple(WorkerId(len(old) + i) for i in range(rng.randint(1, max(1, WORKERS_MAX - len(old)))))
    staying = tuple(sorted(rng.sample(old, rng.randint(1, max(1, len(old) - 1)))))
    direction = rng.choice(["up", "down", "both", "moves"] if len(old) > 1 else ["up"])
    return direction, {"up": old + joining, "down": staying, "both": staying + joining, "moves": old}[direction]


def _moves(
    rng: random.Random, vnodes: int, workers: tuple[WorkerId, ...], direction: str
) -> dict[VnodeId, WorkerId] | None:
    if direction != "moves":
        return None
    moving = sorted(rng.sample(range(vnodes), rng.randint(1, vnodes)))
    return {VnodeId(vnode): rng.choice(workers) for vnode in moving}


def _items(rng: random.Random, origin: WorkerId, keys: tuple[int, ...]) -> tuple[TracedRow, ...]:
    """Up to 12 rows in up to 3 epochs."""
    seen: Counter[int] = Counter()
    items = []
    epoch = 1
    for _ in range(rng.randint(0, 12)):
        key = rng.choice(keys)
        seen[key] += 1
        epoch = min(3, epoch + (rng.random() < 0.2))
        items.append(TracedRow(key, origin, seen[key], epoch))
    return tuple(items)
