"""Jars from Maven Central for the tests of real servers, fetched once into a cache outside the tree.

The cache is the directory that ``UPRIVER_SERVERS`` names, by default ``upriver-servers`` in the user's cache. Each set
of jars has a directory of its own, named by what was asked for, so another version is fetched beside the old one.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

CACHE = "UPRIVER_SERVERS"
"""The environment variable that names the cache."""
FETCH_S_MAX = 300.0
"""Seconds for some 100 files of 50 MB together."""
REASON_CHARS_MAX = 300
"""Characters of Maven's error that a reason quotes."""


class Missing(Exception):
    """What the tests of a server need and this machine lacks, in a few words."""


@dataclass(frozen=True, slots=True)
class Jars:
    """One artifact with all that it needs at run time.

    artifact: ``group:name:version``. without: patterns ``group:name`` of what it would bring and must not.
    more: artifacts beside it.
    """

    artifact: str
    without: Sequence[str] = ()
    more: Sequence[str] = ()

    def fetched(self) -> list[Path]:
        """The jars, from the cache or by Maven. Raises Missing, with the reason, where Maven cannot fetch them."""
        pom = self._pom()
        name = self.artifact.split(":")[1]
        directory = cache() / f"{name}-{self.artifact.split(':')[2]}-{crc32(pom.encode()):08x}"
        if not directory.exists():
            _fetch(pom, directory, self.artifact)
        return sorted(directory.glob("*.jar"))

    def _pom(self) -> str:
        excluded = "".join(
            f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>"
            for group, name in (pattern.split(":") for pattern in self.without)
        )
        wanted = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            f"<exclusions>{excluded}</exclusions></dependency>"
            for group, name, version in (artifact.split(":") for artifact in (self.artifact, *self.more))
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>upriver</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{wanted}</dependencies></project>"
        )


def cache() -> Path:
    """The directory of all that is fetched."""
    given = os.environ.get(CACHE)
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "upriver-servers")


def _fetch(pom: str, directory: Path, what: str) -> None:
    """Fetch into a directory beside, and rename it: two processes may do so at the same time, and one is first."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(f"{what} is fetched by mvn, which is not on the PATH")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent, prefix="fetching-") as fetching:
        Path(fetching, "pom.xml").write_text(pom)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fetching}/jars"]
        try:
            subprocess.run(
                [maven, "-q", "-B", "-f", f"{fetching}/pom.xml", *goal],
                capture_output=True,
                text=True,
                check=True,
                timeout=FETCH_S_MAX,
            )
        except subprocess.CalledProcessError as error:
            said = " ".join((error.stdout or error.stderr).split())[:REASON_CHARS_MAX]
            raise Missing(f"mvn cannot fetch {what}: {said}") from error
        except subprocess.TimeoutExpired as error:
            raise Missing(f"mvn has not fetched {what} within {FETCH_S_MAX:.0f} s") from error
        if not directory.exists():
            Path(fetching, "jars").rename(directory)
