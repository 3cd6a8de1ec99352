"""A view's SQL as it was written: parsed, with the place of each part for messages about it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from upriver.errors import DeclarationError, UnsupportedSql


class Unreadable(UnsupportedSql):
    """sqlglot cannot parse the SQL; Spark may know better, or say better why not."""


SHOWN_CHARS_MAX = 120
"""Of the line in which a fault is."""

ELSEWHERE = "Compute it in the DataFrame that you give to app.table() instead."
"""What to do about an expression that only Spark itself can evaluate."""


class ViewDialect(Spark):
    """Spark SQL in which sqlglot knows no function by name: a call stays as written, and our own table judges it."""

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.FUNCTION_PARSERS.items()
            if name in {"CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTR", "SUBSTRING", "TRIM"}
        }


@dataclass(frozen=True, slots=True)
class Source:
    """One view's SQL. The offsets that sqlglot keeps in the tree are offsets into ``sql``.

    view: its name, with which messages begin; empty for a query that is no view's.
    """

    view: str
    sql: str

    def parse(self) -> exp.Expr:
        """The one statement. Raises DeclarationError if there is none, Unreadable if it does not parse."""
        try:
            statements = [tree for tree in sqlglot.parse(self.sql, dialect=ViewDialect) if tree is not None]
        except ParseError as error:
            raise self._unreadable(error) from error
        if len(statements) > 1:
            raise self.unsupported(statements[1], "a second statement", "Declare one view per SELECT.")
        return statements[0]

    def tokens(self) -> list[Token]:
        """The words. Raises DeclarationError if there are none, or a quote is not closed."""
        try:
            tokens = ViewDialect().tokenize(self.sql)
        except TokenError as error:
            raise DeclarationError(f"{self._begin('')}the SQL cannot be read. {error}") from error
        if not tokens:
            raise DeclarationError(f"{self._begin('')}the SQL is empty.")
        return tokens

    def _unreadable(self, error: ParseError) -> Unreadable:
        for fault in error.errors:
            lines = self.sql.splitlines(keepends=True)[: fault["line"] - 1]
            offset = sum(map(len, lines)) + fault["col"] - len(fault["highlight"])
            plain = re.sub("<class '.*\\.(.*)'>", r"\1", fault["description"])
            return Unreadable(self._message(offset, "the SQL cannot be read from here on", f"{plain}."))
        return Unreadable(self._message(None, "the SQL cannot be read", str(error)))

    def unsupported(self, node: exp.Expr | int | None, what: str, instead: str) -> UnsupportedSql:
        """The error for a construct that Spark knows and we do not. ``node``: where it stands, or its offset."""
        return UnsupportedSql(self._message(node, f"{what} is not supported", instead))

    def wrong(self, node: exp.Expr | None, what: str, instead: str) -> DeclarationError:
        """The error for a declaration that makes no sense."""
        return DeclarationError(self._message(node, what, instead))

    def keyword(self, word: str) -> int | None:
        """The offset of a clause's first word, outside parentheses if it is found there."""
        found: int | None = None
        depth = 0
        for token in self.tokens():
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
            if not quoted and token.text.upper().split(" ")[0] == word:
                if depth == 0:
                    return int(token.start)
                found = int(token.start) if found is None else found
        return found

    def _message(self, node: exp.Expr | int | None, what: str, instead: str) -> str:
        offset = node if isinstance(node, int) else self.offset(node)
        if offset is None:
            return f"{self._begin('')}{what}. {instead}"
        line = self.sql.count("\n", 0, offset) + 1
        start = self.sql.rfind("\n", 0, offset) + 1
        end = self.sql.find("\n", offset)
        text = self.sql[start : end if end >= 0 else len(self.sql)].rstrip()
        column = offset - start
        left = max(0, column - SHOWN_CHARS_MAX // 2) if len(text) > SHOWN_CHARS_MAX else 0
        shown = text[left : left + SHOWN_CHARS_MAX]
        caret = "".join("\t" if letter == "\t" else " " for letter in text[left:column]) + "^"
        return f"{self._begin(f'line {line}, column {column + 1}')}{what}. {instead}\n{shown}\n{caret}"

    def _begin(self, place: str) -> str:
        parts = [f"view {self.view!r}"] if self.view else []
        parts += [place] if place else []
        return f"{', '.join(parts)}: " if parts else ""

    def offset(self, node: exp.Expr | None) -> int | None:
        """Where the node's text begins: at the first of its parts whose place is known."""
        return None if node is None else min(_starts(node), default=None)


def _starts(node: exp.Expr) -> Iterator[int]:
    for part in node.walk():
        start = part.meta.get("start")
        if isinstance(start, int):
            yield start
