"""The context of a query: the tables, views and WITH queries that its FROM may name, and the SQL it belongs to.

A scope gives the meaning of names in one SELECT: the columns of the items of FROM, as a query sees them. Spark resolves
names without regard to case; so does this module. ``bind`` gives each name its one meaning: a column of the relation
beneath, by its name there. So two expressions that mean the same are the same tree.
"""

NAME_CHARS_MAX = 60
"""Characters of a column name that is made from an expression."""


def unique(wanted: str, taken: set[str]) -> str:
    """The name, or a similar one if it is ``taken`` (lower case); it is added to ``taken``."""
    name, number = wanted, 0
    while name.lower() in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name.lower())
    return name
