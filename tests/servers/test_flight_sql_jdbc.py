"""Flight SQL as JDBC's driver speaks it, which Maven fetches."""

import shutil
import subprocess
from pathlib import Path

import pytest
from doors_kit import KeptRows
from servers.maven import Jars, Missing

from upriver.doors.flight.server import FlightDoor
from upriver.net.server import Listen

pytestmark = pytest.mark.servers

DRIVER = Jars("org.apache.arrow:flight-sql-jdbc-driver:18.3.0")
ASK = Path(__file__).parent.parent / "support" / "flight_sql_jdbc" / "Ask.java"
JAVA_S_MAX = 120.0
"""Seconds that the program may take."""


def test_jdbc_finds_views_their_columns_and_rows() -> None:
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    try:
        jars = DRIVER.fetched()
    except Missing as missing:
        pytest.skip(str(missing))
    door = FlightDoor(KeptRows(), lambda token: token == "s3cret", Listen("127.0.0.1", 0))
    java = ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", ":".join(map(str, jars))]
    try:
        asked = subprocess.run(
            [*java, str(ASK), door.address, "s3cret"], capture_output=True, text=True, timeout=JAVA_S_MAX, check=False
        )
    finally:
        door.close()
    assert asked.returncode == 0, asked.stderr
    said = asked.stdout.splitlines()
    assert said[:-2] == [
        "product Upriver true",
        *("table Routes VIEW", "table everything VIEW", "table totals VIEW"),
        "column customer 12 column 1 of 1 of the key",
        *("column n -5 null", "column total 3 null"),
        "parameters 2 columns 3",
        *("row ada 2 17.50", "row bob 1 20.00"),
        *(
            f"at 2024-01-0{day} 13:00:00.0 2024-01-0{day}T12:00:00Z {delays}"
            for day, delays in enumerate(("[1,2]", "[]", "null", "[3]"), start=1)
        ),
    ]
    assert "views are only read here" in said[-2]
    assert "show the app's token" in said[-1]
