"""NEXMark's model of an auction house, told anew from the published one: people register, open auctions and bid.

Of each 50 events in a row the first is a person, the next 3 are auctions and the other 46 are bids. Event ``n`` happens
``n / events_per_s`` seconds after the first. People and auctions are numbered as they come. The seller of an
auction, and the bidder and the auction of a bid, are drawn for each event, mostly from a few *hot* ones:

- 3 of 4 auctions are opened by the hot seller, the first person of the current hundred; 3 of 4 bids are made by the
  hot bidder, the second one of it. The others: any of the last 1,000 people, or of the 10 to come.
- 1 of 2 bids is on the hot auction, the first one of the current hundred; the others are on any of the last 101
  auctions, or of the 10 to come. On average an auction is open until the 100th one after it.
- Prices are from 1 to 1,000,000 dollars, in cents, evenly over their logarithm.

So an auction or a bid may name a person, or an auction, that comes a little later, or never if the events end before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FIRST_ID = 1_000
"""The first person's, and the first auction's."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100
"""Of so many people or auctions in a row one is hot, until the next so many begin."""
HOT_AUCTION_ODDS, HOT_SELLER_ODDS, HOT_BIDDER_ODDS, HOT_CHANNEL_ODDS = 2, 4, 4, 2
"""One draw in so many is not for a hot one."""
ACTIVE_PEOPLE = 1_000
"""The latest people; those that are not hot are drawn from them."""
OPEN_AUCTIONS = 100
"""Auctions that are open at a time, on average."""
LEAD = 10
"""People, or auctions, to come that may be named already."""
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
"""Those that are not hot."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""Of an event on average, as the model counts them: letters without meaning fill it up."""
START_MS = 1_436_918_400_000
"""Time of the first event in ms of the epoch: 2015-07-15."""

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_FOUR_DIGITS = tuple(f"{number:04}" for number in range(10_000))
_WORD_LETTERS_MIN = 3
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz" * 9 + b" " * 22, np.uint8)
"""What each random byte stands for."""
_TIME = pa.timestamp("us", tz="UTC")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of events: of each cycle of them all those from ``first`` on, ``share`` of them."""

    first: int
    share: int

    def events_of(self, number: Ints) -> Ints:
        """Which events those with these numbers among their kind are among all; numbers count from 0."""
        return number // self.share * CYCLE_EVENTS + self.first + number % self.share

    def before(self, event: Ints) -> Ints:
        """How many of the kind come before each event."""
        return event // CYCLE_EVENTS * self.share + np.clip(event % CYCLE_EVENTS - self.first, 0, self.share)

    def latest(self, event: Ints) -> Ints:
        """The number of the last one up to and including each event; -1 if there is none."""
        return self.before(event + 1) - 1


PEOPLE, AUCTIONS, BIDS = EventKind(0, 1), EventKind(1, 3), EventKind(4, 46)
CYCLE_EVENTS = PEOPLE.share + AUCTIONS.share + BIDS.share
"""Events after which the kinds come again."""


class Draw:
    """Some events of one kind, and the random numbers that say what is in them. Each call draws anew.

    number: of each event among its kind. event: among all. ms: when it happens, in ms of the epoch.
    """

    def __init__(self, rng: np.random.Generator, kind: EventKind, number: Ints, events_per_s: int) -> None:
        self.number = number
        self.event = kind.events_of(number)
        self.ms = START_MS + self.event * 1_000 // events_per_s
        self._rng = rng
        self._events_per_s = events_per_s

    def span_ms(self, events: int) -> Ints:
        """How long it takes until so many events later, in ms."""
        return START_MS + (self.event + events) * 1_000 // self._events_per_s - self.ms

    def below(self, bound: int | Ints) -> Ints:
        """For each event a number from 0 up to but without ``bound``."""
        return (self._rng.random(len(self.number)) * bound).astype(np.int64)

    def mostly(self, hot: Ints, others: Ints, odds: int) -> Ints:
        """The hot one, but for one event in ``odds`` on average."""
        return np.where(self.below(odds) > 0, hot, others)

    def hot(self, kind: EventKind) -> Ints:
        """The number of the first one of the current hundred of a kind."""
        return kind.latest(self.event) // HOT_EVERY * HOT_EVERY

    def people(self) -> Ints:
        """Numbers of people who are active, or to come."""
        there_are = PEOPLE.latest(self.event) + 1
        active = np.minimum(there_are, ACTIVE_PEOPLE)
        return there_are - active + self.below(active + LEAD)

    def auctions(self) -> Ints:
        """Numbers of auctions that are likely to be open, or to come."""
        latest = AUCTIONS.latest(self.event)
        oldest = np.maximum(latest - OPEN_AUCTIONS, 0)
        return oldest + self.below(latest - oldest + 1 + LEAD)

    def prices(self) -> Ints:
        """In cents."""
        return np.rint(10.0 ** (self._rng.random(len(self.number)) * 6) * 100).astype(np.int64)

    def any_of(self, names: Sequence[str]) -> pa.Array:
        return pa.array(names).take(pa.array(self.below(len(names))))

    def words(self, letters_max: int) -> pa.Array:
        """Letters and spaces, at least 3 and fewer than ``letters_max``."""
        return self.letters(_WORD_LETTERS_MIN + self.below(letters_max - _WORD_LETTERS_MIN))

    def filling(self, taken: int | Ints, average: int) -> pa.Array:
        """What events that take so many bytes lack of the average, give or take a fifth of that."""
        lacking = np.maximum(np.full(len(self.number), average) - taken, 0)
        fifth = np.rint(lacking * 0.2).astype(np.int64)
        return self.letters(lacking - fifth + self.below(2 * fifth))

    def letters(self, lengths: Ints) -> pa.Array:
        """Texts of these lengths."""
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        text = _LETTERS[np.frombuffer(self._rng.bytes(int(ends[-1])), np.uint8)]
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(text))


def _people(draw: Draw) -> dict[str, pa.Array]:
    mailbox = pc.binary_join_element_wise(draw.words(7), draw.words(5), "@")
    texts = {
        "name": pc.binary_join_element_wise(draw.any_of(_FIRST_NAMES), draw.any_of(_LAST_NAMES), " "),
        "email": pc.binary_join_element_wise(mailbox, "com", "."),
        "credit_card": pc.binary_join_element_wise(*(draw.any_of(_FOUR_DIGITS) for _ in range(4)), " "),
        "city": draw.any_of(_CITIES),
        "state": draw.any_of(_STATES),
    }
    return {
        "id": pa.array(FIRST_ID + draw.number),
        **texts,
        "ts": _time(draw.ms),
        "extra": draw.filling(8 + _lengths(texts), PERSON_BYTES),
    }


def _auctions(draw: Draw) -> dict[str, pa.Array]:
    texts = {"item": draw.words(20), "description": draw.words(100)}
    initial_bid = draw.prices()
    horizon_ms = draw.span_ms(OPEN_AUCTIONS * CYCLE_EVENTS // AUCTIONS.share)
    open_ms = 1 + draw.below(np.maximum(2 * horizon_ms, 1))
    return {
        "id": pa.array(FIRST_ID + draw.number),
        **texts,
        "initial_bid": pa.array(initial_bid),
        "reserve": pa.array(initial_bid + draw.prices()),
        "ts": _time(draw.ms),
        "expires": _time(draw.ms + open_ms),
        "seller": pa.array(FIRST_ID + draw.mostly(draw.hot(PEOPLE), draw.people(), HOT_SELLER_ODDS)),
        "category": pa.array(FIRST_CATEGORY + draw.below(CATEGORIES)),
        "extra": draw.filling(48 + _lengths(texts), AUCTION_BYTES),
    }


def _bids(draw: Draw) -> dict[str, pa.Array]:
    hot_channel, other_channel = draw.below(len(HOT_CHANNELS)), len(HOT_CHANNELS) + draw.below(CHANNELS)
    channel = pa.array(draw.mostly(hot_channel, other_channel, HOT_CHANNEL_ODDS))
    names, addresses = _channels()
    return {
        "auction": pa.array(FIRST_ID + draw.mostly(draw.hot(AUCTIONS), draw.auctions(), HOT_AUCTION_ODDS)),
        "bidder": pa.array(FIRST_ID + draw.mostly(draw.hot(PEOPLE) + 1, draw.people(), HOT_BIDDER_ODDS)),
        "price": pa.array(draw.prices()),
        "channel": names.take(channel),
        "url": addresses.take(channel),
        "ts": _time(draw.ms),
        "extra": draw.filling(32, BID_BYTES),
    }


@cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """The names and addresses of all channels, the hot ones first. Nine in ten addresses tell the channel."""
    count = len(HOT_CHANNELS) + CHANNELS
    draw = Draw(np.random.default_rng(0), BIDS, np.arange(count), 1)
    folders = [pc.replace_substring(draw.letters(np.full(count, 5)), " ", "_") for _ in range(3)]
    address = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    number = pa.array(np.arange(count) - len(HOT_CHANNELS)).cast(pa.string())
    told = pc.binary_join_element_wise(address, number, "&channel_id=")
    tells = (draw.below(10) > 0) & (np.arange(count) >= len(HOT_CHANNELS))
    names = [*HOT_CHANNELS, *(f"channel-{channel}" for channel in range(CHANNELS))]
    return pa.array(names), pc.if_else(pa.array(tells), told, address)


def _time(ms: Ints) -> pa.Array:
    return pa.array(ms * 1_000).cast(_TIME)


def _lengths(texts: Mapping[str, pa.Array]) -> Ints:
    lengths: Ints = np.sum([pc.binary_length(text).to_numpy() for text in texts.values()], axis=0, dtype=np.int64)
    return lengths


@dataclass(frozen=True, slots=True)
class EventTable:
    """One of the three tables. columns: draws the columns of some events of the kind, by name."""

    kind: EventKind
    columns: Callable[[Draw], dict[str, pa.Array]]


TABLES: Mapping[str, EventTable] = {
    "person": EventTable(PEOPLE, _people),
    "auction": EventTable(AUCTIONS, _auctions),
    "bid": EventTable(BIDS, _bids),
}
