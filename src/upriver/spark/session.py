"""Spark sessions with room for workers, and the settings on which the meaning of SQL depends.

A worker is a Spark task that never ends, so it keeps its task slot for as long as the app runs. The streaming queries
need slots beside the workers: without any, their first micro-batch would wait forever without a message.

A view's SQL is translated once, as Spark understands it by default. A session in which the same SQL means something
else is refused, with the name of the setting.

Spark's log of an error that Upriver reports in one line is suppressed while that error is handled, and no longer.
"""

import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from upriver.arguments import at_least
from upriver.errors import DeclarationError, TooFewSlots, UserError
from upriver.logs import shorten_errors
from upriver.net.server import SparkHosts
from upriver.zones import zone_name

TASK_FAILURES_MAX = 4
"""Attempts that a task has. Local mode's own default is one; a lost worker would then end its job."""

REGISTRATION_S_MAX = 30.0
"""Seconds that a cluster has for its executors to register."""

SLOTS_FREE_S_MAX = 30.0
"""Seconds to wait for slots that other tasks have taken."""

_POLL_S = 0.1
_HEAP_MB_MIN = 1024
_HEAP_MB_MAX = 8192
_CHECKPOINTING = "" if pyspark.__version__.startswith("4.0.") else ".checkpointing"
CHECKPOINT_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"org.apache.spark.sql.execution.streaming{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager"
    ),
}
"""How Spark writes checkpoints. By default it uses an interface of Hadoop that starts some twenty processes for each
file in a local directory, for its status and its permissions. A micro-batch has three such files, and one for each
partition of each state store."""
BATCHES_KEPT = 10
"""Micro-batches of which Spark keeps the files in a query's checkpoint; its own default is 100. A restart needs the
last one."""
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LOCAL = re.compile(r"local(\[.*\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of the JVM, by its whole name. As a path of attributes, each package would be looked for as a class, in
    all of Spark's archives."""
    return getattr(spark._jvm, name)


_COMPILED: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""By the gateway to a JVM: the classes of ours there, by name."""
_COMPILING = threading.Lock()


def compiled_class(spark: SparkSession, name: str, source: str) -> Any:
    """A Java class of ours in the session's JVM, as ``java.lang.Class``. Janino compiles it there at the first call.
    Every Spark has Janino, for the code that it generates."""
    with _COMPILING:
        known = _COMPILED.setdefault(spark.sparkContext._gateway, {})
        if name not in known:
            compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
            thread = java_class(spark, "java.lang.Thread").currentThread()
            compiler.setParentClassLoader(thread.getContextClassLoader())
            compiler.cook(source)
            known[name] = compiler.getClassLoader().loadClass(name)
        return known[name]


def is_local(spark: SparkSession) -> bool:
    """Whether the driver is the only executor."""
    return _LOCAL.fullmatch(str(spark.sparkContext.master)) is not None


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session was stopped, here or in the JVM, or the JVM is gone."""
    try:
        java = spark.sparkContext._jsc
        return java is None or bool(java.sc().isStopped())
    except Exception:  # of any class: the JVM does not answer
        return True


def check_session(spark: SparkSession) -> None:
    """Raise DeclarationError if the session was stopped, or its JVM is gone."""
    if is_stopped(spark):
        raise DeclarationError("the Spark session has been stopped: make another one, and the app anew with it")


@contextmanager
def unless_stopped(spark: SparkSession) -> Iterator[None]:
    """Suppress an error of the block if the session was stopped: then what the block ends has ended."""
    try:
        yield
    except Exception:  # of many classes, by what is gone
        if not is_stopped(spark):
            raise


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs that have the tag, whichever thread has begun them."""
    with unless_stopped(spark):
        spark.sparkContext.cancelJobsWithTag(tag)  # interruptTag would only know the tags of the calling thread


def spark_hosts(spark: SparkSession) -> SparkHosts:
    """Where Spark's driver is, and whether all executors are on its machine."""
    context = spark.sparkContext
    master, conf = str(context.master), context.getConf()
    return SparkHosts(
        master=master,
        executors_are_here=bool(_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master)),
        driver_host=conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1",
        driver_bind=conf.get("spark.driver.bindAddress"),
    )


JAVA_MIN = 17
"""The oldest version of Java that Spark 4 runs on."""
JAVA_S_MAX = 30.0
"""Seconds for Java to say its version."""


@shorten_errors
def local_session(
    workers: int, *, ingest_slots: int = 2, app_name: str = "upriver", **conf: str | int | bool
) -> SparkSession:
    """A Spark session in this process, on loopback only, with ``workers + ingest_slots`` task slots.

    There is at least one slot of each kind. ``conf`` goes to Spark unchanged and overrides the settings here:
    ``**{"spark.sql.shuffle.partitions": 4}``. A running session is taken over if it has the slots; otherwise raises
    TooFewSlots. Raises DeclarationError, and UserError without a Java that Spark runs on.
    """
    workers, ingest_slots = at_least("workers", workers, 1), at_least("ingest_slots", ingest_slots, 1)
    if SparkSession.getActiveSession() is None:
        check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark would start whatever python3 is first on the PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = local_conf(workers, ingest_slots, heap_mb(memory_bytes())) | conf
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pandas_unwarned():
        spark = builder.getOrCreate()
    try:
        require_slots(spark, workers, ingest_slots)
    except TooFewSlots as error:
        if spark.sparkContext.master != settings["spark.master"]:
            raise TooFewSlots(
                f"{error} This session was running in this process already, and keeps its slots: stop it first, by "
                "spark.stop()."
            ) from None
        raise
    return spark


class SessionSetting:
    """A setting that a session has while some thread is in a block. Queries that others begin meanwhile get it, too."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self._value = name, value
        self._lock = threading.Lock()
        """Guards what follows."""
        self._begun: dict[SparkSession, tuple[int, str | None]] = {}
        """Of each session with a block: how many it has, and its own value before them."""

    @contextmanager
    def of(self, spark: SparkSession) -> Iterator[None]:
        """A block."""
        with self._lock:
            if spark not in self._begun:
                before = spark.conf.get(self.name, None)
                spark.conf.set(self.name, self._value)
                self._begun[spark] = 0, before
            blocks, before = self._begun[spark]
            self._begun[spark] = blocks + 1, before
        try:
            yield
        finally:
            with self._lock, unless_stopped(spark):
                blocks, before = self._begun.pop(spark)
                if blocks > 1:
                    self._begun[spark] = blocks - 1, before
                elif before is None:
                    spark.conf.unset(self.name)
                else:
                    spark.conf.set(self.name, before)


def check_java() -> None:
    """Raise UserError unless the Java that Spark would start is there, and new enough."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    needed = f"Spark needs Java {JAVA_MIN} or newer"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_S_MAX, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{needed}, and {java!r} cannot be run: install Java, or set JAVA_HOME") from error
    version = re.search(r'version "(\d+)', said)
    if version is not None and int(version[1]) < JAVA_MIN:
        raise UserError(f"{needed}, and {java!r} is version {version[1]}: install a newer one, or set JAVA_HOME")


LOG4J = Path(__file__).with_name("log4j2.properties")


def local_conf(workers: int, ingest_slots: int, heap: int) -> dict[str, str | int | bool]:
    """Spark's settings for so many ``workers`` and ``ingest_slots`` in one process with ``heap`` MB."""
    return {
        "spark.master": f"local[{workers + ingest_slots},{TASK_FAILURES_MAX}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{heap}m",
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={LOG4J}"',
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": ingest_slots,  # the workers' slots are taken: more would only queue
        "spark.python.daemon.module": "upriver.spark.daemon",
        **CHECKPOINT_FILES,
        "spark.sql.streaming.minBatchesToRetain": BATCHES_KEPT,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }


def heap_mb(machine_bytes: int) -> int:
    """MB of heap for the JVM: a quarter of the memory, because the workers and their views live outside it."""
    return min(max(machine_bytes // 4 // 2**20, _HEAP_MB_MIN), _HEAP_MB_MAX)


def memory_bytes() -> int:
    """Bytes of memory of this machine, or the limit of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in _CGROUP_LIMITS if path.exists()]
    return min([physical, *(int(limit) for limit in limits if limit.isdigit())])


def free_slots(spark: SparkSession) -> int:
    """Task slots of all executors registered so far, busy or idle, each of ``spark.task.cpus`` cores.

    This is the scheduler's own count. On a cluster, executors register in their own time after the session has
    started; :func:`require_slots` waits for them.
    """
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def taken_slots(spark: SparkSession) -> int:
    """Task slots in which a task runs now, of any job of the session's context. May lag by some tenths of a second."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(int(info.numRunningTasks()) for info in infos)


def slots_in_words(spark: SparkSession) -> str:
    """How many slots are taken, for a message."""
    return f"{taken_slots(spark)} of {free_slots(spark)} task slots are taken"


def slots_ceiling(conf: Mapping[str, str]) -> int | None:
    """Task slots that a cluster of this Spark configuration can grow to; None without a limit."""
    task_cpus = int(conf.get("spark.task.cpus", "1"))
    if match := _LOCAL_CLUSTER.fullmatch(conf["spark.master"]):
        executors, cores = match.groups()
    elif _is_dynamic(conf):
        executors, cores = (conf.get(name) for name in ("spark.dynamicAllocation.maxExecutors", "spark.executor.cores"))
    else:
        executors, cores = None, None
    return None if executors is None or cores is None else int(executors) * (int(cores) // task_cpus)


def require_slots(spark: SparkSession, workers: int, ingest: int = 1) -> None:
    """Raise TooFewSlots unless Spark has a task slot for each of ``workers`` and ``ingest`` more.

    Waits for a cluster's executors to register, 30 seconds at most. Under dynamic allocation they come only when tasks
    wait for them: there the configuration counts.
    """
    slots = _slots_in_time(spark, workers + ingest, lambda: REGISTRATION_S_MAX)
    if slots < workers + ingest:
        raise TooFewSlots(shortage(str(spark.sparkContext.master), slots, workers, ingest))


def _slots_in_time(spark: SparkSession, needed: int, seconds_left: Callable[[], float]) -> int:
    """The slots as soon as ``needed`` have come, or fewer once it is known that they will not come."""
    conf = dict(spark.sparkContext.getConf().getAll())
    slots = free_slots(spark)
    if slots >= needed or _LOCAL.fullmatch(conf["spark.master"]):
        return slots
    ceiling = slots_ceiling(conf)
    if ceiling is not None and ceiling < needed:
        return ceiling
    if _is_dynamic(conf):
        return needed
    deadline = time.monotonic() + min(REGISTRATION_S_MAX, seconds_left())
    while slots < needed and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        slots = free_slots(spark)
    return slots


def wait_for_slots(spark: SparkSession, workers: int, seconds_left: Callable[[], float], ingest: int = 1) -> None:
    """Raise TooFewSlots unless Spark has a task slot for each of ``workers`` and ``ingest`` more, and they are free.

    Waits for executors to register, and for slots to become free: for each at most 30 seconds, and no longer than the
    time that is left.
    """
    needed = workers + ingest
    total = _slots_in_time(spark, needed, seconds_left)
    master = str(spark.sparkContext.master)
    if total < needed:
        raise TooFewSlots(shortage(master, total, workers, ingest))
    if _is_dynamic(dict(spark.sparkContext.getConf().getAll())):
        return
    give_up_at = time.monotonic() + min(SLOTS_FREE_S_MAX, seconds_left())
    while (taken := taken_slots(spark)) + needed > (total := free_slots(spark)):
        if time.monotonic() > give_up_at:
            raise TooFewSlots(all_taken(master, total, taken, workers, ingest))
        time.sleep(_POLL_S)


def all_taken(master: str, slots: int, taken: int, workers: int, ingest: int) -> str:
    """Advice for a user whose Spark has enough slots, but has given some of them to other tasks."""
    return (
        f"{workers + ingest} task slots are needed, for {workers} workers and ingest, and of those that Spark "
        f"({master}) has, {taken} of {slots} are taken: by other jobs, or by another app's workers, which keep theirs "
        "until it stops. Stop those, or give Spark more slots."
    )


def shortage(master: str, slots: int, workers: int, ingest: int) -> str:
    """Advice for a user whose Spark has ``slots`` task slots and needs ``workers + ingest``."""
    needed = workers + ingest
    if _LOCAL.fullmatch(master):
        remedy = f"Start it with local[{needed},{TASK_FAILURES_MAX}] or more"
    else:
        remedy = "Give it more executors or more cores per executor"
    if slots > ingest:
        remedy += f", or ask for no more than {slots - ingest} workers"
    return (
        f"{needed} task slots are needed and Spark ({master}) has {slots}: each of {workers} workers keeps one until "
        f"the app stops, and ingest needs {ingest} beside them. {remedy}."
    )


def _is_dynamic(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.dynamicAllocation.enabled", "false") == "true"


ZONE = "spark.sql.session.timeZone"
NEEDED: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.relationPrecedence": "false",
        "spark.sql.caseSensitive": "false",
        "spark.sql.decimalOperations.allowPrecisionLoss": "true",
        "spark.sql.function.concatBinaryAsString": "false",
        "spark.sql.function.eltOutputAsString": "false",
        "spark.sql.functionResolution.sessionOrder": "second",
        "spark.sql.groupByAliases": "true",
        "spark.sql.groupByOrdinal": "true",
        "spark.sql.icu.caseMappings.enabled": "true",
        "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.orderByOrdinal": "true",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.preserveCharVarcharTypeInfo": "false",
        "spark.sql.stableDerivedColumnAlias.enabled": "false",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
    }
)
"""Settings and the value with which our translation agrees with Spark: Spark's defaults."""

_LEGACY = "spark.sql.legacy."
_COLLATION = "collation"
_OF_FILES_AND_COMMANDS = (
    "addSingleFileInAddFile",
    "allowAutoGeneratedAliasForView",
    "allowEmptySchemaWrite",
    "allowNonEmptyLocationInCTAS",
    "allowTempViewCreationWithMultipleNameparts",
    "allowUntypedScalaUDF",
    "avro.",
    "blockCreateTempTableUsingProvider",
    "bucketedTableScan.",
    "charVarcharAsString",
    "createHiveTableByDefault",
    "csv.",
    "dataFrameWriterV2IgnorePathOption",
    "db2.",
    "emptyCurrentDBInCli",
    "execution.",
    "extraOptionsBehavior.",
    "hive.",
    "inlineCTEInCommands",
    "jdbc.",
    "json.",
    "keepCommandOutputSchema",
    "keepPartitionSpecAsStringLiteral",
    "mssqlserver.",
    "mysql.",
    "notReserveProperties",
    "nullValueWrittenAsQuotedEmptyStringCsv",
    "observeMetricsAggregateAllAttempts",
    "oracle.",
    "parquet.",
    "parseNullPartitionSpecAsStringLiteral",
    "pathOptionBehavior.",
    "postgres.",
    "raiseErrorWithoutErrorClass",
    "readFileSourceTableCacheIgnoreOptions",
    "replaceDatabricksSparkAvro.",
    "sessionInitWithConfigDefaults",
    "setCommandRejectsSparkCoreConfs",
    "skipTypeValidationOnAlterPartition",
    "useLegacyXMLParser",
    "useV1Command",
)
"""Continuations of the names of legacy settings that change no query: they are about files, commands and Python."""


def checked_settings(spark: SparkSession) -> dict[str, str]:
    """The session's settings that decide what SQL means: :data:`NEEDED`, and its time zone as pyarrow names it.

    Raises DeclarationError for a setting under which SQL means something else, with the value that works.
    """
    for name, found, needed in _different(spark):
        wanted = f"spark.conf.unset({name!r})" if needed is None else f"spark.conf.set({name!r}, {needed!r})"
        raise DeclarationError(
            f"the Spark session has {name} = {found}, under which SQL means something else than in a view; "
            f"views need Spark's default: {wanted}"
        )
    return {**NEEDED, ZONE: zone_name(spark.conf.get(ZONE) or "UTC")}


def _different(spark: SparkSession) -> Iterator[tuple[str, str, str | None]]:
    """Settings with a wrong value: the name, the value found, and the one needed; ``None`` for unset."""
    for name, needed in NEEDED.items():
        found = spark.conf.get(name, None)  # an older Spark may not have it
        if found is not None and found.lower() != needed.lower():
            yield name, found, needed
    # The names in one call: PySpark takes the end of an iterator of Java's for a failure, and looks into it.
    names = str(spark._jsparkSession.conf().getAll().keys().mkString("\n")).split("\n")
    set_here = {name: spark.conf.get(name) or "" for name in sorted(names) if _changes_queries(name)}
    watched = [name for name in set_here if name not in NEEDED]
    untouched = spark.newSession() if watched else None
    for name in watched:
        assert untouched is not None
        is_known, default = _default(untouched, name)
        if is_known and (default or "").lower() != set_here[name].lower():
            yield name, set_here[name], default


def _changes_queries(name: str) -> bool:
    if name.startswith(_LEGACY):
        return not name.removeprefix(_LEGACY).startswith(_OF_FILES_AND_COMMANDS)
    return name.startswith("spark.sql.") and _COLLATION in name.lower()


def _default(untouched: SparkSession, name: str) -> tuple[bool, str | None]:
    """Whether Spark knows the setting, and its default."""
    try:
        untouched.conf.unset(name)
        return True, untouched.conf.get(name)
    except PySparkException as error:
        return "SQL_CONF_NOT_FOUND" not in str(error), None


ANALYSIS_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers on which PySpark writes each error of a query, with its stack, as some kilobytes of JSON."""


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop PySpark's log of errors of queries while the block runs, on this thread only."""
    me = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != me

    loggers = [PySparkLogger.getLogger(name) for name in ANALYSIS_LOGGERS]  # of their own class, as PySpark needs them
    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)


_FILTERS = threading.Lock()
"""The filters of warnings belong to the whole process."""


@contextmanager
def pandas_unwarned() -> Iterator[None]:
    """Drop PySpark's warning that it does not fully support pandas 3 while the block runs: it warns in calls that do
    without pandas, too."""
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def map_in_arrow(
    rows: DataFrame, task: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType | str
) -> DataFrame:
    """As ``rows.mapInArrow``, without a warning of pandas."""
    with pandas_unwarned():
        return rows.mapInArrow(task, schema)


STOP_LOGGERS = (
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # its name in Spark 4.0
    "org.apache.spark.storage.ShuffleBlockFetcherIterator",
    "org.apache.spark.broadcast.TorrentBroadcast",
)
"""Loggers on which Spark tells of jobs and micro-batches that end because the app stops them."""


_LOG4J = "org.apache.logging.log4j"


@contextmanager
def stop_unlogged(spark: SparkSession) -> Iterator[None]:
    """Have Spark log nothing on ``STOP_LOGGERS`` while the block runs. Their levels are restored afterwards.

    A logger whose level the user has set keeps it.
    """
    quieted = _silenced(spark)
    try:
        yield
    finally:
        _restore(spark, quieted)


def _silenced(spark: SparkSession) -> list[str]:
    """The loggers that are off from now on; none if the JVM does not answer."""
    quieted: list[str] = []
    with suppress(Exception):  # of any class: a JVM that has gone is no reason not to stop
        off = java_class(spark, f"{_LOG4J}.Level").OFF
        configurator = java_class(spark, f"{_LOG4J}.core.config.Configurator")
        context = java_class(spark, f"{_LOG4J}.LogManager").getContext(False)
        configured = context.getConfiguration().getLoggers()
        for name in STOP_LOGGERS:
            if not configured.containsKey(name):
                configurator.setLevel(name, off)
                quieted.append(name)
    return quieted


def _restore(spark: SparkSession, quieted: Sequence[str]) -> None:
    with suppress(Exception):  # of any class: the JVM may have gone meanwhile
        context = java_class(spark, f"{_LOG4J}.LogManager").getContext(False)
        for name in quieted:
            context.getConfiguration().removeLogger(name)
        context.updateLoggers()


DESCRIPTION = "spark.job.description"
"""The local property of a thread that describes its jobs."""


@contextmanager
def jobs_described(context: SparkContext, description: str) -> Iterator[None]:
    """Describe the jobs that this thread starts in the block. Afterwards it has its own description again; its job
    group stays as it is."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]  # None unsets it
