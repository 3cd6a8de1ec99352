"""House rules that no linter knows. Each rule is a function from one source to its faults; each is shown to bite.

Import contracts between our modules are in .importlinter.
"""

import ast
import gc
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar, cast

import pytest
from names_kit import CodeNames, examples_of, spans_of

ROOT = Path(__file__).parent.parent
OWN = ("upriver", "simulator", "benchmarks")
PURE = (
    *("coordinator/", "worker/", "protocol/", "migration/", "partial/", "engine/", "state/", "sql/", "plan/"),
    *("vnodes.py", "hashing.py"),
)
BANNED_IN_PURE = re.compile(
    r"""time\..+ | datetime\.(datetime\.(now|utcnow|today)|date\.today) | random\.(?!Random$).+ | secrets\..+
    | uuid\.(?!UUID$).+ | numpy\.random(\..+)?
    | pyarrow\.(flight|fs|OSFile|memory_map|input_stream|output_stream)(\..+)?
    | os\.(environ|getenv|urandom)(\..+)? | urllib\.request(\..+)? | hash | open | print""",
    re.VERBOSE,
)
UNPICKLES = re.compile(
    r"""(pickle|_pickle|cPickle|marshal|dill|joblib|(.+\.)?cloudpickle)\.(loads?|Unpickler) | shelve\..+
    | (pandas|pyspark\.pandas)\.read_pickle | multiprocessing\.connection\..+ | pyarrow\.deserialize.* | eval | exec""",
    re.VERBOSE,
)
UNPICKLING = ("src/upriver/engine/operators/map_calls.py", "loaded")
"""The one place: a function of a plan, which has come in the closure of Spark's task or over a sealed channel."""
UNIT = re.compile(r"(s|mb)_", re.IGNORECASE)  # ROWS_MAX, WAIT_MS_MAX, HEAP_MB_MAX: a plural counts its things
HOME_PATH = re.compile(r"(?<![\w.])/(?:root/|home/\w|Users/\w)|[A-Z]:\\Users\\")
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
_BEFORE_A_CLAUSE = (
    "and or but that of to for by from with than if what when as because since while until so unless at on in is are "
    "say says tell tells see know knows not nor where how about between before after like without"
)
NO_ACTOR = re.compile(
    r"\b(?:who(?:m|s)?(?:so)?ever|whom|somebody|someone|nobody|anybody|anyone|everybody|everyone|no one)\b"
    r"|\b(?:those|one|ones|all|others|any) who\b"
    rf"|(?:(?:\A|\n\n)[\s\"`*#>|-]*|[.:;?!(]\s+|\b(?:{'|'.join(_BEFORE_A_CLAUSE.split())})\s+)who\b",
    re.IGNORECASE,
)
"""Words that stand where a sentence should name its actor. ``a user who`` names it."""
CITED = re.compile(r"(?<![\w/.<{*-])((?:[\w-]+/)+[\w-]+\.(?:py|md|svg|toml))\b|`+([\w-]+\.(?:py|md|svg))`+")
NAMES_OF_OTHERS = {
    name
    for names in (
        # of the Makefile
        "SINCE verify",
        # SQL
        "EXTRACT IDENTIFIER grouping_id session_window try_cast window_time _outer",
        # Spark
        "groupBy().agg() transformWithStateInPandas awaitTermination() foreachBatch mapInArrow processAllAvailable",
        "withColumn _metadata input_file_name canonicalized",
        "dropDuplicatesWithinWatermark spark.udf.register pandas_udf arrow_udf asNondeterministic",
        "PythonDataSourceV2 setReadInfo getOrCreateReadInfo SupportsReportPartitioning HasPartitionKey PythonScan",
        "PythonInputPartition pushFilters DataSourceReader DataStreamWriter.foreachBatch df.withColumn UTF8_BINARY",
        "spark.archives spark.jars.packages spark.scheduler.mode spark.speculation spark.authenticate",
        "spark.speculation.task.duration.threshold spark.network.crypto.enabled spark.hadoop.fs.s3a.access.key",
        "fs.s3a.bucket.NAME readChangeFeed --packages --py-files",
        # Kafka, Debezium, Delta, Iceberg, Redis
        "delivery.timeout.ms kafka.metadata.max.age.ms schemas.enable time.precision.mode decimal.handling.mode",
        "io.debezium.time.ZonedTimestamp ZonedTimestamp ExtractNewRecordState MGET",
        "streaming-skip-overwrite-snapshots streaming-skip-delete-snapshots",
        # PostgreSQL, its clients and those of Arrow Flight
        "DEFERRABLE FETCH_COUNT setFetchSize preferQueryMode binaryTransfer UseDeclareFetch sslmode",
        "UseServerSidePrepare",
        "ListFlights GetFlightInfo GetSchema DoGet DoExchange CommandGetXdbcTypeInfo extra_info executemany autocommit",
        "adbc_get_objects adbc_get_table_schema adbc_get_info getTables getObject getString getTimestamp",
        "OffsetDateTime.class ProgrammingError NotSupportedError pg_get_userbyid",
        # HTTP and browsers
        "Accept EventSource Last-Event-ID If-None-Match HttpOnly SameSite Sec-Fetch-Site Origin Host Secure",
        "Content-Security-Policy",
        # Python's libraries, and what they give to examples
        "to_numpy prometheus_client Decimal table.schema.metadata row.dest row._3 _x state._replace",
        # programs
        "uv mvn moto psql curl venv-pack conda-pack prometheus-client python3 PYTHON --help increase()",
        # tags of document 002
        "isStateful isLearner beingLearned isReady",
    )
    for name in names.split()
}
"""What documents name that is not of this repository, by whose it is. A name that is ours does not belong here."""
COMMENT = re.compile(r"""((?:[^#"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*)#+ ?(.*)""")
"""A line of code, its texts skipped, and the comment at its end."""
CHECKING = re.compile(r"_*(assert|check|expect|verify)(_|[A-Z]|$)|(raises|warns|fail|run_state_machine_as_test)$")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
Fault = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """One text file of the repository; ``path`` is relative to its root."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All but the contexts of names, each before those in it."""
        found: list[ast.AST] = [self.tree]
        for node in found:
            for value in vars(node).values():
                if isinstance(value, list):
                    found += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                    found.append(value)
        return found

    @cached_property
    def _by_type(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    def of(self, *types: type[Node]) -> list[Node]:
        """Its nodes of these types, which have no subtypes."""
        return [node for type_ in types for node in cast("list[Node]", self._by_type.get(type_, ()))]

    @property
    def definitions(self) -> list[ast.AST]:
        """The nodes that define a name, and the texts."""
        names: list[ast.Name | ast.Attribute] = self.of(ast.Name, ast.Attribute)
        stored = [node for node in names if isinstance(node.ctx, ast.Store)]
        return [*self.of(ast.ClassDef), *self.functions, *self.of(ast.arg, ast.keyword), *stored, *self.texts]

    @property
    def texts(self) -> list[ast.Constant]:
        """All but docstrings."""
        statements = {id(node.value) for node in self.of(ast.Expr)}
        return [
            node for node in self.of(ast.Constant) if isinstance(node.value, str | bytes) and id(node) not in statements
        ]

    @cached_property
    def functions(self) -> list[Function]:
        return self.of(ast.FunctionDef, ast.AsyncFunctionDef)

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_pure(self) -> bool:
        return self.path.removeprefix("src/upriver/").startswith(PURE)

    @cached_property
    def imported(self) -> list[tuple[str, str]]:
        """The names that it imports, each with what it names."""
        return list(_imported(self.of(ast.Import), self.of(ast.ImportFrom)))

    @cached_property
    def named(self) -> list[tuple[ast.expr, str]]:
        """Each name and attribute chain with its dotted name, imports resolved: ``np.random`` is numpy.random."""
        imported = dict(self.imported)
        found: list[tuple[ast.expr, str]] = []
        for node in self.of(ast.Name, ast.Attribute):
            if dotted := _dotted(node):
                head, dot, rest = dotted.partition(".")
                found.append((node, imported.get(head, head) + dot + rest))
        return found

    @cached_property
    def checkers(self) -> frozenset[str]:
        """Its functions that check something, themselves or through each other."""
        found = {function.name for function in self.functions if _asserts(self, function)}
        while more := {f.name for f in self.functions if f.name not in found and found & self.called_in(f)}:
            found |= more
        return frozenset(found)

    @cached_property
    def _calls(self) -> list[tuple[int, str]]:
        """Each call's line and the last part of the called name, by line."""
        calls = [(node.lineno, node.func) for node in self.of(ast.Call)]
        names = [(line, getattr(called, "attr", "") or getattr(called, "id", "")) for line, called in calls]
        return sorted(names)

    def called_in(self, function: Function) -> set[str]:
        """What it calls, and the functions in it."""
        start, end = (bisect_left(self._calls, (line,)) for line in (function.lineno, (function.end_lineno or 0) + 1))
        return {name for _, name in self._calls[start:end]}

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """Comments, and texts in several words, each with its first line; of a document, all."""
        if not self.path.endswith(".py"):
            return [(1, self.text)]
        texts = [(node, node.value) for node in self.of(ast.Constant)]
        found = [(node.lineno, text) for node, text in texts if isinstance(text, str) and " " in text]
        last = (-1, -1)
        for line, column, text in self._comments():
            if (line - 1, column) == last:
                start, before = found.pop()
                found.append((start, f"{before}\n{text}"))
            else:
                found.append((line, text))
            last = (line, column)
        return found

    def _comments(self) -> Iterator[tuple[int, int, str]]:
        """Each with its line and column. A line of a text that looks like code with a comment passes for one."""
        for number, line in enumerate(self.text.splitlines(), 1):
            if "#" in line and (comment := COMMENT.match(line)):
                yield number, comment.end(1), comment[2]


def _dotted(node: ast.expr) -> str:
    """The dotted name that an expression is, or none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if head := _dotted(value):
            return f"{head}.{name}"
    return ""


def _imported(modules: list[ast.Import], names_of: list[ast.ImportFrom]) -> Iterator[tuple[str, str]]:
    for name in (name for node in modules for name in node.names):
        yield (name.asname, name.name) if name.asname else (name.name.split(".")[0],) * 2
    for node in names_of:
        yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


LOADING_AT_FIRST_USE = {
    ("src/upriver/__init__.py", "__getattr__"),  # naming upriver.App is what loads pyspark
    ("src/upriver/client/client.py", "address_in"),  # only connect(root=...) needs the lake
    ("src/upriver/client/scans.py", "_lake_scan"),  # all other calls of a client need neither lake nor engine
}


def no_own_import_inside_a_function(source: Source) -> Iterator[Fault]:
    imports: list[ast.Import | ast.ImportFrom] = source.of(ast.Import, ast.ImportFrom)
    own = [node.lineno for node in imports if _is_own(node)]
    for function in source.functions if own else ():
        if (source.path, function.name) in LOADING_AT_FIRST_USE:
            continue
        for line in own:
            if function.lineno <= line <= (function.end_lineno or 0):
                yield line, f"{function.name} imports our own package: it hides a cycle; import at the top"


def _is_own(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or (node.module or "").split(".")[0] in OWN
    return any(name.name.split(".")[0] in OWN for name in node.names)


def init_only_re_exports(source: Source) -> Iterator[Fault]:
    if not source.path.endswith("/__init__.py"):
        return
    for node in source.tree.body:
        names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        allowed = isinstance(node, ast.Import | ast.ImportFrom) or names in (["__all__"], ["__version__"])
        allowed |= isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        allowed |= isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if source.path == "src/upriver/__init__.py":
            allowed |= isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        if not allowed:
            yield node.lineno, "an __init__.py holds imports and __all__ only: move this to a module with a name"


def pure_code_calls_nothing_banned(source: Source) -> Iterator[Fault]:
    if not source.is_pure:
        return
    imports = source.of(ast.Import)
    used = [(node.lineno, name) for node, name in source.named]
    for line, name in used + [(node.lineno, name.name) for node in imports for name in node.names]:
        if BANNED_IN_PURE.fullmatch(name):
            yield line, f"{name} in code that must give the same for the same events"


def unpickles_in_one_place(source: Source) -> Iterator[Fault]:
    if source.is_test:
        return
    allowed: set[int] = set()
    for function in source.functions:
        if (source.path, function.name) == UNPICKLING:
            allowed.update(range(function.lineno, (function.end_lineno or 0) + 1))
    imported = [(1, origin) for _, origin in source.imported]
    for keyword in source.of(ast.keyword):
        if keyword.arg == "allow_pickle":
            yield keyword.value.lineno, "allow_pickle: a file that runs what it holds"
    for line, name in [(node.lineno, name) for node, name in source.named] + imported:
        if UNPICKLES.fullmatch(name) and line not in allowed:
            yield line, f"{name} runs what it reads: only {UNPICKLING[1]} of {UNPICKLING[0]} may, after authentication"


def limits_name_their_unit(source: Source) -> Iterator[Fault]:
    lines = source.text.splitlines()
    for node, following in zip_longest(source.tree.body, source.tree.body[1:]):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        commented = any("#" in line for line in lines[max(node.lineno - 2, 0) : node.lineno])
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        for name in (target.id for target in targets if isinstance(target, ast.Name)):
            if re.search("_max$", name, re.IGNORECASE) and not (UNIT.search(name) or commented or documented):
                yield node.lineno, f"{name} does not say of what: put the unit in the name, or explain it"


def no_sleep_in_tests(source: Source) -> Iterator[Fault]:
    if source.is_test:
        for node, name in source.named:
            if name in ("time.sleep", "asyncio.sleep"):
                yield node.lineno, "a test sleeps: wait for what it waits for"


def no_test_imports_another(source: Source) -> Iterator[Fault]:
    if source.is_test:
        for name, origin in source.imported:
            if origin.startswith(("tests.", "test_")):
                yield 1, f"{name} is another test's: move it to a module of tests/support"


def no_mocks_of_our_own(source: Source) -> Iterator[Fault]:
    if not source.is_test:
        return
    for name, origin in source.imported:
        if origin.startswith(("unittest.mock", "mock.")) or origin == "mock":
            yield 1, f"{name} is a mock: give the real class a real collaborator"
    imported = dict(source.imported)
    for node in source.of(ast.Call):
        if _dotted(node.func).endswith("monkeypatch.setattr") and node.args:
            first = ast.unparse(node.args[0]).strip("'\"")
            head, *rest = first.split(".")
            if ".".join([imported.get(head, head), *rest]).split(".")[0] in OWN:
                yield node.lineno, f"{first} is patched: a test of our classes uses our classes"


def every_test_checks_something(source: Source) -> Iterator[Fault]:
    if not source.is_test:
        return
    helpers = {name for name, _ in source.imported if name in checkers()} | source.checkers
    for function in source.functions:
        if function.name.startswith("test_") and not (
            _asserts(source, function) or helpers & source.called_in(function)
        ):
            yield function.lineno, f"{function.name} asserts nothing"


def _asserts(source: Source, function: Function) -> bool:
    asserted = any(function.lineno <= node.lineno <= (function.end_lineno or 0) for node in source.of(ast.Assert))
    return asserted or any(CHECKING.match(name) for name in source.called_in(function))


def a_test_is_in_the_folder_of_its_package(source: Source) -> Iterator[Fault]:
    if not source.is_test or source.path.endswith("/conftest.py"):
        return
    folder, _, name = source.path.removeprefix("tests/").rpartition("/")
    if folder not in {"", *PACKAGES, *OTHER_TESTS, *HELPERS}:
        yield 1, f"tests/{folder} is the folder of no package of src/upriver"
    elif name.startswith("test_") == (folder in HELPERS):
        yield 1, "tests are in the folder of their package, and what they share in tests/support"
    elif folder in PACKAGES - OTHER_TESTS:
        package = f"upriver.{folder.replace('/', '.')}."
        if not any(origin.startswith(package) for origin in _imported_with_helpers(source)):
            yield 1, f"it imports nothing of {package[:-1]}: move it to the tests of what it imports"


def _imported_with_helpers(source: Source) -> set[str]:
    """What a test imports, and what the modules of tests/support that it imports do."""
    found, to_read = set[str](), [source]
    while to_read:
        new = {origin for _, origin in set(to_read.pop().imported)} - found
        found |= new
        to_read += [SUPPORT[origin.split(".")[0]] for origin in new if origin.split(".")[0] in SUPPORT]
    return found


def names_the_actor(source: Source) -> Iterator[Fault]:
    if source.path == "tests/test_tidy.py":
        return
    for start, text in source.prose:
        for match in NO_ACTOR.finditer(text):
            words = " ".join(match[0].split()).lstrip(".:;?!( ")
            yield start + text.count("\n", 0, match.end()), f"{words!r}: name the actor of this sentence"


def cites_what_is_there(source: Source) -> Iterator[Fault]:
    if source.path == "tests/test_tidy.py":
        return
    for start, text in source.prose:
        for match in CITED.finditer(text):
            name = match[1] or match[2]
            if name not in FILES:
                yield start + text.count("\n", 0, match.start()), f"{name} is not in the repository"


def names_in_code_font_are_there(source: Source) -> Iterator[Fault]:
    """Of documents, and of the comments of what is no test. The table of functions is made from the code."""
    if source.path in ("CHANGELOG.md", "docs/reference/functions.md") or source.is_test:
        return
    if source.path.endswith(".md"):
        found = list(spans_of(source.text))
        for line, code in examples_of(source.text):
            yield from ((line, f"{name} is not there") for name in code_names().unknown_in_example(code))
    elif source.path.endswith(".py"):
        found = [(start, span) for start, text in source.prose for _, span in spans_of(text) if "``" in text]
    else:
        return
    for line, span in found:
        if span not in FILES and f"{span.removeprefix('.')}.py" not in FILES:
            yield from ((line, f"{name} is not there") for name in code_names().unknown(span, NAMES_OF_OTHERS))


@cache
def code_names() -> CodeNames:
    """Of all that is no test, and of what the tests are set up with."""
    modules = [source for source in ALL if source.path.endswith(".py")]
    shared = ("tests/conftest.py", "tests/support/servers/")
    ours = [source for source in modules if not source.is_test or source.path.startswith(shared)]
    tests = {function.name for source in modules if source.is_test for function in source.functions}
    return CodeNames(
        ((source.text, source.definitions) for source in ours), {n for n in tests if n.startswith("test_")}
    )


def names_no_home(source: Source) -> Iterator[Fault]:
    for found in HOME_PATH.finditer(source.text):
        yield source.text.count("\n", 0, found.start()) + 1, "a path of one machine"


def nothing_left_over(source: Source) -> Iterator[Fault]:
    for found in LEFTOVER.finditer(source.text):
        yield source.text.count("\n", 0, found.start()) + 1, "a leftover marker: do it, or open an issue"


CHANGES = re.compile("add|append|appendleft|clear|discard|extend|insert|pop|popleft|remove|setdefault|update")
COMPONENTS = {"epochs", "files"}
"""Fields with components in them whose own methods are called so: ``PublishedEpochs.add``, ``Files.remove``."""
ARRAYS = {"cells"}
"""Fields that give a growing array as it is now, to be read and written: ``Column.cells``."""
PRIVATE_OF_OTHERS = {
    "_jdf",
    "_jsc",
    "_jsparkSession",
    "_jsq",
    "_jvm",
    "_gateway",
    "_gateway_client",
    "_exit",
    "_make",
    "_advance",
}
"""Spark's doors to its JVM, names of Python's that only look private, and the step of sqlglot's parser, which has no
public place where steps are counted."""


def components_own_their_fields(source: Source) -> Iterator[Fault]:
    """A component holds the other components in private fields, and changes no field of theirs. A private name is seen
    by ``self``, by the methods of its class in other instances, and as ``Class._name`` in the class's module."""
    if not source.path.startswith("src/"):
        return
    for node in source.of(ast.Attribute, ast.Subscript, ast.Call):
        match node:
            case ast.Attribute(value=ast.Attribute() as held, attr=field, ctx=ast.Store() | ast.Del()):
                if ast.unparse(held).startswith("self._"):
                    yield node.lineno, f"{ast.unparse(node)} is assigned: {field} belongs to {held.attr}"
            case ast.Subscript(
                value=ast.Attribute(value=ast.Attribute(), attr=name) as of, ctx=ast.Store() | ast.Del()
            ):
                if name not in ARRAYS and ast.unparse(of).startswith("self._"):
                    yield node.lineno, f"{ast.unparse(of)} is changed by another component"
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Attribute(), attr=of_name) as of, attr=name)
            ):
                if CHANGES.fullmatch(name) and of_name not in COMPONENTS and ast.unparse(of).startswith("self._"):
                    yield node.lineno, f"{ast.unparse(of)} is changed by another component"
            case ast.Attribute(attr=name) if re.match("_(?!_)", name) and name not in PRIVATE_OF_OTHERS:
                if not _is_at_home(source, node):
                    yield node.lineno, f"{ast.unparse(node)} is private to another object"


def _is_at_home(source: Source, private: ast.Attribute) -> bool:
    if not isinstance(private.value, ast.Name):
        return False
    owner = private.value.id
    for of in source.of(ast.ClassDef):
        is_inside = of.lineno <= private.lineno <= (of.end_lineno or 0)
        if owner == of.name or (is_inside and (owner in ("self", "cls") or private.attr in _members(of))):
            return True
    return False


@cache
def _members(of: ast.ClassDef) -> set[str]:
    """The methods of a class, its declared fields, and what its methods assign to ``self``."""
    found: set[str] = set()
    for node in ast.walk(of):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


CALLED_BY_OTHERS = {
    name
    for names in (
        # Arrow Flight, uvicorn, Spark, pytest, io
        "start_call sending_headers",
        "next_event send_400_response",
        "streamReader initialOffset getDefaultReadLimit reportLatestOffset prepareForTriggerAvailableNow",
        "pytest_configure pytest_runtest_protocol pytest_unconfigure",
        "readinto seekable",
        # steps of campaigns in tests/support, whose names are put together
        "_executor _extra _broker",
    )
    for name in names.split()
}
"""What no code of ours names, though it is no dead code."""


def dead_names(sources: list[Source]) -> dict[str, tuple[str, int]]:
    """What is defined and never named elsewhere: functions, classes, constants and members of classes, with the place
    of each. A document of users names what is public; those on internals only tell of it."""
    places = [(name, source.path, span) for source in sources for name, span in _definitions(source)]
    uses: dict[str, list[tuple[str, int]]] = {name: [] for name, _, _ in places}
    for source in sources:
        for name, line in _names_used(source):
            if name in uses:
                uses[name].append((source.path, line))
    return {
        name: (path, span.start)
        for name, path, span in places
        if all(used == path and line in span for used, line in uses[name])
    }


def _definitions(source: Source) -> Iterator[tuple[str, range]]:
    """The names of modules and classes that a source of ours defines, but for Python's own, each with its lines."""
    if not source.path.startswith(("src/", "simulator/", "tests/support/")) or not source.path.endswith(".py"):
        return
    blocks: list[ast.Module | ast.ClassDef] = [source.tree, *source.of(ast.ClassDef)]
    for node in (node for block in blocks for node in block.body):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        yield from ((name, range(node.lineno, (node.end_lineno or 0) + 1)) for name in names if name[:2] != "__")


def _names_used(source: Source) -> Iterator[tuple[str, int]]:
    if not source.path.endswith(".py"):
        if source.path != "CHANGELOG.md" and not source.path.startswith("docs/internals/"):
            yield from ((name, 0) for name in re.findall(r"\w+", source.text))
        return
    yield from ((node.id, node.lineno) for node in source.of(ast.Name) if isinstance(node.ctx, ast.Load))
    yield from ((node.attr, node.lineno) for node in source.of(ast.Attribute))
    yield from ((node.arg, node.lineno) for node in source.of(ast.keyword) if node.arg)
    yield from ((name, node.lineno) for node in source.of(ast.MatchClass) for name in node.kwd_attrs)
    yield from ((name.name, node.lineno) for node in source.of(ast.ImportFrom) for name in node.names)
    for node in source.of(ast.Constant):
        if isinstance(node.value, str) and " " not in node.value:
            yield from ((name, node.lineno) for name in re.findall(r"\w+", node.value))


def _texts(*patterns: str) -> list[Source]:
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    return [Source(str(path.relative_to(ROOT)), path.read_text()) for path in paths]


CODE = _texts("src/**/*.py", "simulator/**/*.py", "benchmarks/**/*.py", "tests/**/*.py")
ALL = CODE + _texts(
    "*.md",
    "*.toml",
    "*.yml",
    "examples/*.py",
    ".importlinter",
    "Makefile",
    ".ci/*",
    "scripts/*",
    "docs/**/*.md",
    "docs/**/*.svg",
)
FILES = {
    "/".join(path.parts[start:])
    for top in ("src", "simulator", "benchmarks", "tests", "docs", "scripts", "examples", ".")
    for path in (file.relative_to(ROOT) for file in ROOT.glob("*.*" if top == "." else f"{top}/**/*"))
    for start in range(len(path.parts))
}
"""Each file and folder by its path, and by every end of it."""


@cache
def checkers() -> frozenset[str]:
    """All functions of tests that check something."""
    return frozenset(name for source in CODE if source.is_test for name in source.checkers)


SUPPORT = {Path(source.path).stem: source for source in CODE if source.path.startswith("tests/support/")}
PACKAGES = {
    path.parent.relative_to(ROOT / "src" / "upriver").as_posix() for path in ROOT.glob("src/upriver/*/**/__init__.py")
}
OTHER_TESTS = {"spark", "cluster", "servers", "simulator", "benchmarks"}
"""Folders of tests that need Spark, or processes, and of tests of what is not in the wheel."""
HELPERS = {"support", "support/programs", "support/servers"}

Rule = Callable[[Source], Iterator[Fault]]
CODE_RULES: list[Rule] = [
    no_own_import_inside_a_function,
    init_only_re_exports,
    pure_code_calls_nothing_banned,
    unpickles_in_one_place,
    limits_name_their_unit,
    no_sleep_in_tests,
    no_mocks_of_our_own,
    every_test_checks_something,
    a_test_is_in_the_folder_of_its_package,
    no_test_imports_another,
    components_own_their_fields,
]
TEXT_RULES: list[Rule] = [
    names_no_home,
    nothing_left_over,
    names_the_actor,
    cites_what_is_there,
    names_in_code_font_are_there,
]


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    """The collector would go through a million nodes again and again, and find nothing."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.mark.parametrize(
    ("rule", "sources"),
    [(rule, CODE) for rule in CODE_RULES] + [(rule, ALL) for rule in TEXT_RULES],
    ids=[rule.__name__ for rule in CODE_RULES + TEXT_RULES],
)
def test_the_house_is_tidy(rule: Rule, sources: list[Source]) -> None:
    assert len(sources) > 10
    faults = [f"{source.path}:{line}: {text}" for source in sources for line, text in rule(source)]
    assert not faults, "\n".join(["", *faults])


def test_every_rule_that_is_shown_to_bite_runs() -> None:
    assert {rule for rule, _, _ in BAD} == {*CODE_RULES, *TEXT_RULES}


def test_nothing_is_dead() -> None:
    dead = dead_names(ALL)
    assert {name: place for name, place in dead.items() if name not in CALLED_BY_OTHERS} == {}
    assert CALLED_BY_OTHERS - dead.keys() == set()


def test_a_name_that_only_its_own_definition_names_is_dead() -> None:
    defined = "LIMIT = 1\ndef f(n):\n    return f(n - LIMIT)\nclass C:\n    a: int = 1\n    def m(self): ...\n"
    module = Source(MACHINE, defined)
    assert dead_names([module]) == {"f": (MACHINE, 2), "C": (MACHINE, 4), "a": (MACHINE, 5), "m": (MACHINE, 6)}
    user = Source("benchmarks/b.py", "from m import C\ngetattr(C().m(a=1), 'f')")
    assert dead_names([module, user]) == {}
    assert dead_names([module, Source("docs/guide/a.md", "`f`, `C.m`, `C.a`")]) == {}
    assert len(dead_names([module, Source("docs/internals/a.md", "`f`, `C.m`, `C.a`")])) == 4


def test_a_class_name_occurs_once() -> None:
    sources = [source for source in CODE if not source.is_test]
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(source.path)
    assert len(places) > 500
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


MACHINE, TEST, INIT = "src/upriver/worker/m.py", "tests/test_m.py", "src/upriver/state/__init__.py"
BAD = [
    (no_own_import_inside_a_function, MACHINE, "def f():\n    from upriver.ids import Epoch"),
    (no_own_import_inside_a_function, TEST, "def f():\n    import upriver.ids"),
    (no_own_import_inside_a_function, MACHINE, "def f():\n    from . import rules"),
    (no_own_import_inside_a_function, "src/upriver/client/scans.py", "def f():\n    from upriver.lake import scan"),
    (init_only_re_exports, INIT, "LIMIT = 3"),
    (init_only_re_exports, INIT, "def __getattr__(name): ..."),
    (init_only_re_exports, "src/upriver/__init__.py", "def connect(): ..."),
    (pure_code_calls_nothing_banned, MACHINE, "import time\nnow = time.monotonic()"),
    (pure_code_calls_nothing_banned, MACHINE, "from time import time as now\nt = now()"),
    (pure_code_calls_nothing_banned, MACHINE, "from datetime import datetime\nt = datetime.now()"),
    (pure_code_calls_nothing_banned, MACHINE, "import random\nx = random.random()"),
    (pure_code_calls_nothing_banned, MACHINE, "import numpy as np\nx = np.random.default_rng()"),
    (pure_code_calls_nothing_banned, MACHINE, "from uuid import uuid4\nx = uuid4()"),
    (pure_code_calls_nothing_banned, "src/upriver/vnodes.py", "x = hash('a')"),
    (pure_code_calls_nothing_banned, MACHINE, "import os\nx = os.environ['A']"),
    (pure_code_calls_nothing_banned, MACHINE, "with open('a') as f: ..."),
    (pure_code_calls_nothing_banned, MACHINE, "import pyarrow.flight"),
    (pure_code_calls_nothing_banned, MACHINE, "from pyarrow import fs\nx = fs.LocalFileSystem()"),
    (unpickles_in_one_place, MACHINE, "import pickle\nx = pickle.loads(b'')"),
    (unpickles_in_one_place, MACHINE, "from pickle import load as read"),
    (unpickles_in_one_place, "src/upriver/spark/s.py", "from pyspark import cloudpickle\nx = cloudpickle.loads(b'')"),
    (unpickles_in_one_place, MACHINE, "import numpy as np\nx = np.load('a', allow_pickle=True)"),
    (unpickles_in_one_place, UNPICKLING[0], "import pickle\ndef other(x): return pickle.loads(x)"),
    (unpickles_in_one_place, MACHINE, "x = eval('1')"),
    (limits_name_their_unit, MACHINE, "\n\nBUFFER_MAX = 10"),
    (no_sleep_in_tests, TEST, "from time import sleep\ndef test_a():\n    sleep(1)\n    assert True"),
    (no_mocks_of_our_own, TEST, "from unittest.mock import Mock"),
    (no_mocks_of_our_own, TEST, "from unittest import mock"),
    (
        no_mocks_of_our_own,
        TEST,
        "from upriver import ids\ndef test_a(monkeypatch):\n    monkeypatch.setattr(ids, 'a', 1)",
    ),
    (no_mocks_of_our_own, TEST, "def test_a(monkeypatch):\n    monkeypatch.setattr('upriver.ids.Epoch', 1)"),
    (every_test_checks_something, TEST, "def test_a():\n    f(1)"),
    (every_test_checks_something, TEST, "def f(x):\n    return x\ndef test_a():\n    f(1)"),
    (a_test_is_in_the_folder_of_its_package, "tests/machines/test_m.py", "from upriver.worker import worker"),
    (a_test_is_in_the_folder_of_its_package, "tests/worker/test_m.py", "from upriver.lake.lake import OwnedLake"),
    (a_test_is_in_the_folder_of_its_package, "tests/worker/test_m.py", "from sql_kit import compared"),
    (a_test_is_in_the_folder_of_its_package, "tests/worker/m_kit.py", "from upriver.worker import worker"),
    (a_test_is_in_the_folder_of_its_package, "tests/support/test_m.py", "from upriver.worker import worker"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._epochs.applied = 1"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._lookups.waiting.clear()"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self, other):\n        return other._waiting"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        return self._epochs._stage"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._cluster.ledger.ended += 1"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._lookups.waiting[1] = 2"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        del self._lookups.waiting[1]"),
    (components_own_their_fields, "src/upriver/lake/m.py", "def f(other):\n    return other._waiting"),
    (
        components_own_their_fields,
        MACHINE,
        "class C:\n    def f(self):\n        self._stage = self._epochs._stage",
    ),
    (no_test_imports_another, TEST, "from tests.worker.test_lookups import asked"),
    (no_test_imports_another, TEST, "from test_lookups import asked"),
    (names_no_home, "docs/a.md", "see /" + "root/project"),
    (names_no_home, "docs/a.md", "cd /" + "home/someone/x"),
    (nothing_left_over, MACHINE, "# TO" + "DO: more"),
    (names_the_actor, "docs/a.md", "A start.\n\nWhoever waits has its answer."),
    (names_the_actor, MACHINE, '"""Who falls behind has less to do."""'),
    (names_the_actor, MACHINE, "# The keys go, and\n# who asks for them is refused."),
    (names_the_actor, MACHINE, 'raise ValueError("there is nobody to ask")'),
    (cites_what_is_there, MACHINE, '"""See docs/internals/nothing.md."""'),
    (cites_what_is_there, "docs/a.md", "It is in `nothing.py`."),
    *(
        (names_in_code_font_are_there, "docs/a.md", f"See `{name}`.")
        for name in (
            *("Spoken", "STRINGS", "Region.applied", "app.look_up", "App(lag=1)", "App(acceptable_lag=1)", "lag_max="),
            *(
                "CHARS_LEAST",
                "lake.no_such_rule",
                'status()["views_of"]',
                "upriver_views_rows",
                "--with-tea",
                "test_tea_*",
            ),
            *("GET /v1/tea", "Upriver-Tea", "teas/<number>.json", "tea(x) + 1", "upriver.spark.tea", "TableTea or not"),
        )
    ),
    (names_in_code_font_are_there, MACHINE, '"""See ``Spoken``."""'),
    (names_in_code_font_are_there, "docs/a.md", "```python\nfrom upriver.sinks import keep_tea\n```"),
    (names_in_code_font_are_there, "docs/a.md", "```python\napp = App(spark, root, tea=1)\n```"),
    (names_in_code_font_are_there, "docs/a.md", "```python\nlog = upriver.App(spark, root)\nlog.drink()\n```"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD, ids=[f"{i}-{bad[0].__name__}" for i, bad in enumerate(BAD)])
def test_a_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


GOOD = [
    (
        no_own_import_inside_a_function,
        "src/upriver/__init__.py",
        "def __getattr__(n):\n    from upriver.app import App",
    ),
    (
        no_own_import_inside_a_function,
        "src/upriver/client/scans.py",
        "def _lake_scan(told):\n    from upriver.lake import scan",
    ),
    (no_own_import_inside_a_function, TEST, "def f():\n    import numpy"),
    (init_only_re_exports, INIT, '"""What it is."""\nfrom upriver.state.runs import Run\n__all__ = ["Run"]'),
    (pure_code_calls_nothing_banned, MACHINE, "import random\ndef f(lots: random.Random): return lots.random()"),
    (pure_code_calls_nothing_banned, MACHINE, "def f(run): return run.open(), run.hash, run.time"),
    (pure_code_calls_nothing_banned, "src/upriver/runtime/loop.py", "import time\nnow = time.monotonic()"),
    (unpickles_in_one_place, UNPICKLING[0], "import pickle\ndef loaded(x): return pickle.loads(x)"),
    (unpickles_in_one_place, MACHINE, "import json, pickle\nx = json.loads(pickle.dumps(1))"),
    (unpickles_in_one_place, TEST, "import pickle\nx = pickle.loads(b'')"),
    (limits_name_their_unit, MACHINE, "BUFFER_ROWS_MAX = 10\nDEPTH_MAX = 3  # levels\nTURN_MAX = 9\n'Events.'"),
    (no_mocks_of_our_own, TEST, "import os\ndef test_a(monkeypatch):\n    monkeypatch.setattr(os, 'a', 1)"),
    (every_test_checks_something, TEST, "def f(x):\n    assert x\ndef g(x): f(x)\ndef test_a():\n    g(1)"),
    (every_test_checks_something, TEST, "def test_a():\n    with pytest.raises(ValueError):\n        f()"),
    (a_test_is_in_the_folder_of_its_package, TEST, "import os"),
    (
        a_test_is_in_the_folder_of_its_package,
        "tests/engine/operators/test_m.py",
        "from upriver.engine.operators.join import Join",
    ),
    (a_test_is_in_the_folder_of_its_package, "tests/worker/test_m.py", "from machines_kit import asked"),
    (a_test_is_in_the_folder_of_its_package, "tests/cluster/test_m.py", "import os"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._told.clear()"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._told = 1"),
    (components_own_their_fields, MACHINE, "class C:\n    def succeed(self, old):\n        self._due = old._due"),
    (components_own_their_fields, MACHINE, "class C:\n    def f(self):\n        self._places.cells[3] = 1"),
    (components_own_their_fields, MACHINE, "class C:\n    def _f(self): ...\nTABLE = {int: C._f}"),
    (components_own_their_fields, "simulator/m.py", "def f(other):\n    return other._waiting"),
    (no_test_imports_another, TEST, "from machines_kit import asked"),
    *(
        (names_in_code_font_are_there, "docs/a.md", f"See `{name}`.")
        for name in (
            *(
                "Region",
                "Region.apply",
                "app.lookup",
                'App(listen="h:1", tokens=Tokens(operator="x"))',
                "keys_max=",
                "ERROR_CHARS_MAX",
                "lake.one_owner",
            ),
            *('status()["views"]', "upriver_view_rows", "--grace", "test_a1_...", "GET /v1/status", "Upriver-Epoch"),
            *("control/<term>.json", "count(x) + 1", "GROUP BY x", "np.isin", "pyarrow.RecordBatch", "date_add(d, 1)"),
        )
    ),
    (names_no_home, "docs/a.md", "https://example.org/" + "home/page, docs/" + "root/x, <root>/app.json"),
    (names_the_actor, "docs/a.md", "A user who asks waits. The worker\nwho has the key answers."),
    (names_the_actor, TEST, "def test_who_waits_is_told() -> None: ..."),
    (cites_what_is_there, MACHINE, '"""See docs/internals/epochs.md; ``worker_loop.py``; <root>/tables/a.py."""'),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD, ids=[f"{i}-{good[0].__name__}" for i, good in enumerate(GOOD)])
def test_a_rule_lets_good_code_pass(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_the_faults_of_mutation_are_of_this_code() -> None:
    faults = tomllib.loads((ROOT / "tests" / "mutation" / "faults.toml").read_text())
    assert len(faults) > 30
    for name, fault in faults.items():
        assert (ROOT / "src" / "upriver" / fault["file"]).read_text().count(fault["before"]) == 1, name
