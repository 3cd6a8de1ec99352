"""Flight SQL: the messages of its drivers, sent by a plain client of Arrow Flight."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from doors_kit import ROUTES, TOTALS, KeptRows

from upriver.client.scans import ScanReader
from upriver.doors.flight.protobuf import FieldValue, ProtobufMessage, encoded, unwrapped, wrapped
from upriver.doors.flight.server import FlightDoor
from upriver.doors.flight.sql import PACKAGE
from upriver.doors.flight.sql_statements import PARAMETER_BYTES_MAX, FlightStatement
from upriver.doors.queries import QUERY_CHARS_MAX
from upriver.doors.query_program import QUERY_ROWS_MAX
from upriver.errors import RowError
from upriver.net.server import Listen

TOKEN = "s3cret-t0ken"
BEARER = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + TOKEN.encode())])
ROWS = KeptRows()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    door = FlightDoor(ROWS, lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    with flight.FlightClient(f"grpc://{door.address}") as opened:
        yield opened
    door.close()


def message(name: str, *fields: tuple[int, FieldValue]) -> bytes:
    return wrapped(PACKAGE + name, encoded(fields))


def command(name: str, *fields: tuple[int, FieldValue]) -> Any:
    return flight.FlightDescriptor.for_command(message(name, *fields))


def asked(client: Any, name: str, *fields: tuple[int, FieldValue]) -> pa.Table:
    """The rows of a command; the schemas of all three calls are the same."""
    info = client.get_flight_info(command(name, *fields), BEARER)
    (endpoint,) = info.endpoints
    found = client.do_get(endpoint.ticket, BEARER).read_all()
    assert found.schema == info.schema == client.get_schema(command(name, *fields), BEARER).schema
    return found


def prepare(client: Any, query: str) -> ProtobufMessage:
    action = flight.Action(
        "CreatePreparedStatement", message("ActionCreatePreparedStatementRequest", (1, query.encode()))
    )
    (result,) = client.do_action(action, BEARER)
    name, created = unwrapped(result.body.to_pybytes())
    assert name == f"{PACKAGE}ActionCreatePreparedStatementResult"
    return created


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def bind(client: Any, handle: bytes, parameters: pa.Table) -> bytes:
    writer, reader = client.do_put(command("CommandPreparedStatementQuery", (1, handle)), parameters.schema, BEARER)
    with writer:
        writer.write_table(parameters)
        writer.done_writing()
        return ProtobufMessage.of(reader.read().to_pybytes()).data(1)


def run(client: Any, query: str, **parameters: pa.Array) -> list[dict[str, Any]]:
    ROWS.read.clear()
    bound = bind(client, prepare(client, query).data(1), pa.table(parameters))
    rows: list[dict[str, Any]] = asked(client, "CommandPreparedStatementQuery", (1, bound)).to_pylist()
    return rows


def test_the_rows_of_a_function_are_no_view(client: Any) -> None:
    assert asked(client, "CommandStatementQuery", (1, b"SELECT * FROM range(3)"))["range"].to_pylist() == [0, 1, 2]


def test_a_statement_is_described_and_run(client: Any) -> None:
    ROWS.read.clear()
    found = asked(client, "CommandStatementQuery", (1, b"SELECT n, total FROM totals WHERE customer = 'ada'"))
    assert found.schema == pa.schema([("n", pa.int64()), ("total", pa.decimal128(10, 2))])
    assert found["n"].to_pylist() == [2]
    assert ROWS.read == {"totals": {("ada",)}}


def test_a_prepared_statement_tells_its_schemas_and_runs(client: Any) -> None:
    created = prepare(client, "SELECT n, ? AS x FROM totals WHERE customer = ? AND total > ? AND n = ANY(?)")
    assert schema_of(created.data(2)).names == ["n", "x"]
    types = [pa.string(), pa.string(), pa.decimal128(10, 2), pa.list_(pa.int64())]
    assert schema_of(created.data(3)).types == types
    plain = prepare(client, "SELECT count(*) AS count FROM totals").data(1)
    assert asked(client, "CommandPreparedStatementQuery", (1, plain)).to_pylist() == [{"count": 4}]
    close = flight.Action("ClosePreparedStatement", message("ActionClosePreparedStatementRequest", (1, plain)))
    assert list(client.do_action(close, BEARER)) == []


@pytest.mark.parametrize(
    ("query", "value", "names", "keys"),
    [
        ("SELECT customer FROM totals WHERE customer = ?", pa.array(["bob"]), ["bob"], {("bob",)}),
        ("SELECT customer FROM totals WHERE customer = $1", pa.array(["bob"]).dictionary_encode(), ["bob"], {("bob",)}),
        ("SELECT customer FROM totals WHERE customer = ANY(?)", pa.array([["bob", "ada"]]), ["ada", "bob"], None),
        ("SELECT customer FROM totals WHERE customer = ?", pa.array([None]), [], {(None,)}),
        ("SELECT customer FROM totals WHERE n = ? -- why?", pa.array([1], pa.uint8()), ["bob"], None),
        ("SELECT customer FROM totals WHERE n = ?", pa.array(["1"], pa.large_string()), ["bob"], None),
        ("SELECT customer FROM totals WHERE n < ? ORDER BY n", pa.array([1.5]), ["eve", "bob"], None),
        ("SELECT customer FROM totals WHERE n + ? = 3", pa.array([2]), ["bob"], None),
        ("SELECT customer FROM totals ORDER BY n LIMIT ?", pa.array([1]), ["eve"], None),
        ("SELECT customer || '?' AS customer FROM totals WHERE total > ?", pa.array([17.6]), ["bob?"], None),
    ],
)
def test_a_parameter_has_the_type_of_its_column_or_its_own(
    client: Any, query: str, value: pa.Array, names: list[str], keys: set[tuple[Any, ...]] | None
) -> None:
    assert [row["customer"] for row in run(client, query, a=value)] == names
    assert keys is None or ROWS.read == {"totals": keys}


def test_times_are_bound_in_the_views_zone(client: Any) -> None:
    query = "SELECT dest FROM Routes WHERE at = ?"
    instant = ROUTES["at"].combine_chunks().slice(1, 1)
    assert run(client, query, a=instant) == [{"dest": 2}]
    assert run(client, query, a=instant.cast(pa.timestamp("ns", "UTC"))) == [{"dest": 2}]
    assert run(client, query, a=pa.array(["2024-01-02 13:00:00"])) == [{"dest": 2}]
    assert run(client, query, a=pa.array(["2024-01-02 13:00:00"]).cast(pa.timestamp("s"))) == [{"dest": 2}]


def test_the_catalog_has_the_views_with_their_columns_and_keys(client: Any) -> None:
    assert asked(client, "CommandGetCatalogs").to_pylist() == [{"catalog_name": "upriver"}]
    assert asked(client, "CommandGetDbSchemas").to_pylist() == [{"catalog_name": "upriver", "db_schema_name": "public"}]
    assert asked(client, "CommandGetDbSchemas", (1, b"other")).num_rows == 0
    assert asked(client, "CommandGetTableTypes").to_pylist() == [{"table_type": "VIEW"}]
    assert asked(client, "CommandGetTables").column("table_name").to_pylist() == ["Routes", "everything", "totals"]
    described = asked(client, "CommandGetTables", (3, b"t_ta%"), (4, b"VIEW"), (5, 1))
    assert described["table_name"].to_pylist() == ["totals"]
    schema = schema_of(described["table_schema"][0].as_py())
    assert schema == TOTALS.schema
    assert schema.field("customer").metadata[b"ARROW:FLIGHT:SQL:REMARKS"] == b"column 1 of 1 of the key"
    assert schema.field("n").metadata is None


@pytest.mark.parametrize(
    ("pattern", "found"),
    [(b"%", 3), (b"", 0), (b"total", 0), (b"%O%", 0), (b"*", 0), (b"[t]otals", 0), (b"%" * 900, 3)],
)
def test_a_pattern_knows_only_percent_and_underscore(client: Any, pattern: bytes, found: int) -> None:
    assert asked(client, "CommandGetTables", (3, pattern)).num_rows == found


def test_a_view_s_key_is_no_primary_key_and_none_is_foreign(client: Any) -> None:
    assert asked(client, "CommandGetPrimaryKeys", (3, b"totals")).num_rows == 0
    for name in ("CommandGetExportedKeys", "CommandGetImportedKeys", "CommandGetCrossReference"):
        assert asked(client, name, (3, b"totals")).num_rows == 0


def test_the_server_says_that_it_only_reads(client: Any) -> None:
    info = asked(client, "CommandGetSqlInfo", (1, 0), (1, bytes([3, 8])), (1, 9_999))
    values = dict(zip(info["info_name"].to_pylist(), info["value"].to_pylist(), strict=True))
    assert values == {0: "Upriver", 3: True, 8: 0}
    assert asked(client, "CommandGetSqlInfo").num_rows > 40


def refusal(error: type[Exception], said: str, call: Callable[[], Any]) -> None:
    """The error of a call is one line that tells nothing of the server's files."""
    with pytest.raises(error, match=said) as caught:
        call()
    assert "Traceback" not in str(caught.value)
    assert ".py" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["CommandStatementSubstraitPlan", "CommandGetXdbcTypeInfo", "CommandStatementUpdate", "TicketStatementQuery"],
)
def test_other_commands_are_unimplemented(client: Any, name: str) -> None:
    said = f"UnsupportedSql: {name}: this server of Flight SQL only reads"
    refusal(pa.ArrowNotImplementedError, said, lambda: client.get_flight_info(command(name), BEARER))
    refusal(pa.ArrowNotImplementedError, said, lambda: client.get_schema(command(name), BEARER))


@pytest.mark.parametrize("name", ["CommandStatementUpdate", "CommandPreparedStatementUpdate", "CommandStatementIngest"])
def test_writes_are_unimplemented(client: Any, name: str) -> None:
    def put() -> None:
        writer, reader = client.do_put(command(name, (1, b"DELETE FROM totals")), TOTALS.schema, BEARER)
        with writer:
            writer.done_writing()
            reader.read()

    refusal(pa.ArrowNotImplementedError, f"{name}: this server of Flight SQL only reads", put)


@pytest.mark.parametrize("name", ["BeginTransaction", "EndTransaction", "CreatePreparedSubstraitPlan", "CancelQuery"])
def test_other_actions_are_unimplemented(client: Any, name: str) -> None:
    call = lambda: list(client.do_action(flight.Action(name, b""), BEARER))  # noqa: E731
    refusal(pa.ArrowNotImplementedError, f"{name}: this server of Flight SQL only reads", call)


def test_a_transaction_is_unimplemented(client: Any) -> None:
    in_one = command("CommandStatementQuery", (1, b"SELECT 1"), (2, b"transaction"))
    refusal(pa.ArrowNotImplementedError, "every query reads", lambda: client.get_flight_info(in_one, BEARER))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM totals", "UnsupportedSql: DELETE: views are only read here"),
        ("SELECT nothing FROM totals", "UnsupportedSql: .*nothing"),
        ("SELECT * FROM nothing", "UnknownView: no view 'nothing'"),
        ("SELECT 1; SELECT 2", "UnsupportedSql: a query is one SELECT"),
        ("SELECT ?, $1", "UnsupportedSql: the query has parameters as . and as .1"),
        ("SELECT $2000", "UnsupportedSql: a statement has at most 1,000 parameters"),
        ("SELECT * FROM read_csv('/etc/passwd')", "UnsupportedSql: .* a query reads views"),
        ("", "UnsupportedSql: a query is one SELECT"),
        ("x" * (QUERY_CHARS_MAX + 1), "UnsupportedSql: a query of 1,048,577 characters"),
    ],
)
def test_a_wrong_query_is_an_invalid_argument(client: Any, query: str, said: str) -> None:
    asked_for = command("CommandStatementQuery", (1, query.encode()))
    refusal(pa.ArrowInvalid, said, lambda: client.get_flight_info(asked_for, BEARER))
    refusal(pa.ArrowInvalid, said, lambda: prepare(client, query))
    ticket = message("TicketStatementQuery", (1, encoded([(1, query.encode())])))
    refusal(pa.ArrowInvalid, said, lambda: client.do_get(flight.Ticket(ticket), BEARER).read_all())


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (pa.table({"a": ["x", "y"]}), "2 rows of parameters are bound"),
        (pa.table({"a": pa.array([], pa.string())}), "0 rows of parameters are bound"),
        (pa.table({"a": ["x"], "b": ["y"]}), "2 parameters are bound, and the query has 1"),
        (pa.table({"a": pa.array([1], pa.duration("s"))}), "parameter 1 is of type duration"),
        (pa.table({"a": pa.array([{"b": 1}])}), "parameter 1 is of type struct"),
        (pa.table({"a": pa.array(["x" * PARAMETER_BYTES_MAX])}), "more than 1 MiB, or 16 batches"),
        (pa.table({"a": pa.array([b"\xff"]).view(pa.string())}), "the parameters are malformed"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(client: Any, parameters: pa.Table, said: str) -> None:
    handle = prepare(client, "SELECT * FROM totals WHERE customer = ?").data(1)
    refusal(pa.ArrowInvalid, said, lambda: bind(client, handle, parameters))


def test_parameters_must_be_bound(client: Any) -> None:
    handle = prepare(client, "SELECT * FROM totals WHERE customer = ?").data(1)
    call = lambda: asked(client, "CommandPreparedStatementQuery", (1, handle))  # noqa: E731
    refusal(pa.ArrowInvalid, "the query has 1 parameters, and none are bound", call)


BOUND = FlightStatement("SELECT ?", pa.record_batch({"a": ["x"]})).to_handle()


@pytest.mark.parametrize(
    "handle",
    [
        *(b"", b"\xff", b"\x0a\x05SEL", encoded([(2, b"x")]), encoded([(1, b"\xff")]), encoded([(1, 7)])),
        *(
            encoded([(1, b"SELECT ?"), (2, b"\x00" * 9)]),
            encoded([(1, b"SELECT ?"), (2, b"\xff\xff\xff\xff\x10\0\0\0")]),
        ),
        *(BOUND[:-30], BOUND[:60] + b"\xff" * 40 + BOUND[100:]),
    ],
)
def test_a_forged_handle_is_one_clear_error(client: Any, handle: bytes) -> None:
    ticket = flight.Ticket(message("TicketStatementQuery", (1, handle)))
    refusal(pa.ArrowInvalid, "DeclarationError|UnsupportedSql", lambda: client.do_get(ticket, BEARER).read_all())


@dataclass
class LargeRows(KeptRows):
    """A view with more rows than a query takes, one that fails while it is read, and one that is refused then."""

    tables: Mapping[str, pa.Table] = field(
        default_factory=lambda: {
            "large": pa.table({"n": pa.array(range(QUERY_ROWS_MAX + 1), pa.int64())}),
            "refused": TOTALS,
            "broken": TOTALS,
        }
    )
    keys: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"large": ("n",), "refused": ("customer",), "broken": ("customer",)}
    )

    def scan(self, view: str) -> ScanReader:
        table = self.tables[view]
        return ScanReader(table.schema, 7, (), iter(table.to_batches()) if view == "large" else self._failing(view))

    def _failing(self, view: str) -> Iterator[pa.RecordBatch]:
        yield TOTALS.to_batches()[0]
        raise RowError("no such value") if view == "refused" else ValueError("/secret/path.py")


@pytest.fixture(scope="module")
def large() -> Iterator[Any]:
    door = FlightDoor(LargeRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    with flight.FlightClient(f"grpc://{door.address}") as opened:
        yield opened
    door.close()


def test_all_rows_of_a_view_are_streamed_and_may_be_more_than_a_query_takes(large: Any) -> None:
    found = asked(large, "CommandStatementQuery", (1, b'SELECT * FROM public."large"'))
    assert found["n"].to_pylist() == list(range(QUERY_ROWS_MAX + 1))
    for query in (b"SELECT n FROM large", b"SELECT DISTINCT * FROM large", b"SELECT * FROM large ORDER BY n"):
        refusal(
            pa.ArrowInvalid,
            "DeclarationError: .* more than 1,000,000 rows",
            partial(asked, large, "CommandStatementQuery", (1, query)),
        )


def test_the_one_row_of_a_view_without_key_is_looked_up(client: Any) -> None:
    ROWS.read.clear()
    assert asked(client, "CommandStatementQuery", (1, b"SELECT * FROM everything")).num_rows == 2
    assert ROWS.read == {"everything": {(0,)}}


def test_a_failure_within_a_stream_is_one_line(large: Any) -> None:
    for view, error, said in (
        ("refused", pa.ArrowInvalid, "RowError: no such value"),
        ("broken", flight.FlightInternalError, "ValueError: a fault of Upriver"),
    ):
        query = (1, f"SELECT * FROM {view}".encode())
        refusal(error, said, partial(asked, large, "CommandStatementQuery", query))


def test_nothing_is_told_without_a_token(client: Any) -> None:
    for call in (
        lambda: client.get_flight_info(command("CommandGetTables")),
        lambda: client.do_get(flight.Ticket(message("CommandGetTables"))).read_all(),
        lambda: list(client.do_action(flight.Action("CreatePreparedStatement", b""))),
    ):
        refusal(flight.FlightUnauthenticatedError, "app's token", call)
