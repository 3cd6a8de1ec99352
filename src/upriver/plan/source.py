"""A view's SQL as it was written: parsed, with the place of each part for messages about it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from upriver.errors import DeclarationError, UnsupportedSql


class Unreadable(UnsupportedSql):
    """sqlglot cannot parse the SQL; Spark may parse it, or explain the error better."""


Place = exp.Expr | int | None
"""Where something stands in the SQL: a part of the tree, or an offset."""
_LIKES = (TokenType.LIKE, TokenType.ILIKE)
_CONSTRUCTORS = (TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT)
SHOWN_CHARS_MAX = 120
"""Characters of the faulty line that a message shows."""

ELSEWHERE = "Compute it in the DataFrame that you give to app.table() instead."
"""Advice about an expression that only Spark itself can evaluate."""


class ViewDialect(Spark):
    """Spark SQL in which sqlglot knows no function by name: a call stays as written, and our whitelist decides on
    it."""

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
            if name not in ("ANY", "TRANSFORM")
        }
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in SparkParser.FUNCTION_PARSERS.items()
            if name in {"CAST", "TRY_CAST", "EXTRACT", "POSITION", "SUBSTR", "SUBSTRING", "TRIM"}
        }


@dataclass(frozen=True, slots=True)
class Source:
    """One view's SQL. The offsets that sqlglot keeps in the tree are offsets into ``sql``.

    view: its name, with which messages begin; empty for a query that belongs to no view. inlined: whether the view is
    part of another view, whose SQL has no place for it.
    """

    view: str
    sql: str
    inlined: bool = False

    def parse(self) -> exp.Expr:
        """The one statement. Raises DeclarationError if there is none, Unreadable if it does not parse."""
        try:
            parsed = ViewDialect().parser().parse(_reworded(self.tokens()), self.sql)
            statements = [_with_units(_with_variables(tree)) for tree in parsed if tree is not None]
        except ParseError as error:
            raise self._unreadable(error) from error
        if len(statements) > 1:
            raise self.unsupported(statements[1], "a second statement", "Declare one view per SELECT.")
        return statements[0]

    def tokens(self) -> list[Token]:
        """The tokens. Raises DeclarationError if there are none, or a quote is not closed."""
        try:
            tokens = ViewDialect().tokenize(self.sql)
        except TokenError as error:
            raise DeclarationError(f"{self._begin('')}the SQL cannot be read. {error}") from error
        if not tokens:
            raise DeclarationError(f"{self._begin('')}the SQL is empty.")
        return self._with_quotes(tokens)

    def _with_quotes(self, tokens: list[Token]) -> list[Token]:
        """The tokens, with the two halves of a string at a doubled quote as one."""
        found = tokens[:1]
        for token in tokens[1:]:
            before = found[-1]
            quote = self.sql[token.start]
            is_string = before.token_type == token.token_type == TokenType.STRING
            if is_string and token.start == before.end + 1 and self.sql[before.end] == quote:
                before.text, before.end = before.text + quote + token.text, token.end
            else:
                found.append(token)
        return found

    def _unreadable(self, error: ParseError) -> Unreadable:
        for fault in error.errors:
            lines = self.sql.splitlines(keepends=True)[: fault["line"] - 1]
            offset = sum(map(len, lines)) + fault["col"] - len(fault["highlight"])
            plain = re.sub("<class '.*\\.(.*)'>", r"\1", fault["description"])
            return Unreadable(self._message(offset, "the SQL cannot be read from here on", f"{plain}."))
        return Unreadable(self._message(None, "the SQL cannot be read", str(error)))

    def unsupported(self, node: Place, what: str, instead: str) -> UnsupportedSql:
        """The error for a construct that Spark supports and Upriver does not. ``node``: where it stands, or its
        offset."""
        return UnsupportedSql(self._message(node, f"{what} is not supported", instead))

    def wrong(self, place: Place, what: str, instead: str) -> DeclarationError:
        """The error for a declaration that makes no sense."""
        return DeclarationError(self._message(place, what, instead))

    def keyword(self, word: str, near: exp.Expr | None = None) -> int | None:
        """The offset of a clause's first word: the last one before ``near``, or the first outside parentheses."""
        offset = self.offset(near)
        found = [(depth, start) for text, depth, start in self._words() if text == word]
        if offset is not None:
            before = [start for _, start in found if start <= offset]
            return before[-1] if before else None
        return next((start for depth, start in found if depth == 0), found[0][1] if found else None)

    def _words(self) -> Iterator[tuple[str, int, int]]:
        """All unquoted words: the first of each token, its depth in parentheses, and its offset."""
        depth = 0
        for token in self.tokens():
            depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
            if token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
                yield token.text.upper().split(" ")[0], depth, int(token.start)

    def place(self, node: exp.Expr | None) -> int | None:
        """The place of the node in the SQL of the view that is being compiled."""
        return None if self.inlined else self.offset(node)

    def _message(self, node: Place, what: str, instead: str) -> str:
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
        """Where the node's text begins: at the first of its parts with a known place."""
        return None if node is None else min(_starts(node), default=None)


@dataclass(frozen=True, slots=True)
class FrameSource(Source):
    """A view that is a DataFrame. sql: its plan in words. caller: the file and line in Python that declares it. places:
    of its expressions, by number, as the nodes of the plan have them. They are added when the plan is read."""

    caller: str = ""
    places: list[str] = field(default_factory=list)

    def _message(self, node: Place, what: str, instead: str) -> str:
        place = self.places[node] if isinstance(node, int) else self.caller
        return f"{self._begin(place)}{what}. {instead}"


def calls_function(name: str) -> bool:
    """Whether ``name(1)`` is read as the call of a function of that name."""
    try:
        tree = Source("", f"SELECT {name}(1)").parse()
    except (UnsupportedSql, DeclarationError):
        return False
    (item,) = tree.expressions or (tree,)
    return isinstance(item, exp.Anonymous) and item.name == name


def _reworded(tokens: list[Token]) -> list[Token]:
    """Read these as names. WINDOW, unless it begins the clause WINDOW name AS. ANY, which is the name of a function
    unless it follows LIKE. ARRAY, MAP and STRUCT before a parenthesis. ALL after GROUP BY, where it may be a column."""
    for token, following, behind in zip(tokens, tokens[1:], [*tokens[2:], tokens[-1]], strict=False):
        clause = behind.token_type == TokenType.ALIAS and following.token_type != TokenType.L_PAREN
        if token.token_type == TokenType.WINDOW and not clause:
            token.token_type = TokenType.VAR
    for before, token, following in zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]], strict=False):
        is_called = following.token_type == TokenType.L_PAREN
        if token.token_type == TokenType.ANY and is_called and before.token_type not in _LIKES:
            token.token_type = TokenType.VAR
        if token.token_type == TokenType.ALL and before.token_type == TokenType.GROUP_BY:
            token.token_type = TokenType.VAR
        if token.token_type in _CONSTRUCTORS and is_called:
            token.token_type = TokenType.VAR
    return tokens


def _with_variables(tree: exp.Expr) -> exp.Expr:
    """The tree with each variable of a lambda as a bare name, in whatever case it is written. sqlglot does so only for
    names in the same case."""
    for function in reversed(list(tree.find_all(exp.Lambda))):
        names = {variable.name.lower() for variable in function.expressions}
        for column in list(function.this.find_all(exp.Column)):
            first, *fields = column.parts
            if first.name.lower() in names and not isinstance(column.this, exp.Star):
                bare: exp.Expr = first.copy()
                for one in fields:
                    bare = exp.Dot(this=bare, expression=one.copy())
                column.replace(bare)
    return tree


_WITH_UNITS = {
    **dict.fromkeys(("timestampadd", "dateadd", "date_add"), "timestampadd"),
    **dict.fromkeys(("timestampdiff", "datediff", "date_diff"), "timestampdiff"),
}


def _with_units(tree: exp.Expr) -> exp.Expr:
    """The tree with the unit of ``timestampadd(MINUTE, 5, t)`` and its kin, which is no column, in quotes; and with one
    name for all that mean the same."""
    for call in tree.find_all(exp.Anonymous):
        name = _WITH_UNITS.get(call.name.lower())
        unit = call.expressions[0] if name and len(call.expressions) == 3 else None
        if name and isinstance(unit, exp.Column) and not unit.table:
            text = exp.Literal.string(unit.name)
            text.meta.update(unit.this.meta)
            call.set("this", name)
            unit.replace(text)
    return tree


def _starts(node: exp.Expr) -> Iterator[int]:
    for part in node.walk():
        start = part.meta.get("start")
        if isinstance(start, int):
            yield start
