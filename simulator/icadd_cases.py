"""Small cases for the exhaustive search: 2 or 3 workers, 1 or 2 keys, at most 2 rows per origin and key."""

from collections.abc import Sequence
from dataclasses import replace

from simulator.icadd_coordinator import ModelRescale
from simulator.icadd_rows import Key, TracedRow
from simulator.icadd_scenario import Scenario
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.vnodes import VnodeMap

REGION, OTHER_REGION = "region 0", "region 1"


def case(
    name: str,
    *,
    old: Sequence[int],
    new: Sequence[int],
    owners: Sequence[int],
    moves: dict[int, int],
    rows: dict[int, str],
    known: str | None = None,
    keys: dict[str, Key] | None = None,
    aborts: bool = False,
) -> Scenario:
    """One region, one rescale.

    owners: of the vnodes before; moves: vnode to new owner. rows: per worker, the keys of its upstream's rows, in
    order; ``|`` ends an epoch. known: keys with state at the start; all, unless said. keys: ``a`` is the first key of
    vnode 0, ``b`` of vnode 1, unless said.
    """
    places = keys or {"a": Key(VnodeId(0), 1), "b": Key(VnodeId(1), 1)}
    hashes = {letter: key.hash64(len(owners)) for letter, key in places.items()}
    used = {letter for text in rows.values() for letter in text if letter in hashes}
    request = ModelRescale(
        workers=tuple(map(WorkerId, new)),
        moves={VnodeId(vnode): WorkerId(worker) for vnode, worker in moves.items()},
    )
    prior = sorted(hashes[letter] for letter in (used if known is None else known))
    return Scenario(
        name=name,
        workers=tuple(map(WorkerId, old)),
        maps={REGION: VnodeMap(MapVersion(0), tuple(map(WorkerId, owners)))},
        requests=(request,),
        inputs={(WorkerId(worker), REGION): _items(WorkerId(worker), text, hashes) for worker, text in rows.items()},
        prior={REGION: tuple(prior)},
        aborts=aborts,
    )


def _items(origin: WorkerId, text: str, hashes: dict[str, int]) -> tuple[TracedRow, ...]:
    items: list[TracedRow] = []
    seen: dict[str, int] = {}
    epoch = 1
    for letter in text:
        if letter == "|":
            epoch += 1
            continue
        seen[letter] = seen.get(letter, 0) + 1
        items.append(TracedRow(hashes[letter], origin, seen[letter], epoch))
    return tuple(items)


TINY = case("tiny", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={1: "aa"})
"""One key moves from 0 to 1; only its new owner has rows."""
PAIR = case("pair", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={0: "aa", 1: "aa"})
"""The same, and both have rows."""
UP = case("up", old=[0], new=[0, 1], owners=[0], moves={0: 1}, rows={0: "aa", 1: "aa"})
"""From one worker to two; the joining one has an upstream of its own."""
DOWN = case("down", old=[0, 1], new=[0], owners=[1], moves={0: 0}, rows={0: "aa", 1: "a"})
"""From two workers to one."""
DOWN_ONE = case("down one", old=[0, 1], new=[0], owners=[1], moves={0: 0}, rows={0: "a"})
"""The same with one row."""
CROSS = case("cross", old=[0, 1], new=[0, 1], owners=[0, 1], moves={0: 1, 1: 0}, rows={0: "ab", 1: "ab"})
"""Two keys change places."""
TWO_SLICES = case("two slices", old=[0, 1], new=[0, 1], owners=[0, 0], moves={0: 1, 1: 1}, rows={0: "b", 1: "ab"})
"""Two slices of one owner move: one may be done while the other is collected."""
TOGETHER = replace(TWO_SLICES, name="together", together=3)
"""The same, given together: the keys of either are moved one by one."""
TWO_KEYS = case(
    "two keys",
    old=[0, 1],
    new=[0, 1],
    owners=[0],
    moves={0: 1},
    rows={0: "b", 1: "ab"},
    keys={"a": Key(VnodeId(0), 1), "b": Key(VnodeId(0), 2)},
)
"""Two keys of one slice: one may have moved while the other is still here."""
NEW_KEY = case("new key", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={0: "a", 1: "aa"}, known="")
"""As ``pair``, for a key that has no state yet."""
BOUNCED = case("bounced", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={1: "a"}, known="")
"""A new key whose first row comes at its new owner."""
QUIET = case("quiet", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={}, known="a")
"""One key moves, and no worker has rows."""
THIRD = case("third", old=[0, 1, 2], new=[0, 1, 2], owners=[2], moves={0: 1}, rows={0: "aa", 2: "a"})
"""A key moves from 2 to 1; worker 0 is a bystander that has rows."""
BYSTANDER = case("bystander", old=[0, 1, 2], new=[0, 1, 2], owners=[2], moves={0: 1}, rows={0: "aa"})
"""The same, and only the bystander has rows."""
JOIN = case("join", old=[0, 1], new=[0, 1, 2], owners=[0], moves={0: 2}, rows={1: "aa"})
"""From two workers to three; 1 is the bystander."""
JOIN_WITH_ROWS = case("join with rows", old=[0, 1], new=[0, 1, 2], owners=[0], moves={0: 2}, rows={1: "a", 2: "a"})
"""The same, with rows at the joining worker."""
LEAVE = case("leave", old=[0, 1, 2], new=[0, 1], owners=[2], moves={0: 1}, rows={0: "aa"})
"""From three workers to two; 0 is the bystander."""
SWAP = case("swap", old=[0, 1], new=[1, 2], owners=[0], moves={0: 2}, rows={1: "aa"})
"""One worker leaves, one joins, and takes over."""
TWICE = replace(
    case("twice", old=[0, 1, 2], new=[0, 1, 2], owners=[0], moves={0: 1}, rows={2: "a"}),
    requests=(
        ModelRescale(moves={VnodeId(0): WorkerId(1)}),
        ModelRescale(moves={VnodeId(0): WorkerId(2)}),
    ),
)
"""A second rescale is asked for at any time during or after the first."""
ABORT = case("abort", old=[0, 1], new=[0, 1], owners=[0, 0], moves={0: 1, 1: 1}, rows={1: "ab"}, aborts=True)
"""Two slices, and the coordinator may abort at any time."""
ABORT_TOGETHER = replace(ABORT, name="abort together", together=3)
"""The same, given together."""
ABORT_NEW_KEY = case(
    "abort new key",
    old=[0, 1],
    new=[0, 1],
    owners=[0],
    moves={0: 1},
    rows={1: "bb"},
    known="a",
    keys={"a": Key(VnodeId(0), 1), "b": Key(VnodeId(0), 2)},
    aborts=True,
)
"""One key of a slice has state, another has only rows; the coordinator may abort at any time."""
ABORT_JOIN = case("abort join", old=[0, 1], new=[0, 1, 2], owners=[0], moves={0: 2}, rows={1: "aa"}, aborts=True)
"""A joining worker, and the coordinator may abort at any time."""
ABORT_LEAVE = case("abort leave", old=[0, 1], new=[0], owners=[1], moves={0: 0}, rows={0: "a", 1: "a"}, aborts=True)
"""A leaving worker, and the coordinator may abort at any time."""
EPOCHS = case("epochs", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={0: "a|a", 1: "a|a"})
"""Two epochs."""
SNAPSHOT = replace(BOUNCED, name="snapshot", snapshot=True)
"""As ``bounced``, and once all have settled barriers cut a snapshot through the rows."""

SLOW = replace(PAIR, name="slow", slow_operators=True)
"""As ``pair``, with operators that are slow to see what they are given."""
SLOW_NEW_KEY = replace(NEW_KEY, name="slow new key", slow_operators=True)
"""As ``new key``, with slow operators."""
TWO_AT_ONCE = replace(TWO_KEYS, name="two at once", keys_max=2)
"""As ``two keys``, collected together."""
TWO_REGIONS = replace(
    QUIET,
    name="two regions",
    maps=dict.fromkeys((REGION, OTHER_REGION), QUIET.maps[REGION]),
    prior=dict.fromkeys((REGION, OTHER_REGION), QUIET.prior[REGION]),
    inputs={(WorkerId(1), region): BOUNCED.inputs[WorkerId(1), REGION] for region in (REGION, OTHER_REGION)},
)
"""Two regions that share the channels, each with a key that moves."""

NEXT = "next region"


def graph_of(case: Scenario) -> Scenario:
    """The document's own graph, over a case of one region: its rows come out of another region, which goes before.

    Each worker's rows there have keys in a vnode of its own, which moves only if the worker leaves. So the operators of
    the first region give the second one's distributors the case's rows on the workers where they came in. Rows of
    workers that join come from elsewhere, as before.
    """
    (before,) = case.maps.values()
    count = len(before.owners)
    slots = 1 << (count + len(case.workers) - 1).bit_length()
    spare = [*case.workers, *case.workers[:1] * (slots - count - len(case.workers))]
    owners = VnodeMap(before.version, (*before.owners, *spare))

    def moved(key: int) -> int:
        return Key(VnodeId(key * count >> 64), key & 0xFF).hash64(slots)

    own = {worker: count + place for place, worker in enumerate(case.workers)}
    first, second, keys = {}, {}, {}
    for (worker, _), rows in case.inputs.items():
        if worker not in own:
            second[worker, NEXT] = tuple(row._replace(key=moved(row.key)) for row in rows)
            continue
        named = {
            key: Key(VnodeId(own[worker]), place) for place, key in enumerate(sorted({row.key for row in rows}), 1)
        }
        for key, name in named.items():
            keys[name.hash64(slots)] = moved(key)
        first[worker, REGION] = tuple(row._replace(key=named[row.key].hash64(slots)) for row in rows)

    def with_own(request: ModelRescale) -> ModelRescale:
        """The vnode of a worker that leaves moves with the others."""
        staying = request.workers or case.workers
        leavers = {VnodeId(vnode): staying[0] for worker, vnode in own.items() if worker not in staying}
        return replace(request, moves={**(request.moves or {}), **leavers})

    return replace(
        case,
        name=f"graph of {case.name}",
        requests=tuple(map(with_own, case.requests)),
        maps={REGION: owners, NEXT: owners},
        inputs={**first, **second},
        prior={REGION: tuple(keys), NEXT: tuple(map(moved, case.prior[REGION]))},
        feeds={REGION: (NEXT, keys)},
    )


SMALL_CASES = (
    TINY,
    PAIR,
    UP,
    DOWN,
    CROSS,
    TWO_SLICES,
    TOGETHER,
    TWO_KEYS,
    NEW_KEY,
    BOUNCED,
    QUIET,
    THIRD,
    BYSTANDER,
    JOIN,
    JOIN_WITH_ROWS,
    LEAVE,
    SWAP,
    TWICE,
    ABORT,
    ABORT_TOGETHER,
    ABORT_NEW_KEY,
    ABORT_JOIN,
    ABORT_LEAVE,
    EPOCHS,
    SNAPSHOT,
    SLOW,
    SLOW_NEW_KEY,
    TWO_AT_ONCE,
    TWO_REGIONS,
    *map(graph_of, (TINY, NEW_KEY, BOUNCED, QUIET)),
)
