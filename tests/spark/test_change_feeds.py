"""Envelopes of Debezium and change feeds of Delta: the table equals the database that they come from."""

import base64
import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Window
from pyspark.sql import functions as F

from upriver import App
from upriver.errors import DeclarationError, IngestFailed
from upriver.sources import debezium, delta_cdf

pytestmark = pytest.mark.spark

PERSON = "id BIGINT, name STRING, team INT"
TRANSACTIONS = 60
FEED = f"{PERSON}, _change_type STRING, _commit_version BIGINT"

Row = tuple[int, str, int]
Step = tuple[str, Row | None, Row | None]
"""What is done to one row: the operation, and the row before and after."""


def random_transactions(draw: random.Random, database: dict[int, Row]) -> Iterator[list[Step]]:
    """Each has a few steps, and moves keys too. The database has what they leave."""
    for _ in range(TRANSACTIONS):
        steps: list[Step] = []
        for _ in range(draw.randint(1, 4)):
            key = draw.randint(0, 9)
            new = (draw.randint(0, 9), draw.choice("abc"), draw.randint(0, 2))
            before = database.pop(key, None)
            if before is None:
                before, new = None, (key, *new[1:])
                steps.append(("c", None, new))
            elif draw.random() < 0.3:
                steps.append(("d", before, None))
                continue
            else:
                new = (key if new[0] in database else new[0], *new[1:])
                steps.append(("u", before, new))
            database[new[0]] = new
        yield steps


def envelopes(draw: random.Random, transactions: list[list[Step]]) -> list[str | None]:
    """As a topic has them. An update that moves a key comes as one envelope, or as two, of one position."""
    said: list[str | None] = []
    position = 0
    for steps in transactions:
        for op, before, after in steps:
            position += 1
            split = op == "u" and before and after and before[0] != after[0] and draw.random() < 0.5
            for each in [("d", before, None), ("c", None, after)] if split else [(op, before, after)]:
                said.append(envelope(*each, position, is_wrapped=draw.random() < 0.5))
                if each[0] == "d":
                    said.append(None)
    return said


def envelope(op: str, before: Row | None, after: Row | None, position: int, *, is_wrapped: bool) -> str:
    columns = ("id", "name", "team")
    payload = {
        "before": before and dict(zip(columns, before, strict=True)),
        "after": after and dict(zip(columns, after, strict=True)),
        "op": op,
        "source": {"connector": "postgresql", "lsn": position, "ts_ms": 7},
        "ts_ms": 8,
        "transaction": {"id": f"{position}", "total_order": position, "data_collection_order": 1},
    }
    return json.dumps({"schema": {"type": "struct"}, "payload": payload} if is_wrapped else payload)


def feed(transactions: list[list[Step]]) -> list[tuple[Any, ...]]:
    """As Delta has it: of each version, the changes of the whole transaction, in no order."""
    rows: list[tuple[Any, ...]] = []
    for version, steps in enumerate(transactions):
        first, last = dict[int, Row](), dict[int, Row | None]()
        for _, before, after in steps:
            if before:
                first.setdefault(before[0], before) if before[0] not in last else None
                last[before[0]] = None
            if after:
                last[after[0]] = after
        rows += [(*row, "update_preimage", version) for row in first.values()]
        rows += [(*row, "update_postimage", version) for row in last.values() if row]
    return rows


@pytest.mark.parametrize("seed", [1])
def test_tables_equal_the_database(spark: Any, tmp_path: Path, seed: int) -> None:
    """The messages come in several batches, and within a batch in no order."""
    draw, database = random.Random(seed), dict[int, Row]()
    transactions = list(random_transactions(draw, database))
    messages, changes = envelopes(draw, transactions), feed(transactions)
    for part in range(3):
        some = messages[part::3]
        draw.shuffle(some)
        rows = spark.createDataFrame([(value,) for value in some], "value STRING").coalesce(1)
        rows.write.mode("append").parquet(str(tmp_path / "topic"))
    raw = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "topic"))
    draw.shuffle(changes)
    with App(spark, str(tmp_path / "lake"), workers=2) as app:
        app.table("people", **debezium(raw, schema=PERSON, key="id"))
        app.table("copies", **delta_cdf(spark.createDataFrame(changes, FEED), key="id"))
        for table in ("people", "copies"):
            app.view(f"all_{table}", f"SELECT id, name, team FROM {table}", key="id", partial=False)
        app.start(wait=True)
        for table in ("people", "copies"):
            assert {tuple(row) for row in app.read(f"all_{table}").collect()} == set(database.values())


def test_values_are_read_in_their_declared_types(spark: Any) -> None:
    row = {
        "id": 1,
        "day": 19723,
        "at": 1704103200123456,
        "zoned": "2024-01-01T10:00:00.5Z",
        "price": "12.50",
        "exact": base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode(),
    }
    schema = "id BIGINT, day DATE, at TIMESTAMP_NTZ, zoned TIMESTAMP, price DECIMAL(10,2), exact STRING"
    texts = [
        (json.dumps({"op": "c", "before": None, "after": row, "source": {"file": "bin.000017", "pos": 4}}).encode(),)
    ]
    made = debezium(spark.createDataFrame(texts, "value BINARY"), schema=schema, key="id", database="mysql")
    (found,) = made["rows"].collect()
    assert found.day == date(2024, 1, 1)
    assert found.at == datetime(2024, 1, 1, 10, 0, 0, 123456)
    assert found.zoned.astimezone(UTC) == datetime(2024, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)
    assert found.price == Decimal("12.50")
    assert (found._file, found._pos, found._row, found._op) == (17, 4, None, "c")
    assert made["order_by"][:4] == ["_commit", "_file", "_pos", "_row"]


class Columns(NamedTuple):
    """A row's values, as a database with precise decimals has them."""

    whole: Decimal  # DECIMAL(38,0)
    price: Decimal  # DECIMAL(38,9)
    loose: Decimal  # of any scale up to 9
    at: datetime
    nanos: datetime


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    unscaled = st.integers(-(10**38) + 1, 10**38 - 1)
    scale = draw(st.integers(0, 9))
    loose = Decimal(draw(st.integers(-(10**20), 10**20))).scaleb(-scale, Context(prec=38))
    moments = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
    whole, price = (Decimal(draw(unscaled)).scaleb(-places, Context(prec=38)) for places in (0, 9))
    return Columns(whole, price, loose, draw(moments), draw(moments))


def bytes_of(value: Decimal) -> str:
    """As Kafka Connect has a Decimal: the fewest bytes of its unscaled number."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def micros_of(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def precise_envelope(number: int, row: Columns, *, is_wrapped: bool) -> str:
    exponent = row.loose.as_tuple().exponent
    after = {
        "id": number,
        "whole": bytes_of(row.whole),
        "price": bytes_of(row.price),
        "loose": {"scale": -int(exponent), "value": bytes_of(row.loose)},
        "at": micros_of(row.at),
        "nanos": micros_of(row.nanos) * 1000 + number % 1000,
    }
    payload = {"op": "c", "before": None, "after": after, "source": {"lsn": number}}
    kinds = [
        {"field": "price", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9"}},
        {"field": "nanos", "name": "io.debezium.time.NanoTimestamp"},
    ]
    schema = {"type": "struct", "fields": [{"field": "before", "fields": kinds}, {"field": "after", "fields": kinds}]}
    return json.dumps({"schema": schema, "payload": payload} if is_wrapped else payload)


@settings(max_examples=2, phases=[Phase.generate])  # each is a query of Spark: none is made smaller
@given(rows=st.lists(columns(), min_size=20, max_size=40))
def test_precise_decimals_and_times_are_those_of_the_database(spark: Any, rows: list[Columns]) -> None:
    """With a schema in each message, and without: then what is declared counts."""
    decimals = "whole DECIMAL(38,0), price DECIMAL(38,9), loose DECIMAL(38,9)"
    schema = f"id BIGINT, {decimals}, at TIMESTAMP_NTZ, nanos TIMESTAMP_NTZ"
    for is_wrapped in (True, False):
        texts = [(precise_envelope(number, row, is_wrapped=is_wrapped),) for number, row in enumerate(rows)]
        made = debezium(
            spark.createDataFrame(texts, "value STRING"),
            schema=schema,
            key="id",
            time_unit="micros" if is_wrapped else {"nanos": "nanos"},
            decimals="precise",
        )
        found = made["rows"].select("id", *Columns._fields).orderBy("id").collect()
        assert [Columns(*row[1:]) for row in found] == rows


def test_the_schema_in_a_message_says_the_scale_and_the_unit(spark: Any) -> None:
    """Which differ from what is declared; a unit of Kafka Connect's own types, too."""
    kinds = [
        {"field": "price", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
        {"field": "at", "name": "org.apache.kafka.connect.data.Timestamp"},
    ]
    payload = {"op": "c", "after": {"id": 1, "price": bytes_of(Decimal("-12.50")), "at": -1}, "source": {"lsn": 1}}
    text = json.dumps({"schema": {"fields": [{"field": "after", "fields": kinds}]}, "payload": payload})
    raw = spark.createDataFrame([(text,)], "value STRING")
    made = debezium(raw, schema="id BIGINT, price DECIMAL(12,4), at TIMESTAMP_NTZ", key="id", decimals="precise")
    (found,) = made["rows"].collect()
    assert (found.price, found.at) == (Decimal("-12.5000"), datetime(1969, 12, 31, 23, 59, 59, 999000))


@pytest.mark.parametrize(("decimals", "value"), [("precise", "12.50"), ("precise", ""), ("string", "BOI=")])
def test_a_decimal_of_another_mode_stops_the_source(spark: Any, decimals: str, value: str) -> None:
    text = json.dumps({"op": "c", "after": {"id": 1, "price": value}, "source": {"lsn": 1}})
    made = debezium(
        spark.createDataFrame([(text,)], "value STRING"),
        schema="id BIGINT, price DECIMAL(12,2)",
        key="id",
        decimals=decimals,
    )
    with pytest.raises(Exception, match="decimals='string'" if decimals == "precise" else "decimals='precise'"):
        made["rows"].collect()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('{"op": "t", "source": {"lsn": 3}}', "the source table was truncated"),
        ("no json", "is no envelope of the declared schema"),
        ('{"op": "c", "after": {"id": "x"}}', "is no envelope of the declared schema"),
        ('{"op": "d", "before": {"name": "a"}}', "has no value of the key"),
        ('{"op": "c", "after": {"id": 2}} {"op": "c", "after": {"id": 3}}', "is no envelope of the declared schema"),
        ('{"op": "c", "after": {"id": 2}},{"op": "c", "after": {"id": 3}}', "is no envelope of the declared schema"),
        ('{"op": "c", "after": {"id": 2}}]}', "is no envelope of the declared schema"),
        ('[{"op": "c", "after": {"id": 2}}]', "is no envelope of the declared schema"),
        ('{"op": "m", "message": {"prefix": "p"}}', "is no envelope of the declared schema"),
        ('{"status": "BEGIN", "id": "7", "ts_ms": 1}', "is no envelope of the declared schema"),
        ("", "is no envelope of the declared schema"),
        ('{"op": "u", "after": {"id": 2, "name": "__debezium_unavailable_value"}}', "column 'name'.*IDENTITY FULL"),
    ],
)
def test_a_bad_envelope_is_shown_or_left_out(spark: Any, message: str, said: str) -> None:
    good = envelope("c", None, (1, "a", 2), 5, is_wrapped=False)
    raw = spark.createDataFrame([(good,), (message,)], "value STRING")
    with pytest.raises(Exception, match=said):
        debezium(raw, schema=PERSON, key="id")["rows"].collect()
    kept = debezium(raw, schema=PERSON, key="id", on_bad_envelope="skip")["rows"].collect()
    assert [tuple(row)[:3] for row in kept] == [(1, "a", 2)]


def last_rows(spark: Any, changes: list[dict[str, Any]], schema: str, key: str, **more: Any) -> list[tuple[Any, ...]]:
    """What an app's table has after these changes, by their positions, in whatever order they come."""
    texts = [(json.dumps({"before": None, "after": None, **change}),) for change in changes]
    made = debezium(spark.createDataFrame(texts, "value STRING"), schema=schema, key=key, **more)
    newest = Window.partitionBy(*made["primary_key"]).orderBy(*(F.col(each).desc() for each in made["order_by"]))
    last = made["rows"].withColumn("place", F.row_number().over(newest)).where("place = 1")
    columns = [f"`{name.replace('`', '``')}`" for name in made["rows"].columns if not name.startswith("_")]
    return sorted(tuple(row) for row in last.where(f"NOT {made['deletes']}").select(*columns).collect())


def test_changes_have_the_order_of_the_database(spark: Any) -> None:
    a, b = {"id": 1, "s": "a"}, {"id": 1, "s": "b"}
    old = {"file": "old.000100", "pos": 9, "gtid": "A:5", "ts_ms": 1000}
    new = {"file": "new.000003", "pos": 4, "gtid": "B:1", "ts_ms": 1500, "ts_us": 1500001}
    snapshot = {"file": "new.000009", "pos": 4, "ts_ms": 9000}
    by_number = [{**old, "gtid": "0-1-9"}, {**new, "gtid": "0-2-10", "ts_us": 1}]
    one_scn = [{"scn": "7", "rs_id": f"0x0009.{place}.0010", "ssn": 1} for place in ("000000a", "000000b", "00000010")]
    in_one = [{"op": "c", "after": a}, {"op": "u", "before": a, "after": b}, {"op": "d", "before": b}]
    by_position = [{"scn": "7", "lcr_position": f"0000{place}"} for place in "ABC"]
    cases: list[tuple[str, list[dict[str, Any]], list[tuple[Any, ...]]]] = [
        ("mysql", [{"op": "c", "after": a, "source": old}, {"op": "u", "after": b, "source": new}], [(1, "b")]),
        ("mysql", [{"op": "r", "after": a, "source": snapshot}, {"op": "u", "after": b, "source": new}], [(1, "b")]),
        ("mariadb", [{"op": "c", "after": a, "source": by_number[0]}, {"op": "u", "after": b, "source": by_number[1]}],
         [(1, "b")]),
        ("oracle", [{**change, "source": at} for change, at in zip(in_one, one_scn, strict=True)], []),
        ("oracle", [{**change, "source": at} for change, at in zip(in_one[:2], one_scn, strict=False)], [(1, "b")]),
        ("oracle", [{**change, "source": at} for change, at in zip(in_one, by_position, strict=True)], []),
    ]  # fmt: skip
    for database, changes, rows in cases:
        assert last_rows(spark, changes, "id INT, s STRING", "id", database=database) == rows, (database, changes)
    with pytest.raises(Exception, match=r"provide\.transaction\.metadata=true"):
        last_rows(spark, [{"op": "c", "after": a, "source": {"scn": "7"}}], "id INT, s STRING", "id", database="oracle")


def test_whole_rows_tell_apart_two_rows_that_have_one_key_amid_a_transaction(spark: Any) -> None:
    """UPDATE t SET id = id + 1, with a key that is checked at the end."""
    first = [{"op": "c", "after": {"id": i, "s": s}, "source": {"lsn": i}} for i, s in ((1, "a"), (2, None), (3, "c"))]
    moves = list[dict[str, Any]]()
    for lsn, (i, s) in enumerate(((1, "a"), (2, None), (3, "c")), 100):
        moves += [
            {"op": "d", "before": {"id": i, "s": s}, "source": {"lsn": lsn}},
            {"op": "c", "after": {"id": i + 1, "s": s}, "source": {"lsn": lsn}},
        ]
    ends = [{"op": "d", "before": {"id": 4, "s": "c"}, "source": {"lsn": 200}}]
    ends.append({"op": "u", "before": {"id": 3, "s": None}, "after": {"id": 3, "s": "x"}, "source": {"lsn": 201}})
    rows = last_rows(spark, [*first, *moves, *ends], "id INT, s STRING", "id", whole_rows=True)
    assert rows == [(2, "a"), (3, "x")]
    with pytest.raises(Exception, match="has no row before it"):
        last_rows(spark, [{**ends[1], "before": None}], "id INT, s STRING", "id", whole_rows=True)


def test_a_value_that_is_not_in_the_log_is_never_stored(spark: Any) -> None:
    """In each form that the connector has for it, and under a name that the connector was given."""
    gone = "__debezium_unavailable_value"
    encoded = base64.b64encode(gone.encode()).decode()
    forms: list[tuple[str, Any, str]] = [
        ("STRING", gone, gone),
        ("STRING", gone.encode().hex(), gone),
        ("STRING", json.dumps({gone: gone}, separators=(",", ":")), gone),
        ("BINARY", encoded, gone),
        ("DECIMAL(12,2)", encoded, gone),
        ("DECIMAL(12,2)", {"scale": 0, "value": encoded}, gone),
        ("ARRAY<STRING>", [gone], gone),
        ("ARRAY<BIGINT>", list(gone.encode()), gone),
        ("MAP<STRING, STRING>", {gone: gone}, gone),
        ("STRUCT<wkb: BINARY, srid: INT>", {"wkb": encoded, "srid": None}, gone),
        ("STRING", "other", "other"),
    ]
    for kind, value, name in forms:
        change = {"op": "u", "after": {"id": 1, "v`w": value}, "source": {"lsn": 1}}
        schema = f"id INT, `v``w` {kind}"
        with pytest.raises(Exception, match=r"column 'v`w', which the database has not logged.*REPLICA IDENTITY FULL"):
            last_rows(spark, [change], schema, "id", decimals="precise", unavailable=name)
        assert last_rows(spark, [{**change, "after": {"id": 1}}], schema, "id") == [(1, None)]


def test_a_truncate_stops_the_source_with_the_way_out(spark: Any, tmp_path: Path) -> None:
    raw = spark.createDataFrame([('{"op": "t"}',)], "value STRING")
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("people", **debezium(raw, schema=PERSON, key="id"))
        app.view("all", "SELECT id, name FROM people", key="id", partial=False)
        app.start()
        with pytest.raises(IngestFailed, match=r"was truncated.*on_bad_envelope='skip'"):
            app.wait()


def test_wrong_arguments_are_refused(spark: Any) -> None:
    raw = spark.createDataFrame([("{}",)], "value STRING")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": "nothing"}, "key names 'nothing'; the schema's columns are id, name, team"),
        ({"schema": "id NOTHING"}, "is no list of columns"),
        ({"schema": "id INT, _lsn INT"}, "column '_lsn', which is added"),
        ({"database": "db2"}, "database='db2': give one of 'postgresql'"),
        ({"value": "v"}, "has no column 'v' but value"),
        ({"time_unit": "s"}, "time_unit='s'"),
        ({"time_unit": {"team": "millis"}}, "time_unit names 'team'; columns of times are: none"),
        ({"schema": "id INT, at TIMESTAMP", "time_unit": {"at": "s"}}, "time_unit of 'at'='s': give one of 'millis'"),
        ({"decimals": "double"}, "decimals='double': give one of 'string', 'precise'"),
    ]
    for more, said in wrong:
        with pytest.raises(DeclarationError, match=said):
            debezium(raw, **{"schema": PERSON, "key": "id", **more})
    with pytest.raises(DeclarationError, match="readChangeFeed"):
        delta_cdf(raw, key="id")
