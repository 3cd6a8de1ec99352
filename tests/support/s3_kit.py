"""An S3 server on loopback, for the tests of a process; see ``programs/s3_server.py``."""

import shutil
import subprocess
import sys
from pathlib import Path
from select import select
from tempfile import TemporaryDirectory
from uuid import uuid4

import pyspark
import pytest

from upriver.lake.address import Root

PROGRAM = Path(__file__).parent / "programs" / "s3_server.py"
POM = Path(__file__).parent / "programs" / "s3a_pom.xml"
HADOOP = "3.5.0"
"""The version in the POM: that of Spark 4.3."""
HELD_S_MAX = 240.0
"""Seconds in which a driver starts and comes to what is held."""
FETCH_S_MAX = 180.0
"""Seconds for 20 MB in some fifty files."""
BUCKET = "lakes"
OVERWRITES = "overwrites"
"""Below a directory of this name, a put is never conditional."""
KEY, SECRET = "an-access-key", "a-secret-key"


class S3Server:
    """The server's process. It ends with this one."""

    def __init__(self) -> None:
        command = [sys.executable, str(PROGRAM), BUCKET]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }
        self.environ = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def new_root(self, scheme: str = "s3") -> Root:
        """A root that no other test has."""
        return self.root(f"{scheme}://{BUCKET}/{uuid4().hex}/lake")

    def root(self, address: str) -> Root:
        return Root(address, self.options)

    def lose_answer(self, name: str) -> None:
        """Carry out the next put of a path that ends with the name, and lose its answer."""
        self._tell(f"lose {name}")

    def hold(self, name: str) -> None:
        """Leave puts of paths that end with the name unanswered."""
        self._tell(f"hold {name}")

    def delay(self, name: str) -> None:
        """Leave the next put of a path that ends with the name unanswered, and no other."""
        self._tell(f"delay {name}")

    def land(self) -> None:
        """Carry out that put."""
        self._tell("land")

    def wait_held(self) -> None:
        """Wait for the first of them."""
        assert self._process.stdout is not None
        assert select([self._process.stdout], [], [], HELD_S_MAX)[0], "no put is held"
        assert self._said() == "held"

    def drop_held(self) -> None:
        """Do not carry them out, and hold no others."""
        self._tell("drop")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        while (said := self._said()) != "done":
            assert said == "held"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """Kill the process: it keeps nothing, and a request that it holds would wait for ever."""
        self._process.kill()
        self._process.communicate()


def s3a_jars() -> Path:
    """The directory of Spark's connector for s3a://, which Maven fetches once. Skips the test where it cannot."""
    hadoop = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")}
    if hadoop != {f"hadoop-client-api-{HADOOP}.jar"}:
        pytest.skip(f"the connector is fetched for Hadoop {HADOOP}, and this Spark has {', '.join(sorted(hadoop))}")
    jars = Path(sys.prefix) / f"s3a-{HADOOP}"
    if not jars.exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("Spark's connector for s3a:// is fetched by mvn, which is not on the PATH")
        with TemporaryDirectory(dir=sys.prefix) as directory:
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}/jars"]
            try:
                command = [maven, "-q", "-B", "-f", str(POM), *goal]
                subprocess.run(command, capture_output=True, check=True, timeout=FETCH_S_MAX)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"mvn cannot fetch Spark's connector for s3a://: {error}")
            Path(directory, "jars").rename(jars)
    return jars
