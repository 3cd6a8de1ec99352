"""NEXMark's queries 0 to 8 in Spark SQL over the tables ``person``, ``auction`` and ``bid``.

Each says what the published one says, and leaves nothing open: where rows are put in an order, rows that tie give the
same answer. What Spark Structured Streaming can do about each was found out by asking Spark 4.3, and a test asks again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

EVENT_TIME = "ts"
"""The column of every table that says when its events happened. They come in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySource:
    """What a query takes of a table: both sides are given just that. key: the column that the table is kept by.
    columns: those that are read. where: of which rows, if not of all."""

    key: str
    columns: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How Spark runs the query as a stream, in append mode.

    sql: the query, if it has to be put differently. window_s: a row comes when the watermark is so many seconds past
    its ``starttime``; ``None`` if rows come at once, without watermarks.
    """

    sql: str | None = None
    window_s: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is nothing to measure."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """sources: by table. key: of the view. is_stateful: whether more than the row at hand is needed. times: how many
    times the events that are asked for it is given, so that all queries read about as many rows. longer: how many
    times as many files as are asked for, of as many rows each, it is given, for the warm-up and in all."""

    about: str
    sources: Mapping[str, QuerySource]
    sql: str
    key: tuple[str, ...]
    is_stateful: bool = True
    times: int = 1
    longer: int = 1
    streaming: Streaming | Refused


_TIMES_WITHOUT_BIDS = 12
"""Of 50 events 46 are bids and 4 are not."""

_BIDS = QuerySource(key="auction", columns=("auction", "price", "ts"))

_COUNTS = """\
SELECT auction, window.start AS starttime, count(*) AS num
FROM bid GROUP BY auction, window(ts, '10 seconds', '2 seconds')"""

_COUNTS_STREAMING = """\
SELECT auction, window AS period, count(*) AS num
FROM bid GROUP BY auction, window(ts, '10 seconds', '2 seconds')"""

QUERIES: Mapping[str, Query] = {
    "q0": Query(
        about="every bid as it is",
        sources={"bid": QuerySource(key="auction", columns=("auction", "bidder", "price", "ts", "extra"))},
        sql="SELECT auction, bidder, price, ts, extra FROM bid",
        key=("auction",),
        is_stateful=False,
        streaming=Streaming(),
    ),
    "q1": Query(
        about="prices in euros",
        sources={"bid": QuerySource(key="auction", columns=("auction", "bidder", "price", "ts", "extra"))},
        sql="SELECT auction, bidder, 0.908 * price AS price, ts, extra FROM bid",
        key=("auction",),
        is_stateful=False,
        streaming=Streaming(),
    ),
    "q2": Query(
        about="bids on some auctions",
        sources={"bid": QuerySource(key="auction", columns=("auction", "price"))},
        sql="SELECT auction, price FROM bid WHERE auction % 123 = 0",
        key=("auction",),
        is_stateful=False,
        streaming=Streaming(),
    ),
    "q3": Query(
        about="sellers in three states, in one category",
        sources={
            "person": QuerySource(
                key="id", columns=("id", "name", "city", "state"), where="state IN ('OR', 'ID', 'CA')"
            ),
            "auction": QuerySource(key="seller", columns=("id", "seller", "category"), where="category = 10"),
        },
        sql="""\
SELECT p.name, p.city, p.state, a.id
FROM auction AS a JOIN person AS p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')""",
        key=("id",),
        times=_TIMES_WITHOUT_BIDS,
        longer=2,  # its filters leave few rows of each file
        streaming=Streaming(),
    ),
    "q4": Query(
        about="the average of the winning bids in each category",
        sources={
            "auction": QuerySource(key="id", columns=("id", "category", "ts", "expires")),
            "bid": _BIDS,
        },
        sql="""\
SELECT category, avg(final) AS price
FROM (
  SELECT a.id, a.category, max(b.price) AS final
  FROM auction AS a JOIN bid AS b ON a.id = b.auction
  WHERE b.ts BETWEEN a.ts AND a.expires
  GROUP BY a.id, a.category
) AS won
GROUP BY category""",
        key=("category",),
        streaming=Refused(
            "an average of maxima that still change: append mode refuses aggregations without a watermark on what they "
            "are grouped by, complete mode refuses the join, and update mode refuses aggregations of aggregations"
        ),
    ),
    "q5": Query(
        about="the auctions with most bids of each 10 seconds, every 2 seconds",
        sources={"bid": QuerySource(key="auction", columns=("auction", "ts"))},
        sql=f"""\
SELECT c.starttime, c.auction, c.num
FROM ({_COUNTS}) AS c
JOIN (SELECT starttime, max(num) AS most FROM ({_COUNTS}) AS n GROUP BY starttime) AS m
ON c.starttime = m.starttime AND c.num = m.most""",
        key=("starttime",),
        streaming=Streaming(
            # Only the window as a whole carries the watermark from one aggregation to the next.
            sql=f"""\
SELECT c.period.start AS starttime, c.auction, c.num
FROM ({_COUNTS_STREAMING}) AS c
JOIN (SELECT period, max(num) AS most FROM ({_COUNTS_STREAMING}) AS n GROUP BY period) AS m
ON c.period = m.period AND c.num = m.most""",
            window_s=10,
        ),
    ),
    "q6": Query(
        about="the average price of each seller's last 10 auctions",
        sources={
            "auction": QuerySource(key="id", columns=("id", "seller", "ts", "expires")),
            "bid": _BIDS,
        },
        sql="""\
SELECT seller, avg(price) AS price
FROM (
  SELECT seller, price, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY ts DESC, id DESC) AS latest
  FROM (
    SELECT a.id, a.seller, b.price, b.ts, ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
    FROM auction AS a JOIN bid AS b ON a.id = b.auction
    WHERE b.ts BETWEEN a.ts AND a.expires
  ) AS offers
  WHERE place <= 1
) AS won
WHERE latest <= 10
GROUP BY seller""",
        key=("seller",),
        streaming=Refused("ROW_NUMBER() is refused on a stream: windows there are of time only"),
    ),
    "q7": Query(
        about="the highest bids of each 10 seconds",
        # By price, on which the bids are joined: kept by another key they would be written twice.
        sources={"bid": QuerySource(key="price", columns=("auction", "bidder", "price", "ts", "extra"))},
        sql="""\
SELECT m.starttime, b.auction, b.bidder, b.price, b.ts, b.extra
FROM bid AS b
JOIN (
  SELECT window.start AS starttime, window.end AS endtime, max(price) AS highest
  FROM bid GROUP BY window(ts, '10 seconds')
) AS m
ON b.price = m.highest
WHERE b.ts >= m.starttime AND b.ts < m.endtime""",
        key=("starttime",),
        streaming=Streaming(window_s=10),
    ),
    "q8": Query(
        about="people that registered and opened an auction within the same 10 seconds",
        sources={
            "person": QuerySource(key="id", columns=("id", "name", "ts")),
            "auction": QuerySource(key="seller", columns=("seller", "ts")),
        },
        sql="""\
SELECT p.id, p.name, p.starttime
FROM (
  SELECT id, name, window.start AS starttime FROM person GROUP BY id, name, window(ts, '10 seconds')
) AS p
JOIN (
  SELECT seller, window.start AS starttime FROM auction GROUP BY seller, window(ts, '10 seconds')
) AS a
ON p.id = a.seller AND p.starttime = a.starttime""",
        key=("id",),
        times=_TIMES_WITHOUT_BIDS,
        streaming=Streaming(window_s=10),
    ),
}
