"""A view's SQL as it was written: parsed, with the place of each part for messages about it."""

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
    """One view's SQL. The offsets that sqlglot keeps in the tree are offsets into ``sql``."""

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
            raise DeclarationError(f"view {self.view!r}: its SQL cannot be read. {error}") from error
        if not tokens:
            raise DeclarationError(f"view {self.view!r}: its SQL is empty.")
        return tokens

    def _unreadable(self, error: ParseError) -> Unreadable:
        for fault in error.errors:
            lines = self.sql.splitlines(keepends=True)[: fault["line"] - 1]
            offset = sum(map(len, lines)) + fault["col"] - len(fault["highlight"])
            return Unreadable(self._message(offset, "the SQL does not parse here", fault["description"] + "."))
        return Unreadable(self._message(None, "the SQL does not parse", str(error)))

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
            return f"view {self.view!r}: {what}. {instead}"
        line = self.sql.count("\n", 0, offset) + 1
        start = self.sql.rfind("\n", 0, offset) + 1
        end = self.sql.find("\n", offset)
        text = self.sql[start : end if end >= 0 else len(self.sql)].rstrip()
        column = offset - start
        caret = "".join("\t" if letter == "\t" else " " for letter in text[:column]) + "^"
        return f"view {self.view!r}, line {line}, column {column + 1}: {what}. {instead}\n{text}\n{caret}"

    def offset(self, node: exp.Expr | None) -> int | None:
        """Where the node's text begins: at the first of its parts whose place is known."""
        return None if node is None else min(_starts(node), default=None)


def _starts(node: exp.Expr) -> Iterator[int]:
    for part in node.walk():
        start = part.meta.get("start")
        if isinstance(start, int):
            yield start
