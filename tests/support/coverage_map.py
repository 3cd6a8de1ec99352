"""Which tests meet which functions of the product, and how long each takes.

As a plugin of pytest (``-p coverage_map``, with ``UPRIVER_COVERAGE`` in the environment) it writes, into that
directory, the lines that each test meets and the seconds that it takes, in one pair of files for each process that runs
tests. As a program (``coverage_map.py DIRECTORY``) it makes maps of them: one of all tests in that directory, and a
smaller one at ``RECORDED``. What happens in other processes, as in Spark's workers, is not seen.
"""

import ast
import json
import os
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

DIRECTORY = "UPRIVER_COVERAGE"
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "upriver"
RECORDED = ROOT / "tests" / "mutation" / "coverage.json"
OF_VERIFY = ("spark", "cluster", "verify")
"""The marks of tests that `make verify` runs, and `make test` does not."""
TESTS_KEPT_MAX = 8
"""Tests of a function that a map keeps in a file: the cheapest ones, of as many files as there are."""


class Recorder:
    """Measures lines by test. What happens between tests is the last one's."""

    def __init__(self, directory: Path) -> None:
        import coverage  # the environment of an older Spark has none, and only reads maps

        directory.mkdir(parents=True, exist_ok=True)
        name = str(directory / f"lines.{os.getpid()}")
        self._coverage = coverage.Coverage(data_file=name, source=[str(SOURCE)], messages=False, config_file=False)
        self._seconds = (directory / f"seconds.{os.getpid()}").open("w", buffering=1)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        began = time.perf_counter()
        result = yield
        tier = "verify" if any(map(item.get_closest_marker, OF_VERIFY)) else "test"
        self._seconds.write(f"{time.perf_counter() - began:.3f}\t{tier}\t{item.nodeid}\n")
        return result

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._seconds.close()


def pytest_configure(config: pytest.Config) -> None:
    if DIRECTORY in os.environ and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Recorder(Path(os.environ[DIRECTORY])))


def functions_of(source: str) -> list[tuple[int, int, str]]:
    """The functions and methods of a module: first and last line, counted from 1, and dotted name. One within another
    is a part of that."""
    found: list[tuple[int, int, str]] = []

    def visit(nodes: Iterable[ast.AST], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found.append((first, node.end_lineno or first, prefix + node.name))
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try):
                visit(ast.iter_child_nodes(node), prefix)

    visit(ast.parse(source).body, "")
    return sorted(found)


class Functions:
    """The functions of one module by line."""

    def __init__(self, source: str) -> None:
        self._spans = functions_of(source)
        self._starts = [first for first, _, _ in self._spans]

    def at(self, line: int) -> str:
        """The function that has this line; "" if none has."""
        place = bisect_right(self._starts, line) - 1
        return self._spans[place][2] if place >= 0 and line <= self._spans[place][1] else ""


@dataclass(frozen=True)
class CoverageMap:
    """seconds: by test. of_verify: the tests that are not of ``make test``. tests: by function, ``path below
    src/upriver:dotted name``, the tests that meet it."""

    seconds: Mapping[str, float]
    of_verify: frozenset[str]
    tests: Mapping[str, Sequence[str]]

    @classmethod
    def recorded(cls, directory: Path) -> "CoverageMap":
        """What the plugin has written there."""
        import coverage

        lines = (line for path in directory.glob("seconds.*") for line in path.read_text().splitlines())
        told = {test: (float(took), tier) for took, tier, test in (line.split("\t", 2) for line in lines)}
        seconds = {test: took for test, (took, _) in told.items()}
        of_verify = frozenset(test for test, (_, tier) in told.items() if tier == "verify")
        tests: dict[str, set[str]] = defaultdict(set)
        for path in directory.glob("lines.*"):
            data = coverage.CoverageData(str(path))
            data.read()
            for file in data.measured_files():
                module, functions = file.rpartition("/src/upriver/")[2], Functions(Path(file).read_text())
                for line, contexts in data.contexts_by_lineno(file).items():
                    if name := functions.at(line):
                        tests[f"{module}:{name}"].update(test for test in contexts if test in seconds)
        in_order = {name: sorted(found, key=seconds.__getitem__) for name, found in sorted(tests.items())}
        return cls(seconds, of_verify, in_order)

    def smaller(self) -> "CoverageMap":
        """With at most ``TESTS_KEPT_MAX`` tests a function."""
        kept = {name: _of_many_files(found) for name, found in self.tests.items()}
        used = {test for found in kept.values() for test in found}
        return CoverageMap({test: self.seconds[test] for test in used}, self.of_verify & used, kept)

    def of(self, functions: Iterable[str]) -> list[str]:
        """The tests that meet one of these functions, the cheapest first."""
        found = {test for name in functions for test in self.tests.get(name, ())}
        return sorted(found, key=self.seconds.__getitem__)

    def affordable(self, tests: Sequence[str], seconds_max: float) -> list[str]:
        """The first of these tests, which take so many seconds at most, and one at least: each file's together, since
        they share what is made once for them, and the cheapest file first."""
        spent = list(accumulate(self.seconds[test] for test in tests))
        files: dict[str, list[str]] = defaultdict(list)
        for test in tests[: max(1, bisect_right(spent, seconds_max))]:
            files[test.partition("::")[0]].append(test)
        cost = {file: sum(map(self.seconds.__getitem__, found)) for file, found in files.items()}
        return [test for file in sorted(files, key=cost.__getitem__) for test in files[file]]

    def write(self, path: Path) -> None:
        """As JSON, a line for each test and for each function."""
        names = sorted(self.seconds)
        places = {test: place for place, test in enumerate(names)}
        tests = [[test, round(self.seconds[test], 2), *["verify"] * (test in self.of_verify)] for test in names]
        functions = [[name, sorted(places[test] for test in found)] for name, found in self.tests.items()]
        parts = (",\n".join(json.dumps(one, separators=(",", ":")) for one in part) for part in (tests, functions))
        path.write_text("[[\n{}\n],[\n{}\n]]\n".format(*parts))

    @classmethod
    def read(cls, path: Path) -> "CoverageMap":
        tests, functions = json.loads(path.read_text())
        names = [test for test, *_ in tests]
        return cls(
            {test: seconds for test, seconds, *_ in tests},
            frozenset(test for test, _, *tier in tests if tier),
            {name: [names[place] for place in places] for name, places in functions},
        )


def _of_many_files(tests: Sequence[str]) -> list[str]:
    """The first ``TESTS_KEPT_MAX``, when the first test of each file goes first, then the second, and so on."""
    turns: dict[str, int] = defaultdict(int)
    in_turn = []
    for place, test in enumerate(tests):
        file = test.partition("::")[0]
        in_turn.append((turns[file], place, test))
        turns[file] += 1
    return [test for _, _, test in sorted(in_turn)[:TESTS_KEPT_MAX]]


def main() -> None:
    directory = Path(sys.argv[1])
    found = CoverageMap.recorded(directory)
    found.write(directory / "map.json")
    found.smaller().write(RECORDED)
    print(f"{len(found.tests)} functions are met by {len(found.seconds)} tests")


if __name__ == "__main__":
    main()
