"""The demo's views: of one table, of two, and of three."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TABLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "flights": ("tailnum",),
    "planes": ("tailnum",),
    "weather": ("origin", "time_hour"),
    "airports": ("faa",),
}
"""The key of each table, by the table's name."""


@dataclass(frozen=True, slots=True)
class DemoView:
    """A view of the demo, its topic, and the keys that are shown."""

    about: str
    sql: str
    key: tuple[str, ...]
    shown: tuple[Any, ...]


_AIRCRAFT = """
    SELECT tailnum, count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean_delay,
           max(arr_delay) AS worst_delay
    FROM flights GROUP BY tailnum"""

_CARRIER_DAYS = """
    SELECT carrier, year, month, day, count(*) AS flights, sum(CASE WHEN dep_delay > 15 THEN 1 ELSE 0 END) AS late
    FROM flights WHERE dep_time IS NOT NULL GROUP BY carrier, year, month, day"""

# The query counts first, then joins: so the join keeps one row for each route, and not each flight.
_ROUTES = """
    SELECT origin, dest, name AS destination, flights, flown, fastest, mean_delay
    FROM (SELECT origin, dest, count(*) AS flights, count(dep_time) AS flown, min(air_time) AS fastest,
                 avg(dep_delay) AS mean_delay
          FROM flights GROUP BY origin, dest)
    LEFT JOIN airports ON dest = faa"""

_MODEL_WEATHER = """
    SELECT model,
           CASE WHEN precip > 0 AND temp <= 33 THEN 'snow' WHEN precip > 0 THEN 'rain' WHEN visib < 3 THEN 'fog'
                WHEN wind_speed > 20 THEN 'wind' ELSE 'fair' END AS conditions,
           count(*) AS flights, count(dep_delay) AS flown, avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
    FROM flights JOIN planes USING (tailnum) JOIN weather USING (origin, time_hour)
    GROUP BY model, conditions"""

VIEWS: Mapping[str, DemoView] = {
    "aircraft": DemoView("each aircraft", _AIRCRAFT, ("tailnum",), ("N14228", "N24211", "N725MQ")),
    "carrier_days": DemoView(
        "delays by carrier and day",
        _CARRIER_DAYS,
        ("carrier", "year", "month", "day"),
        (("UA", 2013, 7, 4), ("B6", 2013, 2, 9), ("DL", 2013, 11, 28)),
    ),
    "routes": DemoView(
        "routes, with the airport's name: flights and airports",
        _ROUTES,
        ("origin", "dest"),
        (("JFK", "LAX"), ("EWR", "SFO"), ("LGA", "ATL")),
    ),
    "model_weather": DemoView(
        "delay by aircraft model and departure weather: flights, planes and weather",
        _MODEL_WEATHER,
        ("model",),
        ("737-824",),
    ),
}
