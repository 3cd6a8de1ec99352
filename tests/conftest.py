"""Fixtures that all tests of a process share: above all, one Spark session."""

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jvm import start_quickly
from soak import SOAK, examples

from upriver.logs import REPEATS

LONG_S_MAX = 3600
"""Seconds after which a long test that hangs fails, beside ``--soak-minutes``."""
OF_TEST = "not spark and not cluster and not servers and not verify"
"""What ``make test`` asks for, beside one app on Spark."""
LONG_FILES = frozenset(
    f"test_{name}.py"
    for name in (
        *("campaigns", "conformance", "functions", "reads", "recorded_expressions", "replays", "rescales", "set_aside"),
        *("tables", "traces"),
    )
)
"""Files whose tests take half a minute and more."""
NONE_OF_TEST = re.compile(r"^pytestmark = pytest\.mark\.(?:spark|cluster|servers|verify)$", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="many more seeds for the simulator, and the long tests")
    parser.addoption("--soak-minutes", type=float, default=15.0, help="how long the soaks of real processes harm them")
    parser.addoption("--only", type=Path, help="a file with names of tests and of files of tests: these, in this order")
    parser.addoption("--campaign-seed", type=int, help="the only seed of the long campaign of faults")
    parser.addoption("--sql-seed", type=int, help="the seed of the random queries on Spark, which is drawn otherwise")


def pytest_configure(config: pytest.Config) -> None:
    """A process started in the background ignores Ctrl-C, and so would all that the tests start or interrupt."""
    if config.getoption("--soak"):
        os.environ[SOAK] = "1"
    # No test is judged by its speed. What else holds (in CI, that nothing is random) stays.
    found = settings.get_profile(settings.get_current_profile_name())
    quiet = [HealthCheck.too_slow]
    settings.register_profile("upriver", found, deadline=None, max_examples=examples(25), suppress_health_check=quiet)
    settings.load_profile("upriver")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start_quickly()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not load a file that has none of the tests that ``-m`` asks for: loading all takes each process 10 s."""
    asked = config.getoption("markexpr")
    if not asked or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    if asked == OF_TEST:
        return bool(NONE_OF_TEST.search(text)) or None
    marks = asked.split(" or ")
    return None if " " in "".join(marks) or any(f"mark.{mark}" in text for mark in marks) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out of a run that is not asked for them. Files with a cluster of their own take longest and
    go first: files are shared out among processes, and at the end none should wait long for another."""
    clusters = {item.path for item in items if item.get_closest_marker("cluster")}
    items.sort(key=lambda item: (item.path not in clusters, item.path.name not in LONG_FILES))
    if config.getoption("--only"):
        names = config.getoption("--only").read_text().splitlines()
        places = {name: place for place, name in enumerate(names)}
        keyed = ((places.get(item.nodeid, places.get(item.nodeid.partition("::")[0], -1)), item) for item in items)
        items[:] = [item for place, item in sorted(keyed, key=itemgetter(0)) if place >= 0]
    long = [item for item in items if item.get_closest_marker("long")]
    for item in long:
        item.add_marker(pytest.mark.timeout(LONG_S_MAX + 60 * config.getoption("--soak-minutes")))
    if config.getoption("--soak"):
        return
    if long:
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)


def pytest_collection_finish() -> None:
    """The collector need not look again and again through what is loaded by now, which takes it half a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is never collected counts as leaked for DuckDB, which says so in forty lines


@pytest.fixture(autouse=True)
def _each_test_sees_all_warnings() -> None:
    """A message that another test has logged within the last minute would be held back."""
    REPEATS.forget()


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of the test's cluster, a fixture of its own (:class:`client_kit.Cluster`)."""
    with cluster.connect() as connected:
        yield connected


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """One S3 server for all tests of the process; each takes roots of its own."""
    from s3_kit import S3Server

    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One local session for all tests of the process: starting it costs seconds."""
    from session import OUR_DAEMON, without_warm_up
    from session import session as start

    memory = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "10"}
    conf = {**OUR_DAEMON, **memory, "spark.sql.session.timeZone": "UTC"}
    session = without_warm_up(start("local[8]", conf))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session with connectors, for all tests of the process; see ``servers.connectors``."""
    from servers.connectors import ConnectedSession

    made = _or_skip(lambda: ConnectedSession(tmp_path_factory.mktemp("ice")))
    yield made
    made.stop()


@pytest.fixture
def kafka_spark(connected: Any) -> Any:
    return _or_skip(lambda: connected.having("kafka"))


@pytest.fixture
def delta_spark(connected: Any) -> Any:
    return _or_skip(lambda: connected.having("delta"))


@pytest.fixture
def iceberg_spark(connected: Any) -> Any:
    """Its catalog ``ice`` holds Iceberg's tables."""
    return _or_skip(lambda: connected.having("iceberg"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One broker for all tests of the process; each takes topics of its own."""
    from servers.kafka import KafkaBroker

    broker = _or_skip(lambda: KafkaBroker(tmp_path_factory.mktemp("kafka")))
    yield broker
    broker.stop()


def _or_skip(make: Callable[[], Any]) -> Any:
    """What is made, unless this machine lacks something for it: then the test is skipped with the reason."""
    from servers.maven import Missing

    try:
        return make()
    except Missing as missing:
        pytest.skip(str(missing))
