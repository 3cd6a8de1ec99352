"""The supervisor of sources, with sources that do as they are told and a clock that is set by hand."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from upriver.coordinator.sources import SILENT_S_MAX, STALLED_S, UNANSWERED_S, SourceFailure
from upriver.errors import DeclarationError, IngestFailed, UpriverWarning, WaitTimeout
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.lake.manifests import Manifest
from upriver.runtime.source_supervisor import END_S_MAX, Seen, SourceSupervisor, source_failure
from upriver.state.runs import RunInfo
from upriver.text import render_status

GOES_AWAY = SourceFailure("the disk is full.", is_permanent=False)
STAYS = SourceFailure("another schema.", is_permanent=True)


@dataclass
class ScriptedIngest:
    """A source whose attempts look as a test says. starts, looks, stops: that fail, by what they raise."""

    starts: list[Exception] = field(default_factory=list)
    looks: list[Exception] = field(default_factory=list)
    stops: list[BaseException] = field(default_factory=list)
    seen: Seen = field(default_factory=lambda: Seen(0))
    begun: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    is_behind: bool = False
    is_at_work: bool = False
    is_compared: bool = False
    first_look: Seen | None = None
    while_begun: Callable[[], None] = lambda: None
    holds: threading.Event | None = None
    while_drained: list[Callable[[], None]] = field(default_factory=list)

    def start(self, attempt: int) -> None:
        self.begun.append(attempt)
        self.seen = Seen(attempt)
        if self.starts:
            raise self.starts.pop()

    def failure_of(self, error: Exception) -> SourceFailure:
        return SourceFailure(f"{error}.", is_permanent=False)

    def wait_compared(self, seconds: float) -> None:
        self.is_compared = True

    def wait_begun(self, seconds: float) -> None:
        if self.first_look is not None:
            self.seen = self.first_look
        self.while_begun()

    def look(self) -> Seen:
        if self.looks:
            raise self.looks.pop()
        return self.seen

    def has_jobs(self) -> bool:
        return self.is_at_work

    def drain(self, since: float, seconds_left: Callable[[], float]) -> None:
        if self.while_drained:
            self.while_drained.pop()()
            return
        if self.is_behind:
            raise WaitTimeout("wait longer")

    def stop(self) -> None:
        if self.holds is not None:
            self.holds.wait()
        self.stopped.append(self.seen.attempt)
        if self.stops:
            raise self.stops.pop()

    def now(self, batches: int = 0, is_idle: bool = False, ended: SourceFailure | None = None) -> None:
        self.seen = Seen(self.begun[-1], batches, is_idle, is_over=ended is not None, failure=ended)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Heard:
    """What was told of sources: the last state of each, and all marks."""

    states: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    marks: list[tuple[str, float, int]] = field(default_factory=list)
    finals: dict[str, bool] = field(default_factory=dict)

    def source_stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None:
        self.states[table], self.finals[table] = (state, error), is_final

    def read_through(self, table: str, at: float, epoch: Epoch) -> None:
        self.marks.append((table, at, epoch))


class World:
    """Tables ``good`` and ``other``. A test makes the turns; the supervisor's own thread makes those of restarts."""

    def __init__(self, end_s: float = END_S_MAX) -> None:
        self.clock, self.today = Clock(), Clock(1.7e9)
        self.good, self.other, self.heard = ScriptedIngest(), ScriptedIngest(), Heard()
        self.supervisor = SourceSupervisor(["good", "other"], self.clock, self.today, 3600.0, end_s)

    def start(self) -> None:
        self.supervisor.start({"good": self.good, "other": self.other}, self.heard)

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.supervisor.turn()

    def states(self) -> list[str]:
        return [told["state"] for told in self.supervisor.status().values()]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.supervisor.stop()


def manifest(epoch: int, table: str, rows: int, committed_at: float | None) -> Manifest:
    run = RunInfo(path="r", bytes=1, checksum="c", rows=rows, vnode_rows=((VnodeId(0), rows),))
    runs = {Channel(f"{table}/{index}"): (run,) for index in ("k", "n")}
    return Manifest(
        epoch=Epoch(epoch), term=Term(1), table=table, query="q", batch=epoch, committed_at=committed_at, runs=runs
    )


def in_time() -> float:
    return 10.0


def test_a_look_that_fails_ends_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without descriptors a look may fail, and no other thread looks at the sources."""
    world.start()
    world.good.looks.append(OSError("too many open files"))
    world.other.now(ended=GOES_AWAY)
    world.later(0.5)
    assert world.states() == ["running", "failed"]
    assert "table good: its source is looked at again after an error: OSError: too many open files" in caplog.text
    world.good.now(ended=GOES_AWAY)
    world.later(0.5)
    assert world.states() == ["failed", "failed"]
    world.later(60.0)
    assert (world.good.begun, world.other.begun) == ([1, 2], [1, 2])


def test_one_failed_source_leaves_the_others_alone_and_is_tried_again(world: World) -> None:
    world.start()
    world.good.now(batches=1)
    world.other.now(ended=GOES_AWAY)
    world.later(0.5)
    assert world.states() == ["running", "failed"]
    told = world.supervisor.status()["other"]
    assert (told["error"], told["retry_in_s"], told["attempts"]) == ("the disk is full.", 1.0, 1)
    world.later(0.75)
    assert world.other.begun == [1]
    world.later(0.25)
    assert (world.good.begun, world.other.begun) == ([1], [1, 2])
    assert world.states() == ["running", "failing"]
    world.other.now(is_idle=True)
    world.later(0.5)
    assert world.states() == ["running", "running"]
    assert source_failure(world.supervisor.status()) is None


def test_the_failure_of_the_app_names_each_source_that_has_failed(world: World) -> None:
    world.start()
    world.good.now(ended=STAYS)
    world.other.now(ended=GOES_AWAY)
    world.later(0.5)
    said = source_failure(world.supervisor.status())
    good = "table 'good': its source has failed: another schema. app.restart_source('good') tries again."
    other = "It is tried again in 1 s; app.restart_source('other') tries at once."
    assert said == f"{good} table 'other': its source has failed: the disk is full. {other}"
    world.later(1.0)
    world.other.seen = Seen(2, doing="Getting offsets from KafkaV2[Subscribe[orders]]")
    world.later(7.0)
    said = source_failure(world.supervisor.status())
    again = "It is being tried again: attempt 2 has run for 7 s"
    doing = 'and Spark says "Getting offsets from KafkaV2[Subscribe[orders]]".'
    assert said == f"{good} table 'other': its source has failed: the disk is full. {again}, {doing}"


def test_the_status_says_failing_of_a_source_that_is_tried_again_and_why(world: World) -> None:
    rest = {"epoch": 0, "published": 0, "map_version": 1, "workers": [], "views": {}, "unrecorded": None}
    rest |= {"recoveries": [], "rescale": None, "rescales_waiting": 0, "standbys": {"why": None}}
    world.start()
    world.good.now(ended=STAYS)
    world.other.now(ended=GOES_AWAY)
    for at in (0.5, 1.0):
        world.later(at)
        tables = world.supervisor.status()
        lines = render_status({**rest, "tables": tables, "failure": source_failure(tables)}).splitlines()
        assert [line.split()[:2] for line in lines[3:5]] == [["good", "failed"], ["other", "failing"]]
        assert "the disk is full" in lines[-1]


def test_a_start_that_raises_is_a_failed_attempt(world: World) -> None:
    world.good.starts = [OSError("no route"), OSError("no route")]
    world.start()
    assert world.states() == ["failed", "running"]
    world.later(1.0)
    assert world.supervisor.status()["good"]["retry_in_s"] == 2.0
    world.later(2.0)
    assert world.good.begun == [1, 2, 3]
    world.good.now(batches=1)
    world.later(0.5)
    assert world.states() == ["running", "running"]


def test_a_failed_source_is_restarted_at_once_and_one_that_runs_is_not(world: World) -> None:
    world.start()
    world.good.now(ended=STAYS)
    world.supervisor.turn()
    for table in ("good", "other"):
        world.supervisor.restart(table)
    assert (world.good.begun, world.other.begun) == ([1, 2], [1])
    with pytest.raises(DeclarationError, match="no table 'nothing'; there are: good, other"):
        world.supervisor.restart("nothing")


def test_a_source_that_is_at_work_for_long_is_stalled_and_a_restart_ends_its_attempt(world: World) -> None:
    world.start()
    world.good.now(is_idle=True)
    world.other.now(batches=0)
    world.later(STALLED_S + 1)
    assert world.states() == ["running", "stalled"]
    world.supervisor.restart("other")
    assert (world.other.stopped, world.other.begun) == ([1], [1, 2])
    assert world.states() == ["running", "running"]


def test_a_stalled_source_says_what_spark_is_at_and_is_no_failure_of_the_app(world: World) -> None:
    world.start()
    world.good.now(batches=1)
    world.other.seen = Seen(1, doing="Getting offsets from KafkaV2[Subscribe[orders]]")
    world.later(STALLED_S)
    assert world.supervisor.status()["other"]["error"] is None
    world.good.now(batches=2)
    world.later(1.0)
    told = world.supervisor.status()["other"]
    assert (told["state"], told["stalled_for_s"], told["attempts"]) == ("stalled", STALLED_S + 1, 1)
    assert 'Spark says "Getting offsets from KafkaV2[Subscribe[orders]]"' in told["error"]
    assert world.heard.states["other"] == ("stalled", told["error"])
    assert source_failure(world.supervisor.status()) is None
    world.other.now(is_idle=True)
    world.later(0.5)
    told = world.supervisor.status()["other"]
    assert (told["state"], told["stalled_for_s"], told["error"]) == ("running", None, None)


def test_a_source_that_does_not_answer_says_so(world: World) -> None:
    asks = Seen(1, is_asking=True, doing="Getting offsets from KafkaV2[Subscribe[nothing]]")
    world.start()
    world.good.seen = world.other.seen = asks
    world.later(0.0)
    world.later(UNANSWERED_S)
    world.good.seen = replace(asks, read_through=1.0)  # it has answered, and was asked again
    world.later(0.5)
    told = world.supervisor.status()["other"]
    assert world.states() == ["running", "stalled"]
    assert told["error"].startswith('it has not said for 20 s what rows there are. Spark says "Getting offsets from ')
    assert "Check that its server answers, and that the topic or table exists" in told["error"]
    world.supervisor.restart("other")
    assert world.states() == ["running", "running"]


def test_an_attempt_that_hangs_after_a_failure_is_stalled_and_tells_both(world: World) -> None:
    world.start()
    world.other.now(ended=GOES_AWAY)
    world.later(0.5)
    world.later(1.0)
    world.other.seen = Seen(2, doing="Getting offsets")
    world.later(5.0)
    told = world.supervisor.status()["other"]
    assert (told["state"], told["error"], told["attempts"]) == ("failing", GOES_AWAY.error, 2)
    assert (told["doing"], told["attempt_for_s"], told["last_error_age_s"]) == ("Getting offsets", 5.0, 6.0)
    world.later(STALLED_S)
    world.clock.now += 3
    told = world.supervisor.status()["other"]
    assert (told["state"], told["state_for_s"], told["attempt_for_s"]) == ("stalled", 3.0, STALLED_S + 8)
    assert (told["last_error"], told["last_error_age_s"]) == (GOES_AWAY.error, STALLED_S + 9)
    earlier = "This is attempt 2. An earlier one has failed, 69 s ago: the disk is full."
    assert told["error"].startswith('no batch has been finished for 60 s. Spark says "Getting offsets".')
    assert told["error"].endswith(earlier)
    failure = source_failure(world.supervisor.status())
    assert failure is not None
    assert failure.startswith("table 'other': its source has stalled after a failure: no batch")
    world.other.is_behind = True
    with pytest.raises(WaitTimeout, match=r"wait longer\. table 'other': its source has stalled .*the disk"):
        world.supervisor.drain(in_time)
    world.other.seen = Seen(2, batches=1)
    world.later(0.5)
    told = world.supervisor.status()["other"]
    assert (told["state"], told["error"], told["last_error"]) == ("running", None, None)


def test_an_attempt_that_hangs_without_a_job_of_spark_is_ended_and_another_begins(world: World) -> None:
    world.start()
    world.good.is_at_work = True
    world.good.seen = world.other.seen = Seen(1, doing="Getting offsets")
    world.other.stops.append(OSError("it does not end"))  # and yet the other source is looked after
    world.later(STALLED_S + 1)
    world.later(SILENT_S_MAX)
    assert world.states() == ["stalled", "failed"]
    told = world.supervisor.status()["other"]
    assert told["error"].startswith("its attempt was ended: for 961 s it has finished no batch, and Spark ran no job")
    world.later(1.0)
    assert (world.good.begun, world.other.stopped, world.other.begun) == ([1], [1], [1, 2])


def test_the_others_do_not_wait_for_an_attempt_that_does_not_end() -> None:
    world = World(end_s=0.0)
    world.start()
    world.good.now(ended=GOES_AWAY)
    world.later(0.5)
    world.later(1.0)
    world.good.seen, world.other.holds = Seen(2), threading.Event()
    world.later(STALLED_S + 1)
    world.good.is_at_work = True
    world.later(2 * SILENT_S_MAX)
    world.other.starts = [OSError("the one before goes on")]
    world.later(1.0)
    assert (world.states(), world.other.begun, world.other.stopped) == (["stalled", "failed"], [1, 2], [])
    assert world.supervisor.status()["other"]["error"] == "the one before goes on."
    world.other.holds.set()
    world.later(2.0)
    assert world.other.begun == [1, 2, 3]
    world.supervisor.stop()


def test_a_restart_of_an_attempt_that_does_not_end_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start()
    world.good.now(batches=1)
    world.later(STALLED_S + 1)
    world.other.stops, world.other.starts = [OSError("it does not end")], [OSError("it still goes on")]
    world.supervisor.restart("other")
    told = world.supervisor.status()["other"]
    assert (told["state"], told["error"], world.other.begun) == ("failed", "it still goes on.", [1, 2])


def test_only_a_source_that_has_failed_for_good_is_warned_of_at_once_and_later(world: World) -> None:
    world.start()
    world.good.now(ended=STAYS)
    world.other.now(ended=GOES_AWAY)
    good = "table 'good': its source has failed: another schema."
    with pytest.warns(UpriverWarning, match=good) as first:
        world.supervisor.warn(1.0)
    assert [told.filename for told in first] == [__file__]
    assert world.good.is_compared
    assert [failure.startswith(good) for failure in world.supervisor.lasting_failures()] == [True]
    world.later(1.0)
    world.other.now(ended=STAYS)
    with pytest.warns(UpriverWarning, match="table 'other': its source has failed: another schema") as later:
        world.later(0.5)
    assert len(later) == 1
    assert world.heard.finals == {"good": True, "other": True}
    world.supervisor.restart("good")
    world.later(0.5)
    assert world.heard.finals == {"good": False, "other": True}


def test_a_load_is_finished_in_the_end(world: World) -> None:
    world.start()
    world.good.seen = Seen(1, batches=1, is_over=True)
    world.later(0.5)
    assert world.states() == ["finished", "running"]
    world.later(1e6)
    assert world.good.begun == [1]


def test_to_wait_for_a_failed_source_is_an_error_of_one_line(world: World) -> None:
    world.start()
    world.supervisor.drain(in_time)
    world.other.now(ended=GOES_AWAY)
    for _ in range(2):
        with pytest.raises(
            IngestFailed, match=r"^table 'other': its source has failed: the disk is full\. It is"
        ) as told:
            world.supervisor.drain(in_time)
        assert told.value.__cause__ is None
        assert world.states() == ["running", "failed"]
    world.later(1.0)
    world.other.is_behind = True
    with pytest.raises(WaitTimeout, match="wait longer"):
        world.supervisor.drain(in_time)


def test_to_wait_for_some_tables_is_no_wait_for_others_that_have_failed(world: World) -> None:
    world.start()
    world.other.now(ended=STAYS)
    world.later(0.0)
    world.supervisor.drain(in_time, ("good",))
    world.good.is_behind = True
    with pytest.raises(IngestFailed, match="table 'other'"):  # at once: what is behind is not waited for
        world.supervisor.drain(in_time)
    with pytest.raises(WaitTimeout, match="wait longer"):
        world.supervisor.drain(in_time, ("good",))


def test_to_wait_goes_on_with_the_attempt_that_follows_one_that_fails_meanwhile(world: World) -> None:
    world.start()

    def fail_and_begin_another() -> None:
        world.good.now(ended=GOES_AWAY)
        world.later(0.0)
        world.later(1.0)
        assert world.good.begun == [1, 2]
        world.good.is_behind = True

    world.good.while_drained.append(fail_and_begin_another)
    with pytest.raises(WaitTimeout, match="wait longer"):
        world.supervisor.drain(in_time)


def test_status_counts_rows_and_epochs_of_each_table(world: World) -> None:
    supervisor, today = world.supervisor, world.today.now
    for told in (manifest(1, "good", 5, None), manifest(2, "other", 7, today - 100), manifest(3, "good", 120, today)):
        supervisor.published(told)
    world.today.now += 2.5
    good, other = (supervisor.status()[table] for table in ("good", "other"))
    assert (good["epoch"], good["rows"], good["rows_per_s"], good["epoch_age_s"]) == (3, 125, 2.0, 2.5)
    assert (other["epoch"], other["rows"], other["rows_per_s"], other["epoch_age_s"]) == (2, 7, 0.0, 102.5)


def test_what_is_seen_is_told(world: World) -> None:
    world.start()
    world.supervisor.published(manifest(7, "good", 1, None))
    world.good.seen = Seen(1, batches=1, read_through=world.today.now - 3)
    world.other.now(ended=STAYS)
    world.later(1.0)
    assert world.heard.states == {"good": ("running", None), "other": ("failed", "another schema.")}
    assert world.heard.marks == [("good", world.clock.now - 3, 7)]
    world.heard.marks.clear()
    world.good.seen = Seen(1, batches=2, is_over=True)
    for _ in range(2):  # a load that is over has all that there will ever be
        world.later(1.0)
        assert world.heard.marks.pop() == ("good", world.clock.now, 7)
    assert world.heard.states["good"] == ("finished", None)


def test_after_the_stop_nothing_begins(world: World) -> None:
    world.start()
    world.good.now(ended=GOES_AWAY)
    world.later(0.5)
    world.supervisor.stop()
    assert (world.good.stopped, world.other.stopped) == ([], [1])
    world.later(1e6)
    assert (world.good.begun, world.other.begun) == ([1], [1])


def test_a_source_that_cannot_be_stopped_keeps_none_of_the_others(world: World) -> None:
    world.start()
    world.good.stops.append(OSError("Spark does not answer"))
    with pytest.raises(OSError, match="Spark does not answer"):
        world.supervisor.stop()
    assert (world.good.stopped, world.other.stopped) == ([1], [1])


# Tables that come and go


def test_a_source_is_added_beside_the_others_and_knows_what_the_lake_has(world: World) -> None:
    world.supervisor.published(manifest(1, "late", 5, None))
    world.start()
    world.good.now(batches=1)
    late = ScriptedIngest(first_look=Seen(1, is_idle=True, read_through=1.7e9))
    world.supervisor.add("late", late, 1.0)
    assert (late.begun, world.good.begun, world.states()) == ([1], [1], ["running"] * 3)
    told = world.supervisor.status()["late"]
    assert (told["rows"], told["epoch"], world.supervisor.ingested()["late"]) == (5, 1, 0)
    assert world.heard.marks == [("late", 1000.0, 1)]
    world.supervisor.published(manifest(2, "late", 3, None))
    assert (world.supervisor.status()["late"]["rows"], world.supervisor.ingested()["late"]) == (8, 3)
    late.now(ended=GOES_AWAY)
    world.later(0.5)
    world.later(1.0)
    assert late.begun == [1, 2]  # a later failure is that of any source


@pytest.mark.parametrize("failure", [GOES_AWAY, STAYS])
def test_a_source_that_fails_at_once_is_not_added(world: World, failure: SourceFailure) -> None:
    world.start()
    late = ScriptedIngest(first_look=Seen(1, is_over=True, failure=failure))
    with pytest.raises(IngestFailed, match=f"^table 'late' is not declared: its source has .*: {failure.error}$"):
        world.supervisor.add("late", late, 1.0)
    with pytest.raises(IngestFailed, match=r"no route\.$"):
        world.supervisor.add("late", ScriptedIngest(starts=[OSError("no route")]), 1.0)
    world.later(5.0)
    assert (late.begun, list(world.supervisor.status())) == ([1], ["good", "other"])


def test_a_source_that_has_committed_rows_before_it_failed_is_added(world: World) -> None:
    world.start()
    late = ScriptedIngest(first_look=Seen(1, batches=1, is_over=True, failure=GOES_AWAY))
    late.while_begun = lambda: world.supervisor.published(manifest(1, "late", 5, None))
    world.supervisor.add("late", late, 1.0)
    assert world.states() == ["running", "running", "failed"]


def test_a_dropped_source_ends_and_is_forgotten_and_goes_on_if_it_is_added_again(world: World) -> None:
    world.start()
    world.supervisor.published(manifest(1, "good", 5, None))
    world.supervisor.drop("good", 10.0)
    assert (world.good.stopped, list(world.supervisor.status())) == ([1], ["other"])
    with pytest.raises(DeclarationError, match="no table 'good'; there are: other"):
        world.supervisor.restart("good")
    world.heard.states.clear()
    world.later(60.0)
    assert (world.good.begun, list(world.heard.states)) == ([1], ["other"])
    world.supervisor.drain(in_time)
    world.supervisor.published(manifest(2, "good", 2, None))
    again = ScriptedIngest(first_look=Seen(1, is_idle=True))
    world.supervisor.add("good", again, 1.0)
    assert world.supervisor.status()["good"]["rows"] == 7


def test_a_source_that_does_not_end_is_known_until_it_has(world: World) -> None:
    world.start()
    world.good.holds = threading.Event()
    for _ in range(2):
        with pytest.raises(
            WaitTimeout, match=r"table 'good': its source has not ended in 0\.01 s; drop the table again"
        ):
            world.supervisor.drop("good", 0.01)
    assert list(world.supervisor.status()) == ["good", "other"]
    world.good.holds.set()
    world.supervisor.drop("good", 10.0)
    assert (world.good.stopped, list(world.supervisor.status())) == ([1], ["other"])


def test_a_source_that_cannot_be_ended_is_tried_again(world: World) -> None:
    world.start()
    world.good.stops = [OSError("no answer")]
    with pytest.raises(OSError, match="no answer"):
        world.supervisor.drop("good", 10.0)
    world.supervisor.drop("good", 10.0)
    assert (world.good.stopped, list(world.supervisor.status())) == ([1, 1], ["other"])


def test_no_source_is_added_to_an_app_that_stops(world: World) -> None:
    world.start()
    world.supervisor.stop()
    late = ScriptedIngest()
    with pytest.raises(DeclarationError, match="is being stopped"):
        world.supervisor.add("late", late, 1.0)
    assert late.begun == []
