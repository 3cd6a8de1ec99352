"""The shape of a view's query: which clauses it has, what its names mean.

``read`` checks the shape, ``resolve`` then gives each name its one meaning, so that two expressions that mean the same
column are the same tree. Spark resolves names without regard to case; so do we, and keep the table's spelling.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.dataflow.plan import TableSpec
from upriver.dataflow.sql_functions import AGGREGATES
from upriver.dataflow.sql_scalar import construct
from upriver.dataflow.sql_source import Source

ONE_TABLE = "A view reads one table: FROM table [AS alias]. Join in the DataFrame that you give to app.table()."
_UNORDERED = "A view has no order: sort what you read from it."
_UNLIMITED = "A view keeps all its rows: limit what you read from it."
_CLAUSES = {
    # What sqlglot calls the part of a SELECT: the word it begins with, and what to do instead.
    "with_": ("WITH", "Write the query as one SELECT from a table."),
    "distinct": ("DISTINCT", "GROUP BY the columns instead."),
    "joins": ("JOIN", ONE_TABLE),
    "laterals": ("LATERAL", "Explode in the DataFrame that you give to app.table()."),
    "order": ("ORDER", _UNORDERED),
    "sort": ("SORT", _UNORDERED),
    "distribute": ("DISTRIBUTE", _UNORDERED),
    "cluster": ("CLUSTER", _UNORDERED),
    "limit": ("LIMIT", _UNLIMITED),
    "offset": ("OFFSET", _UNLIMITED),
    "qualify": ("QUALIFY", "There are no window functions to qualify."),
    "windows": ("WINDOW", "GROUP BY what the window is partitioned by."),
    "hint": ("/*+", "Leave the hint out."),
}
_TABLE_PARTS = {"db": "a database before a table", "pivots": "PIVOT", "sample": "TABLESAMPLE", "version": "VERSION"}
_GROUPINGS = "List the columns in GROUP BY, and declare one view for each grouping."


@dataclass(frozen=True, slots=True)
class Item:
    """One output column. name: its alias, or the name of the column as written; ``None``: for Spark to choose.

    renamed: whether the name is an alias.
    """

    node: exp.Expr
    name: str | None
    renamed: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT from one table. After ``resolve``, a Column's name is a column of the table as the table spells it."""

    source: Source
    table: TableSpec
    alias: str
    items: tuple[Item, ...]
    where: exp.Expr | None
    group: tuple[exp.Expr, ...]
    having: exp.Expr | None

    @property
    def aggregates(self) -> bool:
        """Whether rows are grouped, be it into one group."""
        return bool(self.group) or self.having is not None or any(has_aggregate(item.node) for item in self.items)


def is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES


def has_aggregate(node: exp.Expr) -> bool:
    return any(is_aggregate(part) for part in node.find_all(exp.Anonymous))


def starts_as_query(source: Source) -> bool:
    """Whether the text can only be a query: Spark would run anything else at once, even to tell its schema."""
    first = next(iter(source.tokens()), None)
    return first is not None and first.token_type == TokenType.SELECT


def read(source: Source, tables: Mapping[str, TableSpec]) -> Query:
    """The query, names not resolved. Raises UnsupportedSql for any clause that is not supported."""
    if not starts_as_query(source):
        raise source.unsupported(0, "a statement that does not begin with SELECT", "A view is one SELECT.")
    _check_words(source)
    select = _select(source, source.parse())
    _check_bits(source, select)
    spec, alias = _table(source, select, tables)
    where, group, having = (select.args.get(part) for part in ("where", "group", "having"))
    return Query(
        source=source,
        table=spec,
        alias=alias,
        items=tuple(_item(node) for node in select.expressions),
        where=None if where is None else where.this,
        group=() if group is None else _grouping(source, group),
        having=None if having is None else having.this,
    )


def _check_words(source: Source) -> None:
    """Refuse what sqlglot reads otherwise than Spark."""
    for token, following in pairwise(source.tokens()):
        if token.token_type == TokenType.PIPE_GT:
            raise source.unsupported(token.start, "|>", "Write the query as one SELECT.")
        strings = token.token_type == following.token_type == TokenType.STRING
        if strings and following.start == token.end + 1:
            raise source.unsupported(following.start, "a doubled quote in a string", "Put a backslash before it.")


def _check_bits(source: Source, tree: exp.Expr) -> None:
    """For Spark & binds closer than ^, and ^ closer than |; sqlglot takes them from left to right."""
    for node in tree.find_all(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor):
        for operand in (node.this, node.expression):
            if isinstance(operand, exp.BitwiseAnd | exp.BitwiseOr | exp.BitwiseXor) and type(operand) is not type(node):
                raise source.unsupported(node, "&, ^ and | in one expression", "Put parentheses around each.")


def _select(source: Source, tree: exp.Expr) -> exp.Select:
    if isinstance(tree, exp.SetOperation):
        word = type(tree).__name__.upper()
        raise source.unsupported(source.keyword(word), word, "Declare one view for each SELECT.")
    if not isinstance(tree, exp.Select):
        raise source.unsupported(tree, construct(tree), "A view is one SELECT.")
    for part, value in tree.args.items():
        if value in (None, False, []) or part in ("expressions", "from_", "where", "group", "having"):
            continue
        word, instead = _CLAUSES.get(part, (part.strip("_").upper(), "Leave it out."))
        at = source.keyword(word)
        raise source.unsupported(at if at is not None else _first(value), word, instead)
    nested = next((node for node in tree.find_all(exp.Select, exp.SetOperation) if node is not tree), None)
    if nested is not None:
        raise source.unsupported(nested, "a subquery", ONE_TABLE)
    return tree


def _first(value: object) -> exp.Expr | None:
    first = value[0] if isinstance(value, list) else value
    return first if isinstance(first, exp.Expr) else None


def _table(source: Source, select: exp.Select, tables: Mapping[str, TableSpec]) -> tuple[TableSpec, str]:
    clause = select.args.get("from_")
    if clause is None:
        raise source.wrong(None, "there is no FROM", ONE_TABLE)
    table = clause.this
    name = table.this if isinstance(table, exp.Table) else None
    if not isinstance(name, exp.Identifier):
        raise source.unsupported(table, "FROM anything but a table", ONE_TABLE)
    for part, value in table.args.items():
        if part not in ("this", "alias") and value:
            raise source.unsupported(table, _TABLE_PARTS.get(part, f"a table with {part}"), ONE_TABLE)
    alias = table.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise source.unsupported(alias, "an alias with columns", ONE_TABLE)
    spec = next((spec for known, spec in tables.items() if known.lower() == name.this.lower()), None)
    if spec is None:
        known = ", ".join(sorted(tables)) or "none yet"
        raise source.wrong(table, f"there is no table {name.this!r}", f"Declared with app.table(): {known}.")
    return spec, (alias.name if alias is not None else name.this)


def _item(node: exp.Expr) -> Item:
    if isinstance(node, exp.Alias):
        return Item(node.this, node.alias, renamed=True)
    named = isinstance(node, exp.Column) and not isinstance(node.this, exp.Star)
    return Item(node, node.name if named else None)


def _grouping(source: Source, group: exp.Expr) -> tuple[exp.Expr, ...]:
    for part, value in group.args.items():
        if part != "expressions" and value not in (None, False, []):
            word = part.replace("_", " ").upper()
            raise source.unsupported(source.keyword("GROUP"), f"GROUP BY with {word}", _GROUPINGS)
    for node in group.expressions:
        if isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube | exp.Tuple):
            raise source.unsupported(node, f"{construct(node)} in GROUP BY", _GROUPINGS)
    return tuple(group.expressions)


# Names


def resolve(query: Query) -> Query:
    """The same query with every name given its meaning. Raises DeclarationError for a name that has none."""
    names = _Names(query)
    items = tuple(names.bound(item) for item in names.starless())
    group: list[exp.Expr] = []
    for node in query.group:
        bound = names.group(node, items)
        if bound not in group:
            group.append(bound)
    where = None if query.where is None else names.columns(query.where)
    having = None if query.having is None else names.having(query.having, items, group)
    return replace(query, items=items, where=where, group=tuple(group), having=having)


class _Names:
    """What the names of one query mean. Trees are changed in place: they were parsed for this query alone."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._source = query.source
        self._columns: dict[str, list[str]] = {}
        for name in query.table.schema.names:
            self._columns.setdefault(name.lower(), []).append(name)

    def starless(self) -> Iterator[Item]:
        """The select list, with each star as the columns it stands for."""
        for item in self._query.items:
            star = item.node.this if isinstance(item.node, exp.Column) else item.node
            if not isinstance(star, exp.Star):
                yield item
                continue
            if any(star.args.values()):
                raise self._source.unsupported(item.node, "a star with EXCEPT or the like", "List the columns.")
            if isinstance(item.node, exp.Column):
                self._check_qualifier(item.node)
            if self._query.group:
                raise self._source.unsupported(item.node, "a star with GROUP BY", "List the columns.")
            for name in self._query.table.schema.names:
                yield Item(exp.column(exp.to_identifier(name, quoted=True)), name)

    def bound(self, item: Item) -> Item:
        aliases = {other.name.lower() for other in self._query.items if other.renamed and other.name}
        for column in item.node.find_all(exp.Column):
            if column.name.lower() not in self._columns and column.name.lower() in aliases:
                what = f"{column.name!r}, an alias of this SELECT, inside the same SELECT"
                raise self._source.unsupported(column, what, "Write its expression out.")
        return replace(item, node=self.columns(item.node))

    def columns(self, root: exp.Expr) -> exp.Expr:
        """Every column of the tree as the table's."""
        for column in root.find_all(exp.Column):
            self._bind(column)
        return _bare(root)

    def group(self, node: exp.Expr, items: Sequence[Item]) -> exp.Expr:
        """A GROUP BY element: a position, a column, an alias (a column goes first), or an expression."""
        bare = _bare(node)
        if isinstance(bare, exp.Literal) and not bare.is_string and bare.this.isdigit():
            position = int(bare.this)
            if not 1 <= position <= len(items):
                raise self._source.wrong(bare, f"there is no column {position}", f"SELECT has {len(items)}.")
            bound = items[position - 1].node.copy()
        else:
            alias = self._aliased(bare, items)
            bound = self.columns(bare) if alias is None or bare.name.lower() in self._columns else alias
        if has_aggregate(bound):
            raise self._source.wrong(node, "GROUP BY of an aggregate", "Group by what is known before aggregation.")
        return bound

    def having(self, root: exp.Expr, items: Sequence[Item], group: Sequence[exp.Expr]) -> exp.Expr:
        """A HAVING condition: outside aggregates an alias goes first, inside there are only columns."""
        holder = exp.Paren(this=root)
        for column in list(root.find_all(exp.Column)):
            alias = None if _is_aggregated(column) else self._aliased(column, items)
            if alias is None:
                self._bind(column)
                continue
            if column.name.lower() in self._columns:
                grouped = exp.column(exp.to_identifier(self._columns[column.name.lower()][0], quoted=True))
                if grouped in group and alias != grouped:
                    what = f"{column.name!r}, a column and an alias of another one, in HAVING"
                    raise self._source.unsupported(column, what, "Name the alias otherwise.")
            column.replace(alias)
        return _bare(holder.this)

    def _aliased(self, node: exp.Expr, items: Sequence[Item]) -> exp.Expr | None:
        """What an alias of the select list stands for."""
        if not isinstance(node, exp.Column) or node.table:
            return None
        meant = [item.node for item in items if item.name is not None and item.name.lower() == node.name.lower()]
        return meant[0].copy() if meant else None

    def _bind(self, column: exp.Column) -> None:
        self._check_qualifier(column)
        if isinstance(column.this, exp.Star):
            raise self._source.unsupported(column, "a star inside an expression", "Name the columns.")
        found = self._columns.get(column.name.lower(), [])
        if len(found) != 1:
            there = f"there {'is no' if not found else 'are several'} column{'s' if found else ''} {column.name!r}"
            columns = ", ".join(self._query.table.schema.names)
            raise self._source.wrong(column, there, f"The columns of {self._query.table.name} are {columns}.")
        column.this.set("this", found[0])
        column.this.set("quoted", True)
        column.set("table", None)

    def _check_qualifier(self, column: exp.Column) -> None:
        qualifier = column.table.lower()
        if column.args.get("db") or (
            qualifier and qualifier != self._query.alias.lower() and qualifier in self._columns
        ):
            raise self._source.unsupported(column, "a field of a struct", "Make it a column before app.table().")
        if qualifier and qualifier != self._query.alias.lower():
            raise self._source.wrong(column, f"there is no {column.table!r} here", f"FROM names {self._query.alias}.")


def _is_aggregated(node: exp.Expr) -> bool:
    above = node.parent
    while above is not None and not is_aggregate(above):
        above = above.parent
    return above is not None


def _bare(root: exp.Expr) -> exp.Expr:
    """The tree without parentheses, but for those after a minus, where they part the sign from a number."""
    holder = exp.Paren(this=root)
    for paren in list(root.find_all(exp.Paren)):
        if not isinstance(paren.parent, exp.Neg):
            paren.replace(paren.this)
    bare: exp.Expr = holder.this
    return bare
