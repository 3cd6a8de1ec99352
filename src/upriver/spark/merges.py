"""The SQL by which a batch of changes is applied to a table: text in, text out.

A view may have equal rows, so a table that equals it is a multiset. Two statements keep it one: a query for the rows
that the keys of a batch have after it, and a MERGE that replaces all rows of these keys by them. The MERGE is the same
for each format. The queries differ in what makes a repeated batch harmless:

``rows_by_count``: the rows of the table, plus those that the batch adds, minus those that it removes. A batch must be
applied exactly once, so this is for a format that skips a transaction which it has had (Delta).

``rows_by_last_state``: the newest row of each key. Applying a batch again changes nothing. A view with several rows for
one key is refused.
"""

from collections.abc import Sequence

from upriver.errors import DeclarationError
from upriver.spark.runs import quoted
from upriver.state.changes import CHANGE_TYPE, COMMIT_VERSION

ACTION = "upriver action"
"""The column that says what the MERGE does with a row: ``delete`` all rows of its key, or ``insert`` it."""
_ADDS = f"`{CHANGE_TYPE}` IN ('insert', 'update_postimage')"
_COUNT, _PLACE = "`upriver count`", "`upriver place`"


def listed(names: Sequence[str], prefix: str = "") -> str:
    """Names in SQL, with commas between. prefix: before each, such as ``t.``."""
    return ", ".join(prefix + quoted(name) for name in names)


def table_in_sql(table: str, format: str) -> str:
    """A table in SQL. table: its name, with dots between the quoted or plain parts; or its path, which has a slash.

    Raises DeclarationError for a path of a format whose tables have names only.
    """
    if "/" not in table or "`" in table:
        return table
    if format != "delta":
        raise DeclarationError(f"table {table!r}: a table of {format} has a name: give catalog.database.table")
    return f"delta.{quoted(table)}"


def merge(table: str, rows: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """Replace all rows of some keys, in one commit.

    table: in SQL. rows: the name of a view with the column ``ACTION`` and ``columns``: for each key a row to delete,
    whose other columns do not matter, and the rows to insert.
    """
    action = f"s.{quoted(ACTION)}"
    matches = [f"{action} = 'delete'", *(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)]
    return (
        f"MERGE INTO {table} AS t USING {quoted(rows)} AS s\n"
        f"ON {' AND '.join(matches)}\n"
        f"WHEN MATCHED THEN DELETE\n"
        f"WHEN NOT MATCHED AND {action} = 'insert' THEN INSERT ({listed(columns)}) VALUES ({listed(columns, 's.')})"
    )


def rows_by_count(table: str, changes: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """The rows for :func:`merge`: those of the keys that the changes touch, each as often as it is there after them.

    table: in SQL, or the name of a view. The query fails if a change removes a row that the table does not have.
    """
    every, own = listed(columns), listed(key)
    is_key = " AND ".join(["true", *(f"t.{quoted(name)} <=> k.{quoted(name)}" for name in key)])
    message = f"{table} lacks a row that a change removes: it did not equal the view where these changes begin"
    copies = f"sequence(1L, if({_COUNT} < 0, raise_error({_text(message)}), {_COUNT}))"
    return (
        f"WITH net AS ({net_rows(changes, columns)}),\n"
        f"keys AS (SELECT {own or '1 AS one'} FROM net {_group_by(own)}),\n"
        f"old AS (SELECT {listed(columns, 't.')}, count(*) AS {_COUNT}\n"
        f"  FROM {table} AS t LEFT SEMI JOIN keys AS k ON {is_key} GROUP BY {listed(columns, 't.')}),\n"
        f"new AS (SELECT {every}, sum({_COUNT}) AS {_COUNT}\n"
        f"  FROM (SELECT * FROM old UNION ALL SELECT * FROM net) GROUP BY {every} HAVING sum({_COUNT}) <> 0)\n"
        f"SELECT 'insert' AS {quoted(ACTION)}, {every} FROM new LATERAL VIEW explode({copies}) AS {_PLACE}\n"
        f"UNION ALL SELECT 'delete', {_key_and_nulls(key, columns)} FROM keys"
    )


def rows_by_last_state(changes: str, key: Sequence[str], columns: Sequence[str]) -> str:
    """The rows for :func:`merge`: the newest row of each key that the changes touch, if it has one.

    The query fails if the changes show that a key has several rows.
    """
    every, version = listed(columns), quoted(COMMIT_VERSION)
    by_key = f"PARTITION BY {listed(key) or '1'}"
    added = f"sum(if({_ADDS}, 1, 0)) OVER ({by_key}, {version})"
    net = f"abs(sum(if({_ADDS}, 1, -1)) OVER ({by_key}))"
    newest = f"row_number() OVER ({by_key} ORDER BY {version} DESC, {_ADDS} DESC)"
    message = "a key of the view has several rows: give a key by which each row is alone, or keep a table of Delta"
    check = f"if({_COUNT} > 1, raise_error({_text(message)}), {_PLACE})"
    return (
        f"WITH numbered AS (SELECT {every}, {quoted(CHANGE_TYPE)},\n"
        f"  greatest({added}, {net}) AS {_COUNT}, {newest} AS {_PLACE} FROM {quoted(changes)}),\n"
        f"last AS (SELECT * FROM numbered WHERE {check} = 1)\n"
        f"SELECT 'insert' AS {quoted(ACTION)}, {every} FROM last WHERE {_ADDS}\n"
        f"UNION ALL SELECT 'delete', {_key_and_nulls(key, columns)} FROM last"
    )


def net_rows(changes: str, columns: Sequence[str]) -> str:
    """The distinct rows that are added or removed by the changes as a whole, each with how often it is."""
    every = listed(columns)
    return (
        f"SELECT {every}, sum(if({_ADDS}, 1L, -1L)) AS {_COUNT} FROM {quoted(changes)}\n"
        f"  GROUP BY {every} HAVING sum(if({_ADDS}, 1L, -1L)) <> 0"
    )


def whole_rows(changes: str, columns: Sequence[str]) -> str:
    """The rows of a view that is empty before these changes."""
    message = "a change removes a row that no change has added: read the changes from the start"
    copies = f"sequence(1L, if({_COUNT} < 0, raise_error({_text(message)}), {_COUNT}))"
    return (
        f"WITH net AS ({net_rows(changes, columns)})\n"
        f"SELECT {listed(columns)} FROM net LATERAL VIEW explode({copies}) AS {_PLACE}"
    )


def _group_by(own: str) -> str:
    """Of a query of distinct keys. With no column, there is one key as soon as there is a row."""
    return f"GROUP BY {own}" if own else "LIMIT 1"


def _key_and_nulls(key: Sequence[str], columns: Sequence[str]) -> str:
    return ", ".join(quoted(name) if name in key else "NULL" for name in columns)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
