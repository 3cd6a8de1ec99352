"""Lists the tests that meet what has changed, the cheapest first, by the recorded map of coverage.

usage: changed.py FILE [COMMIT]. FILE: where the names of tests, or of files of tests, go, one a line. COMMIT: since
when; the last one, or the one before it if nothing has changed since. Says what it leaves out.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coverage_map import RECORDED, ROOT, CoverageMap, Functions

SECONDS_MAX = 80.0
"""Of the tests that are listed, as recorded; two processes share them."""
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
PRODUCT = "src/upriver/"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changed_lines(since: str) -> Iterator[tuple[str, list[int]]]:
    """By file that is there: the lines that are new or other than they were, or that stand beside a removed one."""
    for file in git("diff", "--name-only", "--diff-filter=d", since).splitlines():
        hunks = HUNK.findall(git("diff", "--unified=0", since, "--", file))
        spans = ((int(first), int(count) if count else 1) for first, count in hunks)
        yield file, [line for first, count in spans for line in range(first, first + max(count, 1))]
    for file in git("ls-files", "--others", "--exclude-standard").splitlines():
        yield file, list(range(1, len((ROOT / file).read_bytes().splitlines()) + 1))


def chosen(since: str, found: CoverageMap) -> tuple[list[str], set[str]]:
    """Tests that meet a changed function, and files of tests that have changed themselves. A line outside of all
    functions counts for each function of its module, and so does a function that no test is known to meet."""
    functions, files = set(), set()
    for file, lines in changed_lines(since):
        if file.startswith(PRODUCT) and file.endswith(".py"):
            module, of = file.removeprefix(PRODUCT), Functions((ROOT / file).read_text())
            names = {f"{module}:{name}" for name in map(of.at, lines)}
            known = {name for name in found.tests if name.startswith(f"{module}:")}
            functions |= names if names <= known else names | known
        elif file.startswith("tests/") and Path(file).name.startswith("test_") and file.endswith(".py"):
            files.add(file)
        elif file.startswith("tests/conformance/"):
            files.add("tests/engine/test_conformance.py")
    tests = [test for test in found.of(functions) if test not in found.of_verify]
    return [test for test in tests if test.partition("::")[0] not in files], files


def main() -> None:
    target, *rest = sys.argv[1:]
    since = rest[0] if rest else "HEAD" if git("status", "--porcelain").strip() else "HEAD~1"
    found = CoverageMap.read(RECORDED)
    tests, files = chosen(since, found)
    listed = [*sorted(files), *found.affordable(tests, SECONDS_MAX)]
    here = [test for test in listed if (ROOT / test.partition("::")[0]).exists()]
    Path(target).write_text("\n".join(here))
    left = len(tests) + len(files) - len(here)
    print(
        f"since {since}: {len(files)} files of tests, {len(here) - len(files)} other tests; {left} more meet the change"
    )


if __name__ == "__main__":
    main()
