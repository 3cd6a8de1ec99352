"""Files of a root that are damaged while no app runs: what is started then answers rightly, or refuses and says which
file it is; and has made nothing worse, so that all is well when the file is back. And runs that are damaged while an
app runs: lookups that need the damaged bytes are refused, all others answered."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from rows_kit import differing_rows

from upriver.app import App
from upriver.errors import CorruptFile, WaitTimeout
from upriver.lake.ingest_history import IngestHistory, check_taken
from upriver.lake.lake import Lake
from upriver.lake.runs import WHOLE_BYTES_MAX
from upriver.options import Checkpoints
from upriver.state.runs import BLOCK_BYTES

EVENTS = pa.schema([("k", pa.int64()), ("seq", pa.int64()), ("v", pa.int64())])
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) GROUP BY n"
KEYS, ROWS, EPOCHS = 500, 1_000, 4
KINDS = ("app.json", "epochs/*.json", "tables/*/*/*.arrow", "checkpoints/*/*/manifest.json", "checkpoints/*/*/*.arrows")
SEEDS, SEEDS_SOAK = 2, 40
WAIT_S = 15
"""Seconds for the history to be read, or for a worker to say that it cannot."""


class Tributary:
    """A table of files, and an app on a root that keeps three views of it: of one region, with an exchange, partial."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self._spark, self._files, self._written = spark, directory / "events", 0

    def write(self) -> None:
        first = self._written * ROWS
        self._written += 1
        rows = [(seq * 7919 % KEYS, seq, seq % 101) for seq in range(first, first + ROWS)]
        write_file(self._files, self._written, EVENTS, rows)

    def app(self, root: Path) -> App:
        checkpoints = Checkpoints(interval_s=None)
        app = App(self._spark, str(root), workers=2, vnodes=16, ingest_tasks=1, checkpoints=checkpoints)
        app.table("events", stream(self._spark, self._files, "k long, seq long, v long"), key="k", order_by="seq")
        app.view("counts", COUNTS, key="k", partial=False)
        app.view("sizes", SIZES, key="n", partial=False)
        app.view("read", COUNTS, key="k")
        return app

    def check(self, app: App) -> None:
        """All views are what Spark SQL makes of all files."""
        app.wait(timeout=60)
        self._spark.read.parquet(str(self._files)).createOrReplaceTempView("events")
        expected = self._spark.sql(COUNTS)
        assert differing_rows(app.read("counts"), expected) == 0
        assert differing_rows(app.read("sizes"), self._spark.sql(SIZES)) == 0
        keys = list(range(0, KEYS, 50))
        found = app.lookup("read", keys, timeout=60).to_pylist()
        assert found == [row.asDict() for row in expected.where(f"k % 50 = 0 AND k < {KEYS}").orderBy("k").collect()]

    def try_on(self, root: Path) -> str | None:
        """Start an app, feed it, and see that it answers rightly; or what it says of a file that is damaged."""
        try:
            with self.app(root).start(timeout=60) as app:
                app.wait(timeout=WAIT_S)
                self.write()
                self.check(app)
        except (CorruptFile, WaitTimeout) as error:
            return str(error)
        return None


@pytest.fixture(scope="module")
def tributary(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tributary, Path]:
    """A root of some epochs and checkpoints, of which one builds on another. It is to be copied."""
    directory = tmp_path_factory.mktemp("damage")
    made = Tributary(spark, directory)
    made.write()
    with made.app(directory / "lake").start() as app:
        for epoch in range(1, EPOCHS + 1):
            app.wait(timeout=60)
            if epoch in (2, 4):
                app.checkpoint()
            made.write()
        app.wait(timeout=60)
    return made, directory / "lake"


def cut_short(rng: Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def one_bit_flipped(rng: Random, content: bytes) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def gone(_: Random, __: bytes) -> None:
    return None


def damage(rng: Random, root: Path) -> dict[Path, bytes]:
    """Damage one file or two; what they were."""
    before: dict[Path, bytes] = {}
    how: list[Callable[[Random, bytes], bytes | None]] = [cut_short, one_bit_flipped, gone]
    for _ in range(rng.choice((1, 1, 2))):
        path = rng.choice(sorted(root.glob(rng.choice(KINDS))) or [root / "app.json"])
        if path.exists() and path not in before:
            before[path] = path.read_bytes()
            content = rng.choice(how)(rng, before[path])
            path.unlink() if content is None else path.write_bytes(content)
    return before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(SEEDS_SOAK if metafunc.config.getoption("--soak") else SEEDS))


@pytest.mark.spark
def test_damage_is_made_good_or_named(tributary: tuple[Tributary, Path], tmp_path: Path, seed: int) -> None:
    made, whole = tributary
    root = tmp_path / "lake"
    shutil.copytree(whole, root)
    before = damage(Random(seed), root)
    names = [str(path.relative_to(root)) for path in before]
    said = made.try_on(root)
    print(f"\n{names}: {said or 'made good'}")
    if said is not None:
        assert any(name in said for name in names) or f"{root}/epochs: the last manifests" in said, (names, said)
        assert re.search("[Rr]estore|remove the directory", said), said
        for path, content in before.items():
            path.write_bytes(content)
        assert made.try_on(root) is None


def one_bit_of_each_block_flipped(content: bytes) -> bytes:
    flipped = bytearray(content)
    for place in range(0, len(content), BLOCK_BYTES):
        flipped[place + place % 89] ^= 1
    return bytes(flipped)


def damage_in_place(kind: str, path: Path) -> None:
    """In the file itself, which an app has read some of."""
    if kind == "removed":
        path.unlink()
        return
    content = path.read_bytes()
    with path.open("r+b") as file:
        if kind == "truncated":
            file.truncate(len(content) // 3)
        else:
            file.write(one_bit_of_each_block_flipped(content))


@pytest.mark.spark
def test_a_run_that_changes_under_an_app_is_the_trouble_of_the_keys_that_need_it(spark: Any, tmp_path: Path) -> None:
    keys, per_key = 40_000, 2
    rows = [(number % keys, number, number % 101) for number in range(keys * per_key)]
    write_file(tmp_path / "events", 1, EVENTS, rows)
    totals = {key: sum(v for k, _, v in rows[key::keys]) for key in range(keys)}
    checkpoints = Checkpoints(interval_s=None)
    app = App(spark, str(tmp_path / "lake"), workers=2, vnodes=16, ingest_tasks=1, checkpoints=checkpoints)
    app.table("events", stream(spark, tmp_path / "events", "k long, seq long, v long"), key="k", order_by="seq")
    app.view("read", COUNTS, key="k")
    with app.start(timeout=60):
        app.wait(timeout=60)
        present, cold = list(range(8)), iter(range(1_000, keys, 500))

        def answered(asked: list[int]) -> bool:
            found = {row["k"]: row["total"] for row in app.lookup("read", asked, timeout=60).to_pylist()}
            return found == {key: totals[key] for key in asked}

        assert answered(present)
        whole = {path: path.read_bytes() for path in tmp_path.glob("lake/tables/events/*/*.arrow")}
        assert max(map(len, whole.values())) > WHOLE_BYTES_MAX
        for kind in ("flipped", "truncated", "removed"):
            for path in whole:
                damage_in_place(kind, path)
            asked, refusals = [next(cold) for _ in range(12)], []
            for key in asked:
                try:
                    assert answered([key])  # by what was read, and checked, before
                except CorruptFile as error:
                    refusals.append(str(error))
            assert len(refusals) >= 6, kind
            assert all(any(path.name in said for path in whole) for said in refusals), refusals
            assert answered(present)
            for path, content in whole.items():
                path.write_bytes(content)
            assert answered(asked)


def test_a_batch_that_was_taken_and_that_no_epoch_has_is_missed(tmp_path: Path) -> None:
    """Spark does not give it again, so its rows would be missing from all views."""
    commits = tmp_path / "ingest/events/commits"
    commits.mkdir(parents=True)
    history = IngestHistory()
    check_taken(Lake(str(tmp_path)), history)
    for number in range(2):
        (commits / str(number)).touch()
        (commits / f".{number}.crc").touch()
    history.batches["events"] = 0
    with pytest.raises(CorruptFile, match=r"epochs: the last manifests are gone: batch 1 of table 'events' was taken"):
        check_taken(Lake(str(tmp_path)), history)
    history.batches["events"] = 1
    check_taken(Lake(str(tmp_path)), history)
