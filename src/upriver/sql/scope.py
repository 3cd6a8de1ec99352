"""The context of a query: the tables, views and WITH queries that its FROM may name, and the SQL it belongs to.

A scope gives the meaning of names in one SELECT: the columns of the items of FROM, as a query sees them. Spark resolves
names without regard to case; so does this module. ``bind`` gives each name its one meaning: a column of the relation
beneath, by its name there. So two expressions that mean the same are the same tree.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import TableSpec, UserFunction
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE, Source, ViewDialect
from upriver.plan.types import duck_name, spark_name
from upriver.sql.functions import RULES
from upriver.sql.scalars import WRITTEN, Context, column_scalar

NAME_CHARS_MAX = 60
"""Characters of a column name that is made from an expression."""
_AROUND = "Name it in the subquery's WHERE, or join with the subquery."

Fields = tuple[exp.Expr, ...]
"""The names behind a column: of a field of a struct, of a field of that, and so on."""


@dataclass(frozen=True, slots=True)
class ScopeColumn:
    """A column that a query can name. A window of time, a struct for Spark, is two columns of the relation.

    title: its name in SQL; ``None`` if only Spark knows it. name: of the column in the relation; for a window, of its
    start. end: name of the column with a window's end, or ``None``. untyped: whether it is nothing but NULL, whatever
    its type in the relation. node: where it is selected, for messages.
    """

    title: str | None
    name: str
    end: str | None = None
    untyped: bool = False
    node: exp.Expr | None = field(default=None, compare=False)

    def is_titled(self, title: str) -> bool:
        return self.title is not None and self.title.lower() == title.lower()


@dataclass(frozen=True, slots=True)
class ScopeRows:
    """A relation as a query sees it. A query cannot name columns of the relation that are not in ``columns``.

    around: the query around, if the rows depend on it; keys: the columns with its values, in their order.
    """

    relation: Relation
    columns: tuple[ScopeColumn, ...]
    around: "Around | None" = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of FROM. alias: empty if it has none."""

    alias: str
    columns: tuple[ScopeColumn, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """The names of a SELECT. entries: by ``alias.column``. columns: by name alone, in the order of ``*``; after a join
    with USING some differ from the entries'. hidden: by name alone, but no part of ``*``. outer: the scope of the
    enclosing query, for names that are unknown here.
    """

    source: Source
    entries: tuple[Entry, ...]
    columns: tuple[ScopeColumn, ...]
    hidden: tuple[ScopeColumn, ...] = ()
    outer: "Scope | None" = None

    @classmethod
    def of(cls, source: Source, entry: Entry) -> "Scope":
        return cls(source, (entry,), entry.columns)

    def beside(self, other: "Scope") -> "Scope":
        """The scope of the items before ``other`` and of ``other``."""
        return replace(self, entries=self.entries + other.entries, columns=self.columns + other.columns)

    def with_names(self, names: Mapping[str, str]) -> "Scope":
        """The scope of these of its columns alone, with other names in the relation."""

        def renamed(columns: Iterable[ScopeColumn]) -> tuple[ScopeColumn, ...]:
            return tuple(replace(one, name=names[one.name], end=None) for one in columns if one.name in names)

        entries = tuple(replace(entry, columns=renamed(entry.columns)) for entry in self.entries)
        outer = None if self.outer is None else self.outer.with_names(names)
        return Scope(self.source, entries, renamed(self.columns), renamed(self.hidden), outer)

    def hiding(self, column: ScopeColumn) -> "Scope":
        """The scope with a column that is no part of ``*``."""
        return replace(self, hidden=(*self.hidden, column))

    def bind(self, root: exp.Expr) -> exp.Expr:
        """The tree with the meaning of every name, and without needless parentheses. The tree is changed in place.

        Raises DeclarationError for a name that has no meaning or several.
        """
        holder = exp.Paren(this=root)
        for node in list(root.find_all(exp.Column)):
            self.bind_column(node)
        return bare(holder.this)

    def bind_column(self, node: exp.Column) -> None:
        """Replace one name by its meaning."""
        if isinstance(node.this, exp.Star):
            raise self.source.unsupported(node, "a star inside an expression", "Name the columns.")
        column, fields = self.find(node)
        name = column.name
        if column.end is not None:
            if len(fields) != 1 or fields[0].name.lower() not in ("start", "end"):
                what = "a window as a whole, which is a STRUCT, in an expression"
                raise self.source.unsupported(node, what, "Take its start or its end: window.start.")
            name, fields = column.end if fields[0].name.lower() == "end" else name, ()
        if fields:
            whole: exp.Expr = as_node(name, node)
            for one in fields:
                whole = exp.Dot(this=whole, expression=one.copy())
            node.replace(whole)
            return
        node.this.meta.update(node.parts[0].meta)  # it begins where its qualifier does
        node.this.meta[WRITTEN] = node.name
        node.this.set("this", name)
        node.this.set("quoted", True)
        node.set("table", None)
        node.set("db", None)
        node.set("catalog", None)

    def find(self, node: exp.Column) -> tuple[ScopeColumn, Fields]:
        """The column that the name means; and the fields of it that are named behind it."""
        found = self._found(node)
        if found is not None:
            return found
        if self.outer is not None:
            return self.outer.find(node)
        raise self._unknown(node)

    def knows(self, node: exp.Column) -> bool:
        """Whether the name means something here, and not in the enclosing query."""
        return self._found(node) is not None

    def starred(self, node: exp.Expr) -> tuple[ScopeColumn, ...]:
        """The columns that ``*`` or ``alias.*`` stands for, also where it leaves some out."""
        if not isinstance(node, exp.Column):
            return self.columns
        for entry in self.entries:
            if entry.alias.lower() == node.table.lower():
                return entry.columns
        raise self._unknown_alias(node)

    def names_entry(self, alias: str) -> bool:
        """Whether an item of FROM has this alias."""
        return any(entry.alias.lower() == alias.lower() for entry in self.entries)

    def _found(self, node: exp.Column) -> tuple[ScopeColumn, Fields] | None:
        """Tries alias and column first, then a column alone, as Spark does; what follows are fields."""
        path = node.parts
        if len(path) > 1:
            whole = self._one(node, self.columns_of(path[0].name), path[1].name)
            if whole is not None:
                return whole, tuple(path[2:])
        column = self._one(node, self.columns + self.hidden, path[0].name)
        return None if column is None else (column, tuple(path[1:]))

    def columns_of(self, alias: str) -> tuple[ScopeColumn, ...]:
        """The columns of the item of FROM with this alias; none if there is none."""
        named = (entry.columns for entry in self.entries if entry.alias and entry.alias.lower() == alias.lower())
        return next(named, ())

    def _one(self, node: exp.Column, columns: Iterable[ScopeColumn], title: str) -> ScopeColumn | None:
        found = [column for column in columns if column.is_titled(title)]
        if len(found) > 1:
            owners = [entry.alias for entry in self.entries if any(column in found for column in entry.columns)]
            instead = f"Say whose: {owners[0]}.{title}." if len(set(owners)) > 1 else self._listed()
            raise self.source.wrong(node, f"there are several columns {title!r}", instead)
        return found[0] if found else None

    def _unknown(self, node: exp.Column) -> Exception:
        entry = next((entry for entry in self.entries if entry.alias.lower() == node.table.lower()), None)
        if node.table and entry is None:
            return self._unknown_alias(node)
        listed = _listed(entry.columns, entry.alias) if node.table and entry is not None else self._listed()
        return self.source.wrong(node, f"there is no column {node.name!r}", listed)

    def _unknown_alias(self, node: exp.Column) -> Exception:
        aliases = " and ".join(entry.alias for entry in self.entries if entry.alias)
        return self.source.wrong(node, f"there is no {node.table!r} here", f"FROM names {aliases or 'nothing'}.")

    def _listed(self) -> str:
        """The known columns, for a message."""
        aliases = [entry.alias for entry in self.entries]
        return _listed(self.columns, " and ".join(aliases) if all(aliases) else "")


def _listed(columns: Iterable[ScopeColumn], whose: str) -> str:
    titles = ", ".join(column.title for column in columns if column.title is not None)
    return f"The columns of {whose} are {titles}." if whose else f"The columns are {titles}."


def unique(wanted: str, taken: set[str]) -> str:
    """The name, or a similar one if it is ``taken`` (lower case); it is added to ``taken``."""
    name, number = wanted, 0
    while name.lower() in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name.lower())
    return name


def worded(node: exp.Expr) -> str:
    """The name of a column that is computed from this tree: as the SQL has it, because messages show such names."""
    bare_names = node.copy()
    for identifier in bare_names.find_all(exp.Identifier):
        identifier.set("quoted", False)
    text = bare_names.sql(dialect=ViewDialect, normalize_functions=False, comments=False)
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}..."


def names_in(node: exp.Expr) -> frozenset[str]:
    """The columns of the relation beneath that a bound tree names."""
    return frozenset(column.name for column in node.find_all(exp.Column))


def uses_in(nodes: Iterable[exp.Expr]) -> Counter[str]:
    """How often bound trees name each column."""
    return Counter(column.name for node in nodes for column in node.find_all(exp.Column))


def as_node(name: str, like: exp.Expr) -> exp.Column:
    """A column of the relation beneath, bound. like: the node in its place in the SQL."""
    node = exp.Column(this=exp.to_identifier(name, quoted=True))
    place(node, like)
    return node


def place(tree: exp.Expr, like: exp.Expr) -> None:
    """Change the tree's positions so that messages show all of it at the place of ``like``."""
    first = min(like.walk(), key=lambda part: part.meta.get("start", float("inf")))
    for part in tree.walk():
        if isinstance(part, exp.Identifier) or "start" in part.meta:
            part.meta.update(first.meta)


def bare(root: exp.Expr) -> exp.Expr:
    """The tree without parentheses, except those after a minus, which separate the sign from a number."""
    holder = exp.Paren(this=root)
    for paren in list(root.find_all(exp.Paren)):
        if not isinstance(paren.parent, exp.Neg):
            paren.replace(paren.this)
    found: exp.Expr = holder.this
    return found


@dataclass(frozen=True, slots=True)
class Around:
    """The query around a subquery. values: each combination of values that its names have, once. scope: the names,
    which mean columns of ``values``."""

    values: Relation
    scope: Scope


@dataclass(frozen=True, slots=True)
class Setting:
    """timezone: the Spark session's. view: the rows of a declared view, or ``None`` if there is none of that name.

    queries: those of WITH, by name in lower case. compile: gives the rows of a subquery in a setting. attach: gives
    rows a column for each detached subquery (:func:`upriver.sql.subqueries.attach`). untyped: whether a column may be
    nothing but NULL: the other side of a union then gives it its type. around: the query around, if its names may be
    used: each row of the result then has its values, too. functions: the user's own, by name in lower case.
    """

    source: Source
    timezone: str
    tables: Mapping[str, TableSpec]
    view: Callable[[str], ScopeRows | None]
    compile: Callable[["Setting", exp.Expr], ScopeRows]
    queries: Mapping[str, ScopeRows]
    attach: Callable[
        ["Setting", Relation, Scope, exp.Expr, set[str], Callable[[exp.Expr], Scalar | None] | None],
        tuple[Relation, exp.Expr],
    ]
    untyped: bool = False
    around: Around | None = None
    functions: Mapping[str, UserFunction] = field(default_factory=dict)

    def knowing(self, queries: Mapping[str, ScopeRows]) -> "Setting":
        """The setting with more queries of WITH."""
        return replace(self, queries={**self.queries, **queries})

    def context(self, *schemas: pa.Schema, fails: Collection[str] = (), certain: Collection[str] = ()) -> Context:
        """The context of expressions over rows with the columns of all these schemas. fails: columns that can fail on a
        row, wherever they are needed. certain: columns that are never NULL."""
        types = {field.name: field.type for schema in schemas for field in schema}

        def leaf(node: exp.Expr) -> Scalar | None:
            if not isinstance(node, exp.Column):
                return None
            type = types.get(node.name)
            if type is None:
                raise self.source.unsupported(node, "a name of the query around in this place", _AROUND)
            if duck_name(type) is None:
                raise self.source.unsupported(node, f"an expression over {spark_name(type)}", ELSEWHERE)
            nulls = frozenset[str]() if node.name in certain else None
            return replace(column_scalar(node.name, type), fails=node.name in fails, nulls=nulls)

        return Context(self.source, self.timezone, leaf, RULES, self.functions)
