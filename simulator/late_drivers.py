"""Drivers of one object store that succeed each other while the store carries out their writes late.

Each driver ingests the batches of one source, compacts and collects, logs the changes of a view, takes checkpoints,
writes control records and adds an index. After each burst of steps every reader must find what the lake promises.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from uuid import uuid4

import numpy as np
import pyarrow as pa

from simulator.checkers import Violated
from simulator.late_store import Actor, LateFiles, StoredFiles, Write
from upriver.errors import LakeError, LakeInUse, NotRead, NotWritten, ProtocolError
from upriver.hashing import hash64
from upriver.ids import BEGINNING, Epoch, Term, VnodeId
from upriver.lake import checkpoints
from upriver.lake.change_folding import ChangeFolding, FoldLimits
from upriver.lake.change_log import ChangeLog, LogRecord, commit_changes, fence_changes, sweep_changes
from upriver.lake.change_parts import read_part, write_parts
from upriver.lake.collection import collect, remove_litter, superseded
from upriver.lake.control import ControlRecord, sweep_control, write_control
from upriver.lake.ingest_history import IngestHistory, fence
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.spans import EpochSpan
from upriver.lake.upkeep import compact
from upriver.plan.plan import TableSpec, lake_channel
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.state.changes import ChangeCommit, ChangePart, part_schema
from upriver.state.checkpoint import Checkpoint, CheckpointPlace, StateChunk
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.vnodes import Placement

ROOT = "store://lake"
VNODES = 4
EVENTS = TableSpec("events", pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
BY_K, BY_N = ("k",), ("n",)
PLACE = CheckpointPlace("0" * 32, ("a",))
RECORD = LakeRecord(VNODES, (EVENTS,), {"events": (BY_K,)})
VIEW = pa.schema([("k", pa.int64())])
LIMITS = FoldLimits(fanout=3)
BATCHES_AT_FIRST = 14
"""Before any write is late: two more make a segment."""
ROUNDS = 60
"""Of a campaign: each lets one driver run, begins another, or carries out a late write."""
BURST_MAX = 300
"""Steps of one round: a start takes some hundred."""
PAUSE_SHARE = 0.1
"""Of the commits, and of the looks at what nothing may name, those before which a driver pauses."""
BEGIN_SHARE, LAND_SHARE, KILL_SHARE = 0.2, 0.3, 0.03
DRIVERS_MAX = 6
TRIES_MAX = 8
"""Of a commit of the change log, whose answers are lost."""


CHECKER = "late_writes_lose_nothing"
"""A reader finds what the lake promises, and no driver fails that owns the root."""


class LateDriver:
    """One driver's process."""

    def __init__(self, world: "LateWorld", is_calm: bool = False) -> None:
        """is_calm: each of its writes is carried out at once, and it ends when all is done."""
        self._world = world
        self._rng = Random(world.rng.random())
        self._is_calm = is_calm
        self.actor = Actor(self._work)
        self.term = Term(0)
        self.has_started = False
        self.lake: OwnedLake
        self._history = IngestHistory()
        self._is_unsure = False
        self._number, self._begins = 0, Epoch(-1)
        """Of the change log: its last commit, and where it begins; -1 if it has not begun."""
        self._logged = BEGINNING

    def _work(self, actor: Actor) -> None:
        files = LateFiles(self._world.content, actor, Random(self._rng.random()), self._world.in_flight)
        files.is_calm = self._is_calm
        actor.pause()
        self._start(files)
        self.has_started = True
        chores: list[Callable[[], None]] = [self._ingest, self._compact, self._collect, self._log, self._fold]
        chores += [self._checkpoint, self._control]
        if self._is_calm:
            self._ingest()
            for chore in chores:
                chore()
            return
        while True:
            with suppress(NotWritten, NotRead):  # it is tried again
                self._rng.choice((self._ingest, *chores))()

    def _start(self, files: LateFiles) -> None:
        world = self._world
        lake = self.lake = OwnedLake(ROOT, RECORD, {}, files, world.rules)
        self.term = lake.term
        fence(lake)
        log = ChangeLog(lake)
        fence_changes(lake, log)
        end = log.end()
        self._number, self._logged = end.number, end.through
        self._begins = end.begins["v"][0] if "v" in end.begins else Epoch(-1)
        sweep_changes(lake, log)
        newest = checkpoints.newest(lake, PLACE)
        checkpoints.sweep(lake, PLACE, set() if newest is None else {newest}, Epoch(lake.last_epoch() + 1))
        record = lake.record()
        assert record is not None
        self._indexes = record.indexes["events"]
        if BY_N not in self._indexes and self._rng.random() < 0.5:
            self._add_index()
        for span in lake.spans(lake.last_epoch()):
            self._history.add(lake.epochs(span))
        lake.sweep()
        remove_litter(lake, lake.run_paths())

    def _add_index(self) -> None:
        """As ``Backfill``: an index of all epochs that are there."""
        lake, channel = self.lake, lake_channel("events", BY_N)
        done = lake.supplemented(channel)
        for span in lake.spans(lake.last_epoch()):
            epochs = lake.epochs(span)
            if span not in done and "events" in epochs.batches:
                lake.supplement(channel, span, [write_run(lake, BY_N, keys_of(lake, span, BY_K))])
        lake.complete("events", BY_N)
        self._indexes = (BY_K, BY_N)

    def _ingest(self) -> None:
        """The next batch, as ``EpochLog``."""
        lake, epoch = self.lake, Epoch(self._history.last + 1)
        if self._is_unsure and lake.has_epoch(epoch):  # lake.own_epoch_is_found
            found = lake.manifest(epoch)
            if found.term == lake.term:
                self._is_unsure = False
                self._history.add(found)
                return
        batch = self._history.batches.get("events", -1) + 1
        runs = {lake_channel("events", index): (write_run(lake, index, [batch]),) for index in self._indexes}
        manifest = Manifest(epoch=epoch, term=lake.term, table="events", query="q", batch=batch, runs=runs)
        self._is_unsure = True
        lake.publish(manifest)
        self._is_unsure = False
        self._history.add(manifest)
        self._world.counters["epochs"] += 1

    def _compact(self) -> None:
        for _ in compact(self.lake, self.lake.last_epoch()):
            self._world.counters["segments"] += 1

    def _collect(self) -> None:
        self._world.counters["collected"] += collect(
            self.lake, list(superseded(self.lake, self.lake.last_epoch(), float("inf")))
        ).epochs

    def _log(self) -> None:
        """The changes since the last commit: each version adds a row."""
        lake, at = self.lake, self._history.last
        if at <= self._logged:
            return
        first = at if self._begins < 0 else Epoch(self._logged + 1)
        begins = at if self._begins < 0 else self._begins
        commit = ChangeCommit(
            number=self._number + 1,
            through=at,
            term=lake.term,
            made_at=0.0,
            begins={"v": begins},
            parts=parts_of(lake, range(first, at + 1)),
            first=self._number + 1,
        )
        record = LogRecord(view="v", begins=begins, key=("k",), schema=VIEW, fingerprint="v")
        for _ in range(TRIES_MAX):  # as ``ChangePublisher``: no other commit may have its number
            with suppress(NotWritten):
                commit_changes(lake, commit, [record])
                self._number, self._logged, self._begins = commit.number, at, begins
                self._world.counters["commits"] += 1
                return
        raise Exhausted

    def _fold(self) -> None:
        folding = ChangeFolding(self.lake, None, clock=lambda: 1.0, limits=LIMITS)
        self._world.counters["folds"] += folding.fold() is not None
        folding.remove(0.0)

    def _checkpoint(self) -> None:
        lake, epoch = self.lake, self._history.last
        if checkpoints.newest(lake, PLACE) == epoch or not epoch:
            return
        files = checkpoints.StateFiles(lake, PLACE, epoch)
        files.add("a", StateChunk(np.array([epoch], np.uint64), ()))
        made = Checkpoint(epoch=epoch, base=None, regions={"a": "plan"}, files=files.complete())
        checkpoints.publish(lake, PLACE, made)
        self._world.counters["checkpoints"] += 1
        checkpoints.sweep(lake, PLACE, {epoch}, Epoch(epoch + 1))

    def _control(self) -> None:
        self._world.counters["controls"] += 1
        record = ControlRecord(placement=Placement.initial(VNODES, 2))
        write_control(self.lake, record, self._world.counters["controls"], 0.0)
        sweep_control(self.lake)


class Exhausted(Exception):
    """The store refuses everything: the process ends."""


class LateWorld:
    """One store, and the drivers on it. rounds: how many have begun."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES) -> None:
        self.rng = Random(seed)
        self.rules = rules
        self.rounds = 0
        self.content = dict(_begun())
        self.in_flight: list[Write] = []
        self.counters: Counter[str] = Counter()
        self._drivers: list[LateDriver] = []
        self._checked: set[str] = set()
        """The paths at the last check."""

    def play(self) -> None:
        """Raises Violated."""
        try:
            for self.rounds in range(1, ROUNDS + 1):
                self._round()
                self._check()
            while self.in_flight:
                self._land()
            self._check()
            self._end()
        finally:
            for driver in self._drivers:
                driver.actor.kill()

    def _round(self) -> None:
        drawn, alive = self.rng.random(), [driver for driver in self._drivers if not driver.actor.is_over]
        if not alive or (drawn < BEGIN_SHARE and len(alive) < DRIVERS_MAX):
            self._drivers.append(LateDriver(self))
            self.counters["drivers"] += 1
            alive = self._drivers[-1:]
        elif drawn < BEGIN_SHARE + LAND_SHARE and self.in_flight:
            self._land()
            return
        elif drawn < BEGIN_SHARE + LAND_SHARE + KILL_SHARE:
            self.rng.choice(alive).actor.kill()
            return
        driver = alive[-1] if self.rng.random() < 0.6 else self.rng.choice(alive)
        had_started = driver.has_started
        for _ in range(self.rng.randint(1, BURST_MAX)):
            driver.actor.step()
            pauses = driver.actor.is_deciding and self.rng.random() < PAUSE_SHARE
            if driver.actor.is_over or pauses or driver.has_started != had_started:
                break
        self._look_at(driver)

    def _land(self) -> None:
        """The store carries out a late write."""
        self.counters["landed"] += 1
        with suppress(FileExistsError):
            self.in_flight.pop(self.rng.randrange(len(self.in_flight)))()

    def _look_at(self, driver: LateDriver) -> None:
        """A driver ends when it was succeeded, when a write of its start gets no answer, or when it is killed."""
        error = driver.actor.error
        if not driver.actor.is_over or error is None:
            return
        owner = max(Lake(ROOT, StoredFiles(self.content)).numbers("control"), default=0)
        was_succeeded = driver.term < owner
        if isinstance(error, LakeInUse):
            self.counters["succeeded"] += 1
        if isinstance(error, NotWritten | NotRead | Exhausted) or (was_succeeded and isinstance(error, _OF_SUCCEEDED)):
            return
        raise Violated(CHECKER, f"the driver of term {driver.term} has failed: {error!r}") from error

    def _check(self) -> None:
        """What any reader finds now."""
        before, self._checked = self._checked, set(self.content)
        if before <= self._checked and not any(path.endswith(".json") for path in self._checked - before):
            return  # no file is gone, and none was committed
        lake = Lake(ROOT, StoredFiles(self.content), self.rules)
        try:
            check_lake(lake)
        except (LakeError, ProtocolError, FileNotFoundError) as error:
            raise Violated(CHECKER, str(error)) from error

    def _end(self) -> None:
        """A last driver goes on without any late write; then each batch has been read once."""
        driver = LateDriver(self, is_calm=True)
        while not driver.actor.is_over:
            driver.actor.step()
        if driver.actor.error is not None:
            raise Violated(CHECKER, f"the last driver has failed: {driver.actor.error!r}") from driver.actor.error
        self._check()
        lake = Lake(ROOT, StoredFiles(self.content), self.rules)
        record = lake.record()
        assert record is not None
        for index in record.indexes["events"]:
            found = sorted(key for span in lake.spans(lake.last_epoch()) for key in keys_of(lake, span, index))
            if found != list(range(len(found))) or not found:
                raise Violated(CHECKER, f"the rows of index {index} are not those of each batch once: {found}")
        named = {run.path for span in lake.spans(lake.last_epoch()) for run in runs_of(lake, span)}
        if litter := sorted(set(lake.run_paths()) - named):
            self.counters["litter"] += len(litter)


_OF_SUCCEEDED = (LakeError, ProtocolError, FileNotFoundError)
"""What a driver may meet that was succeeded: files are gone."""


def check_lake(lake: Lake) -> None:
    """Raises LakeError, ProtocolError, FileNotFoundError or Violated unless each file that a reader needs is there."""
    batches = Counter[str]()
    last = -1
    terms = [lake.bare_manifest(Epoch(epoch)).term for epoch in sorted(lake.numbers("epochs"))]
    if terms != sorted(terms):
        raise Violated(CHECKER, f"an epoch of a driver comes after one of its successor: terms {terms}")
    for span in lake.spans(lake.last_epoch()):
        epochs = lake.epochs(span)
        for table, of_table in epochs.batches.items():
            batches[table] += of_table.epochs
            last = max(last, of_table.batch)
        for run in (run for runs in epochs.runs.values() for run in runs):
            lake.read_into(run.path, [])
    if batches["events"] != last + 1:
        raise Violated(CHECKER, f"{batches['events']} epochs have {last + 1} batches")
    log = ChangeLog(lake)
    versions = [row for commit in log.commits() for part in commit.parts for row in _versions_of(lake, part)]
    if versions and sorted(versions) != list(range(min(versions), max(versions) + 1)):
        raise Violated(CHECKER, f"the change log has versions {sorted(versions)}")
    if (newest := checkpoints.newest(lake, PLACE)) is not None:
        for file in checkpoints.load(lake, PLACE, newest).files:
            lake.read_into(f"{checkpoints.checkpoint_directory(PLACE, newest)}/{file.name}", [])


def runs_of(lake: Lake, span: EpochSpan) -> list[RunInfo]:
    return [run for runs in lake.epochs(span).runs.values() for run in runs]


def keys_of(lake: Lake, span: EpochSpan, index: tuple[str, ...]) -> list[int]:
    """The rows of some epochs in an index, by their first column."""
    vnodes = frozenset(map(VnodeId, range(VNODES)))
    read = lake.read(lake.epochs(span), lake_channel("events", index), vnodes, EVENTS)
    return [key for batch in read for key in batch.column("k").to_pylist()]


def write_run(lake: Lake, index: tuple[str, ...], keys: list[int]) -> RunInfo:
    hashes = hash64([pa.array(keys, pa.int64())], len(keys))
    order = np.argsort(hashes, kind="stable")
    columns = [pa.array(hashes), pa.array(keys, pa.int64()), pa.array(keys, pa.int64())]
    encoded = encode_run(pa.Table.from_arrays(columns, schema=run_schema(EVENTS.schema)).take(pa.array(order)))
    path = f"tables/{lake_channel('events', index)}/{uuid4().hex}.arrow"
    lake.files.create(path, encoded)
    return describe_run(path, encoded, hashes[order], VNODES)


def parts_of(lake: Lake, versions: range) -> tuple[ChangePart, ...]:
    """A part of the change log in which each version adds a row."""
    count = len(versions)
    keys = pa.array(versions, pa.int64())
    hashes = pa.array(hash64([keys], count))
    stamps = pa.nulls(count, pa.timestamp("us", tz="UTC"))
    columns = [hashes, keys, pa.repeat("insert", count), keys, stamps]
    return write_parts(lake, "v", "part", pa.Table.from_arrays(columns, schema=part_schema(VIEW)))


def _versions_of(lake: Lake, part: ChangePart) -> list[int]:
    return [int(key) for key in read_part(lake, part, VIEW).column("k").to_pylist()]


@cache
def _begun() -> dict[str, bytes]:
    """A lake with some epochs, of a driver that is gone."""
    content: dict[str, bytes] = {}
    lake = OwnedLake(ROOT, RECORD, {}, StoredFiles(content))
    for batch in range(BATCHES_AT_FIRST):
        runs = {lake_channel("events", BY_K): (write_run(lake, BY_K, [batch]),)}
        lake.publish(
            Manifest(epoch=Epoch(batch + 1), term=lake.term, table="events", query="q", batch=batch, runs=runs)
        )
    return content
