"""Small cases for ``redistribute``, beside those of ICADD: its races, two old owners, a leaver among others."""

from dataclasses import replace

from simulator.icadd_cases import case
from simulator.icadd_rows import Key
from upriver.ids import VnodeId

ONE_ORIGIN = case("one origin", old=[0, 1], new=[0, 1], owners=[0], moves={0: 1}, rows={1: "aa"}, known="")
"""A key that has no state yet; one worker has rows."""
TWO_ORIGINS = case(
    "two origins", old=[0, 1, 2], new=[0, 1, 2], owners=[0], moves={0: 1}, rows={1: "a", 2: "a"}, known=""
)
"""A key that has no state yet; two workers have one row each."""
TWO_OWNERS = case("two owners", old=[0, 1], new=[0, 1, 2], owners=[0, 1], moves={0: 2, 1: 2}, rows={2: "b"}, known="ab")
"""Two old owners give a key each to a joining worker, which has a row of one."""
THREE_WAYS = case("three ways", old=[0, 1, 2], new=[0, 1, 2], owners=[0, 0], moves={0: 1, 1: 2}, rows={1: "ab"})
"""One old owner gives to two new ones; each has to be told by itself."""
SECOND_OPERATOR = case(
    "second operator",
    old=[0, 1],
    new=[0, 1],
    owners=[0],
    moves={0: 1},
    rows={1: "aa"},
    keys={"a": Key(VnodeId(0), 2)},
)
"""Only the second operator of the region has state of the key."""
BOTH_OPERATORS = replace(
    case(
        "both operators",
        old=[0, 1],
        new=[0, 1],
        owners=[0],
        moves={0: 1},
        rows={0: "b", 1: "ac"},
        keys={"a": Key(VnodeId(0), 1), "b": Key(VnodeId(0), 2), "c": Key(VnodeId(0), 3)},
    ),
    keys_max=2,
)
"""A key of the first operator, one of the second, one of both; up to two go together."""
LEAVE_AMONG_OTHERS = case(
    "leave among others", old=[0, 1, 2], new=[0, 1], owners=[2, 0], moves={0: 1, 1: 1}, rows={2: "b"}
)
"""One old owner leaves, another stays."""
UP_AND_DOWN = case("up and down", old=[0, 1], new=[0, 2], owners=[0, 1], moves={0: 2, 1: 0}, rows={0: "ab", 1: "b"})
"""One worker joins, one leaves; the one that stays gives and takes."""
ABORT_TWO_KEYS = case(
    "abort two keys",
    old=[0, 1],
    new=[0, 1],
    owners=[0],
    moves={0: 1},
    rows={1: "ab"},
    keys={"a": Key(VnodeId(0), 1), "b": Key(VnodeId(0), 2)},
    aborts=True,
)
"""Two keys of one slice, and the coordinator may abort at any time."""

REDISTRIBUTE_CASES = (
    ONE_ORIGIN,
    TWO_ORIGINS,
    TWO_OWNERS,
    THREE_WAYS,
    SECOND_OPERATOR,
    BOTH_OPERATORS,
    LEAVE_AMONG_OTHERS,
    UP_AND_DOWN,
    ABORT_TWO_KEYS,
)
