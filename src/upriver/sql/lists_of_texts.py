"""``listagg(x, ',') WITHIN GROUP (ORDER BY y, ...)`` by anything but ``x``: written out with other functions.

The group's texts are collected with what they are sorted by, sorted, and joined. A listagg() of one value in its own
ascending order is an aggregate by itself (:mod:`upriver.sql.aggregates`).
"""

from sqlglot import exp

from upriver.plan.source import Source
from upriver.sql.scope import bare, place

_NAMES = ("listagg", "string_agg")
_JOINED = "SELECT CASE WHEN count(x) > 0 THEN array_join(transform(sort_array(rows, way), e -> e.x), word) END"


def write_out_listagg(source: Source, select: exp.Select) -> None:
    """Change each such call in the tree. Raises UnsupportedSql for an order that goes both ways."""
    for node in list(select.find_all(exp.Anonymous)):
        operands, distinct = _operands(node)
        if node.name.lower() not in _NAMES or not 1 <= len(operands) <= 2:
            continue
        within = node.parent if isinstance(node.parent, exp.WithinGroup) else None
        whole: exp.Expr = within or node
        filter = whole.parent if isinstance(whole.parent, exp.Filter) and whole.arg_key == "this" else None
        whole = filter or whole
        if isinstance(whole.parent, exp.Window) and whole.arg_key == "this":
            continue
        value = operands[0]
        order = within.expression.expressions if within is not None else [exp.Ordered(this=value.copy())]
        if len(order) == 1 and not order[0].args.get("desc") and bare(order[0].this.copy()) == bare(value.copy()):
            if within is None:
                ordered = exp.WithinGroup(this=node.copy(), expression=exp.Order(expressions=[order[0]]))
                node.replace(ordered)
            continue
        where = None if filter is None else filter.expression.this
        word = operands[1] if len(operands) == 2 else exp.Literal.string("")
        whole.replace(_joined(source, whole, value, distinct, order, where, word))


def _operands(node: exp.Anonymous) -> tuple[list[exp.Expr], bool]:
    """The operands of a call, and whether it lists each value once."""
    if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Distinct):
        return node.expressions[0].expressions, True
    return node.expressions, False


def _joined(
    source: Source,
    whole: exp.Expr,
    value: exp.Expr,
    distinct: bool,
    order: list[exp.Ordered],
    where: exp.Expr | None,
    word: exp.Expr,
) -> exp.Expr:
    downs = {bool(one.args.get("desc")) for one in order}
    odd = next((one for one in order if bool(one.args.get("desc")) == bool(one.args.get("nulls_first"))), None)
    if len(downs) > 1 or odd is not None:
        instead = "Let all go one way, with NULLs first if it is up: ORDER BY x, y or ORDER BY x DESC, y DESC."
        raise source.unsupported(odd or order[-1], "listagg() in an order that goes both ways", instead)
    fields: list[exp.Expr] = []
    for number, one in enumerate(order):
        fields += [exp.Literal.string(f"k{number}"), one.this.copy()]
    text = exp.Cast(this=value.copy(), to=exp.DataType(this=exp.DType.TEXT))
    struct = exp.Anonymous(this="named_struct", expressions=[*fields, exp.Literal.string("x"), text])
    there: exp.Expr = exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null()))
    test = there if where is None else exp.And(this=exp.Paren(this=where.copy()), expression=there)
    given = exp.Distinct(expressions=[struct]) if distinct else struct
    parts = {
        "rows": exp.Filter(
            this=exp.Anonymous(this="collect_list", expressions=[given]), expression=exp.Where(this=test.copy())
        ),
        "way": exp.Boolean(this=not downs.pop()),
        "word": word.copy(),
        "x": value.copy(),
    }
    tree: exp.Expr = Source("", _JOINED).parse().expressions[0]
    for name in [one for one in tree.find_all(exp.Column) if one.name in parts]:
        name.replace(parts[name.name])
    count = next(one for one in tree.find_all(exp.Anonymous) if one.name == "count")
    count.replace(exp.Filter(this=count.copy(), expression=exp.Where(this=test.copy())))
    place(tree, whole)
    return tree
