"""The names that code defines, and those that a text has in code font."""

import ast
import keyword
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from importlib import import_module

from sqlglot.dialects import DuckDB, Postgres, Spark

from upriver.sql.functions.aggregates import AGGREGATES
from upriver.sql.functions.table import FUNCTIONS, REFUSED

MODULES = {"np": "numpy", "pc": "pyarrow.compute", "F": "pyspark.sql.functions", "table": "pyarrow.Table"}
LIBRARIES = ("builtins", "collections", "datetime", "pyarrow", "pyarrow.flight", "pyspark.sql", "pyspark.sql.types")
"""Modules whose names documents give without the module's."""
OBJECTS = {"app": "App", "client": "Client", "rescale": "Rescale"}
"""Names that documents give to objects, with their classes."""
_MADE = {"App": "App", "upriver.App": "App", "upriver.connect": "Client", "app.rescale": "Rescale"}
"""Classes of what a call gives."""
SQL_WORDS = frozenset(
    word.upper()
    for dialect in (Spark, DuckDB, Postgres)
    for words in dialect.Tokenizer.KEYWORDS
    for word in re.findall(r"[A-Za-z_]\w+", words)
)
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DOTTED = r"[^\W\d]\w*(?:\.\w+)*"
_NAMED = re.compile(
    rf"(?P<name>{_DOTTED})(?P<call>\(.*?\))?(?P<keys>(?:\[\"\w+\"\])*)(?P<value>=[^=>].*|=)?", re.DOTALL
)
_OPTION = re.compile(r"--[a-z][\w-]*|\.?[a-z]\w*(?:-[\w.]+)+|\.\w+")
"""An option, and other names with hyphens, or with a dot before them."""
_PATTERN = re.compile(r"(?P<start>[\w./-]*\w)(?:_\.\.\.|_\*|(?<!_)_)")
_PATH = re.compile(r"(?:(?:GET|POST|DELETE) )?(?P<path>/[\w/{}.]+)(?:\?.*)?")
_PLACE = re.compile(r"(?:[\w.<>*-]+/)+[\w.<>*-]*")
_HEADER = re.compile(r"[A-Z][a-z]+(?:-[A-Z]\w*)+")
_IN_EXPRESSION = re.compile(r"\b(?:[A-Z][a-z]+(?:[A-Z]\w+)+|[A-Z]+_[A-Z_]+|[a-z_]\w*(?=\())")
_ARGUMENT = re.compile(r"\b([a-z]\w*)=(?![=>])")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_BLANK = re.compile(r"\s")
_WORD = re.compile(r"[\w-]+")


class CodeNames:
    """What some modules define: classes, functions, arguments, variables and fields. What they import or only use is
    no name of theirs."""

    def __init__(self, modules: Iterable[tuple[str, Iterable[ast.AST]]], tests: Collection[str]) -> None:
        """modules: the text of each, and the nodes that define names or are texts. tests: the names of tests."""
        self.defined: set[str] = set()
        self.members: dict[str, set[str]] = defaultdict(set)
        """By class: its methods and fields, those of its bases among them."""
        self.arguments: dict[str, set[str]] = defaultdict(set)
        """By function, method or class."""
        self.words: set[str] = set()
        """Texts without blanks, and the words in them."""
        self._bases: dict[str, set[str]] = defaultdict(set)
        texts: list[str] = []
        for text, nodes in modules:
            texts.append(text)
            self._read(nodes)
        self.text = "".join(texts)
        for name in list(self._bases):
            self._inherit(name, {name})
        self.tests = tests
        self._starts = "".join(f"\n{test}" for test in tests)

    def _read(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            match node:
                case ast.ClassDef(name=name):
                    self.defined.add(name)
                    self._read_class(node)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.defined.add(name)
                    self.arguments[name] |= _arguments(node)
                case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    self.defined.add(name)
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    self.defined.add(name)
                case ast.Constant(value=str(text)) if not _BLANK.search(text):
                    self.words |= {text, text.lower(), *_WORD.findall(text)}
                case ast.Constant(value=bytes(data)):
                    self.words |= {data.decode(errors="ignore")}

    def _read_class(self, of: ast.ClassDef) -> None:
        self._bases[of.name] |= {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in of.bases}
        for node in of.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.members[of.name].add(name)
                    if name == "__init__":
                        self.arguments[of.name] |= _arguments(node)
                        self.members[of.name] |= {
                            inner.attr
                            for inner in ast.walk(node)
                            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                        }
                case ast.AnnAssign(target=ast.Name(id=name)):
                    self.members[of.name].add(name)
                    self.arguments[of.name].add(name)
                case ast.Assign(targets=targets):
                    self.members[of.name] |= {target.id for target in targets if isinstance(target, ast.Name)}

    def _inherit(self, name: str, seen: set[str]) -> None:
        for base in self._bases[name] - seen:
            self._inherit(base, seen | {base})
            self.members[name] |= self.members[base]
            self.arguments[name] |= self.arguments[base]

    def unknown(self, span: str, others: Collection[str] = ()) -> Iterator[str]:
        """The names in a piece of code of a text that are not there. others: names of other programs that are."""
        if span in others or self._is_word(span):
            return
        if _OPTION.fullmatch(span):
            if not self._is_word(span.removeprefix(".")):
                yield span
        elif path := _PATH.fullmatch(span):
            if path["path"] not in self.words:
                yield span
        elif _HEADER.fullmatch(span):
            if span.lower().removeprefix("upriver-").replace("-", "_") not in self.defined | self.words:
                yield span
        elif _PLACE.fullmatch(span):
            fixed = re.sub(r"<[\w-]+>|\*", " ", span).replace("/", " ").split()
            yield from (part for part in fixed if not self._stands(part.strip(".-")))
        elif (pattern := _PATTERN.fullmatch(span)) and len(pattern["start"]) > 2:
            if not any(name.startswith(pattern["start"]) for name in (*self.defined, *self.words, *self.tests)):
                yield span
        elif named := _NAMED.fullmatch(span):
            yield from self._unknown_of(named, others)
        else:
            code = _QUOTED.sub("", span)
            yield from (name for name in _IN_EXPRESSION.findall(code) if name not in others and not self._is_word(name))

    def unknown_in_example(self, code: str) -> Iterator[str]:
        """What a Python example imports, calls or gives of ours that is not there."""
        tree = ast.parse(code)
        objects = dict(OBJECTS)
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                    objects[name] = _MADE.get(ast.unparse(called), "")
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "upriver":
                    yield from (name.name for name in names if not _is_in_a_module(module, [name.name]))
                case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name), keywords=given):
                    of = objects.get(owner)
                    if of and name not in self.members[of]:
                        yield f"{owner}.{name}"
                    elif of or owner == "upriver":
                        yield from self._not_taken(name, (argument.arg for argument in given))
                case ast.Call(func=ast.Name(id=name), keywords=given):
                    yield from self._not_taken(name, (argument.arg for argument in given))

    def _not_taken_in(self, name: str, call: str) -> Iterator[str]:
        """Of a call, and of those in it."""
        try:
            tree = ast.parse(f"{name}{call}", mode="eval")
        except SyntaxError:  # "..." stands for more
            yield from self._not_taken(name, _ARGUMENT.findall(_QUOTED.sub("", call)))
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield from self._not_taken(ast.unparse(node.func), (argument.arg for argument in node.keywords))

    def _not_taken(self, name: str, given: Iterable[str | None]) -> Iterator[str]:
        taken = self.arguments.get(name.rpartition(".")[2], {"**"})
        if "**" not in taken:
            yield from (f"{name}({argument}=)" for argument in given if argument is not None and argument not in taken)

    def _unknown_of(self, named: re.Match[str], others: Collection[str]) -> Iterator[str]:
        name = named["name"]
        if name in others:
            return
        if not self._is_there(name):
            yield name
            return
        yield from (key for key in re.findall(r"\w+", named["keys"] or "") if key not in self.words)
        if named["call"]:
            yield from self._not_taken_in(name, named["call"])
        if named["value"] and name not in self.words.union(*self.arguments.values()):
            yield f"{name}="

    def _is_there(self, name: str) -> bool:
        head, *rest = name.split(".")
        if not rest:
            return self._is_word(name)
        of = OBJECTS.get(head, head)
        if of in self.members:
            return rest[0] in self.members[of]
        if f"{head}_{rest[0]}" in self.defined or f"\ntest_{head}_{rest[0]}" in self._starts:
            return True  # a rule
        return name in self.words or name in self.text or _is_in_a_module(MODULES.get(head, head), rest)

    def _stands(self, part: str) -> bool:
        return self._is_word(part) or part in self.text or part.rpartition(".")[2] in ("json", "arrow", "arrows", "py")

    def _is_word(self, name: str) -> bool:
        return (
            name in self.defined
            or name in self.words
            or name in self.tests
            or name in SQL_WORDS
            or name in FUNCTIONS
            or name in AGGREGATES
            or name in REFUSED
            or keyword.iskeyword(name)
            or name in sys.stdlib_module_names
            or (len(name) == 1 and name.isalpha())
            or any(hasattr(import_module(library), name) for library in LIBRARIES)
        )


def spans_of(text: str) -> Iterator[tuple[int, str]]:
    """Each piece of a document in code font, with the line on which it begins; not those of blocks."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in _SPAN.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[2].split())


def examples_of(text: str) -> Iterator[tuple[int, str]]:
    """Each block of Python in a document, with the line on which it begins."""
    for found in _PYTHON.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    found = {argument.arg for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs]}
    return found | ({"**"} if given.kwarg and given.kwarg.arg != "earlier" else set())  # no document has those


def _is_in_a_module(module: str, names: list[str]) -> bool:
    """Whether Python finds it there."""
    path = [*module.split("."), *names]
    for end in range(len(path), 0, -1):
        with suppress(ImportError):
            found: object = import_module(".".join(path[:end]))
            for name in path[end:]:
                if not hasattr(found, name):
                    return False
                found = getattr(found, name)
            return True
    return False
