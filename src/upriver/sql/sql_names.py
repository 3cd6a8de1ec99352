"""The names of a SELECT's clauses, which may mean columns of FROM or outputs of the SELECT itself.

In HAVING and ORDER BY an output goes first, in GROUP BY and QUALIFY a column; GROUP BY and ORDER BY also take an
output's position. Each tree that is given back is bound (see sql_scope), and shares no node with another one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from upriver.sql.sql_aggregates import has_aggregate, is_aggregate
from upriver.sql.sql_clauses import Item
from upriver.sql.sql_scope import Column, Scope, as_node, bare, place


class Names:
    """Of one SELECT. items: its outputs, bound, with each star as the columns it stands for."""

    def __init__(self, scope: Scope, items: Sequence[Item], grouped: bool) -> None:
        self._scope = scope
        self._source = scope.source
        aliases = {item.name.lower() for item in items if item.renamed and item.name}
        self.items = tuple(bound for item in items for bound in self._items(item, aliases, grouped))

    def group(self, nodes: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
        """What rows are grouped by, each once; a window by its start and its end."""
        found: list[exp.Expr] = []
        for node in nodes:
            found += [bound for bound in self._group(bare(node)) if bound not in found]
        return tuple(found)

    def group_all(self) -> tuple[exp.Expr, ...]:
        """GROUP BY ALL: by each output in which nothing is aggregated."""
        plain = [item for item in self.items if not has_aggregate(item.node) and item.node.find(exp.Window) is None]
        if not plain:
            raise self._source.unsupported(
                self.items[0].node, "GROUP BY ALL of aggregates alone", "SELECT what the view is looked up by, too."
            )
        nodes = [node for item in plain for node in self._grouped(item, item.node)]
        return tuple(dict.fromkeys(nodes))

    def having(self, root: exp.Expr, group: Sequence[exp.Expr]) -> exp.Expr:
        """A condition on groups: inside aggregates there are only columns."""
        holder = exp.Paren(this=root)
        for column in list(root.find_all(exp.Column)):
            item = None if _is_aggregated(column) else self._aliased(column)
            if item is None:
                self._scope.bind_column(column)
                continue
            if self._scope.knows(column):
                grouped = as_node(self._scope.find(column)[0].name, column)
                if grouped in group and item.node != grouped:
                    what = f"{column.name!r}, a column and an alias of another one, in HAVING"
                    raise self._source.unsupported(column, what, "Name the alias otherwise.")
            column.replace(self._value(item, column))
        return bare(holder.this)

    def qualify(self, root: exp.Expr) -> exp.Expr:
        """A condition on rows that are numbered."""
        return self._bound_first(root, lambda column: None if self._scope.knows(column) else self._aliased(column))

    def order(self, root: exp.Expr) -> exp.Expr:
        """What rows are sorted by."""
        root = bare(root)
        position = self._position(root)
        if position is not None:
            return self._value(position, root)
        return self._bound_first(root, lambda column: None if _is_aggregated(column) else self._aliased(column))

    def _bound_first(self, root: exp.Expr, output: Callable[[exp.Column], Item | None]) -> exp.Expr:
        """The tree with each name as the output that it means, or else as a column."""
        holder = exp.Paren(this=root)
        for column in list(root.find_all(exp.Column)):
            item = output(column)
            if item is None:
                self._scope.bind_column(column)
            else:
                column.replace(self._value(item, column))
        return bare(holder.this)

    # Outputs

    def _items(self, item: Item, aliases: set[str], grouped: bool) -> Iterator[Item]:
        star = item.node.this if isinstance(item.node, exp.Column) else item.node
        if not isinstance(star, exp.Star):
            yield self._bound(item, aliases)
            return
        if any(star.args.values()):
            raise self._source.unsupported(item.node, "a star with EXCEPT or the like", "List the columns.")
        if grouped:
            raise self._source.unsupported(item.node, "a star with GROUP BY", "List the columns.")
        for column in self._scope.starred(item.node):
            window = None if column.end is None else column
            yield Item(as_node(column.name, item.node), column.title, window=window)

    def _bound(self, item: Item, aliases: set[str]) -> Item:
        window = self._window(item.node)
        if window is not None:
            return replace(item, node=as_node(window.name, item.node), window=window)
        for column in item.node.find_all(exp.Column):
            if column.name.lower() in aliases and not column.table and not self._scope.knows(column):
                what = f"{column.name!r}, an alias of this SELECT, inside the same SELECT"
                raise self._source.unsupported(column, what, "Write its expression out.")
        return replace(item, node=self._scope.bind(item.node))

    def _window(self, node: exp.Expr) -> Column | None:
        """The window that the node is as a whole."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star) or not self._scope.knows(node):
            return None
        column, field = self._scope.find(node)
        return column if column.end is not None and field is None else None

    # What outputs are called by

    def _group(self, node: exp.Expr) -> Iterator[exp.Expr]:
        item = self._position(node)
        if item is None and not (isinstance(node, exp.Column) and self._scope.knows(node)):
            item = self._aliased(node)
        if item is None:
            window = self._window(node)
            item = Item(node if window is not None else self._scope.bind(node), None, window=window)
        if has_aggregate(item.node):
            raise self._source.wrong(node, "GROUP BY of an aggregate", "Group by what is known before aggregation.")
        yield from self._grouped(item, node)

    def _grouped(self, item: Item, node: exp.Expr) -> Iterator[exp.Expr]:
        """What an output is grouped by. node: for its place."""
        if item.window is None or item.window.end is None:
            yield item.node.copy()
        else:
            yield from (as_node(name, node) for name in (item.window.name, item.window.end))

    def _position(self, node: exp.Expr) -> Item | None:
        """The output whose position a number is."""
        if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdigit():
            return None
        position = int(node.this)
        if not 1 <= position <= len(self.items):
            raise self._source.wrong(node, f"there is no column {position}", f"SELECT has {len(self.items)}.")
        return self.items[position - 1]

    def _aliased(self, node: exp.Expr) -> Item | None:
        """The output that a name means."""
        if not isinstance(node, exp.Column) or node.table:
            return None
        return next((item for item in self.items if item.is_named(node.name)), None)

    def _value(self, item: Item, node: exp.Expr) -> exp.Expr:
        if item.window is not None:
            what = "a window as a whole, which is a STRUCT, in an expression"
            raise self._source.unsupported(node, what, "Take its start or its end: window.start.")
        value = item.node.copy()
        place(value, node)
        return value


def _is_aggregated(node: exp.Expr) -> bool:
    above = node.parent
    while above is not None and not is_aggregate(above):
        above = above.parent
    return above is not None
