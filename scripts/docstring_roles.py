"""For the site of the documents: a role of a docstring, as in :meth:`App.view`, becomes the name in code."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:\w+:)?(?:class|data|func|meth|mod):`~?([^`]+)`")


class DocstringRoles(griffe.Extension):
    """Rewrites the docstrings that mkdocstrings shows."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
