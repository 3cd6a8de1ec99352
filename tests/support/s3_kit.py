"""An S3 server on loopback, for the tests of a process; see ``programs/s3_server.py``."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from upriver.lake.address import Root

PROGRAM = Path(__file__).parent / "programs" / "s3_server.py"
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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"lose {name}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def stop(self) -> None:
        self._process.communicate()
