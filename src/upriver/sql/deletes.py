"""What deletes a row of an upsert table: a condition in Spark SQL, translated as the WHERE of a view is."""

import re
from dataclasses import replace

from sqlglot.tokenizer_core import TokenType

from upriver.errors import DeclarationError, UserError
from upriver.plan.algebra import Relation
from upriver.plan.ops import Filter, Project, Scan
from upriver.plan.plan import TableSpec
from upriver.plan.sql_source import Source
from upriver.sql.sql import CompiledView, Typer, compile_view

_VIEW = "deletes"


def deletion(sql: str, table: TableSpec, typer: Typer) -> str:
    """The DuckDB predicate that says of a version of a row what ``sql`` says in Spark.

    typer: knows the table. Raises UnsupportedSql, DeclarationError with the place in ``sql``.
    """
    column, name = table.key[0].replace("`", "``"), f"`{table.name}`"
    query = f"SELECT `{column}` FROM {name} AS {name} WHERE (\n{sql}\n)"  # without AS, WHERE (x) is an alias to Spark
    plain = replace(table, primary_key=(), deletes=None)  # all versions are rows to be asked
    try:
        _check_closed(sql)
        return _predicate(compile_view(_VIEW, query, {table.name: plain}, {}, typer))
    except UserError as error:
        words = str(error).removeprefix(f"view {_VIEW!r}").lstrip(":, ")
        in_its_lines = re.sub(r"\bline (\d+)", lambda match: f"line {int(match[1]) - 1}", words)
        raise type(error)(f"table {table.name!r}, deletes: {in_its_lines}") from error


def _predicate(view: CompiledView) -> str:
    """What a query of one table filters by. Raises UnsupportedSql if it asks for more than the row."""
    match view.relation:
        case Relation(op=Project(), inputs=(Relation(op=Filter(predicate), inputs=(Relation(op=Scan()),)),)):
            return predicate
        case relation:
            place = next((below.place for below in relation.inputs), None)
            raise view.source.unsupported(place, "a condition on other rows", "Ask for the columns of the row alone.")


def _check_closed(sql: str) -> None:
    """Refuse what would not stay between the parentheses that it is put in."""
    depth = 0
    for token in Source("", sql).tokens():
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth < 0 or token.token_type == TokenType.SEMICOLON:
            raise DeclarationError(f"{sql!r} is not one condition: look at {token.text!r}")
