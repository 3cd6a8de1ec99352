"""Any query: a SELECT, a set operation, one of them in parentheses, and WITH before each."""

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.plan.plan import TableSpec
from upriver.plan.sql_source import Source
from upriver.sql.sql_clauses import check_reading, check_words, only
from upriver.sql.sql_scalar import construct
from upriver.sql.sql_scope import Column, Rows
from upriver.sql.sql_select import select
from upriver.sql.sql_sets import combined, ordered
from upriver.sql.sql_setting import Setting

A_QUERY = "A view is one query: SELECT ... FROM ..."


def parsed(source: Source) -> exp.Expr:
    """The query that the SQL is. Raises UnsupportedSql if it is anything else, DeclarationError if it is nothing."""
    first = source.tokens()[0]
    if first.token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        raise source.unsupported(0, "a statement that does not begin with SELECT or WITH", A_QUERY)
    check_words(source)
    tree = source.parse()
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        raise source.unsupported(tree, construct(tree), A_QUERY)
    check_reading(source, tree)
    return tree


class Views:
    """The rows of declared views, each compiled when a query first names it. queries: their SQL, by name."""

    def __init__(self, queries: Mapping[str, str], tables: Mapping[str, TableSpec], timezone: str) -> None:
        self._queries = {name.lower(): (name, sql) for name, sql in queries.items()}
        self._tables = tables
        self._timezone = timezone
        self._known: dict[str, Rows] = {}

    def rows(self, name: str) -> Rows | None:
        """``None`` if there is no such view."""
        if name not in self._known:
            if name not in self._queries:
                return None
            source = Source(*self._queries[name], inlined=True)
            self._known[name] = compile_query(self.setting(source), parsed(source))
        return self._known[name]

    def setting(self, source: Source) -> Setting:
        """For a query over the tables and views."""
        return Setting(source, self._timezone, self._tables, self.rows, compile_query, {})


def compile_query(setting: Setting, tree: exp.Expr) -> Rows:
    """What a query comes to. Its tree is used up. Raises UnsupportedSql, DeclarationError."""
    setting = _with_queries(setting, tree.args.get("with_"))
    if isinstance(tree, exp.Select):
        return select(setting, tree)
    if isinstance(tree, exp.SetOperation):
        return combined(setting, tree)
    if isinstance(tree, exp.Subquery):
        only(setting.source, tree, {"this", "alias", "with_", "order", "limit"})
        return ordered(setting, tree, compile_query(setting, tree.this))
    raise setting.source.unsupported(tree, construct(tree), A_QUERY)


def _with_queries(setting: Setting, clause: exp.Expr | None) -> Setting:
    """The setting with the queries of WITH, of which each may name those before it."""
    if clause is None:
        return setting
    if clause.args.get("recursive"):
        at = setting.source.keyword("RECURSIVE", clause)
        raise setting.source.unsupported(at, "WITH RECURSIVE", "A view's queries name only those before them.")
    for query in clause.expressions:
        only(setting.source, query, {"this", "alias"})
        rows = compile_query(replace(setting, untyped=False), query.this)
        titles = [title.name for title in query.args["alias"].args.get("columns") or ()]
        if titles:
            rows = _titled(setting, query, rows, titles)
        setting = setting.knowing({query.alias.lower(): rows})
    return setting


def _titled(setting: Setting, query: exp.Expr, rows: Rows, titles: list[str]) -> Rows:
    if len(titles) != len(rows.columns):
        what = f"{query.alias!r} names {len(titles)} columns of {len(rows.columns)}"
        raise setting.source.wrong(query, what, "Name each.")
    pairs = zip(titles, rows.columns, strict=True)
    return Rows(rows.relation, tuple(Column(title, column.name, column.end) for title, column in pairs))
