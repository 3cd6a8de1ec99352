"""Where Spark runs workers: its executors, where the workers' tasks run, and a task with a preferred executor.

A preference is no demand: if the executor has no free slot for ``spark.locality.wait``, Spark runs the task elsewhere.
"""

import pickle
import time
from collections.abc import Iterator
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import CPickleSerializer

from upriver.coordinator.spread import ExecutorId, ExecutorSlots

HOSTS_S_MAX = 3.0
"""Seconds from the beginning of a session on in which a start waits for executors on a second host, when those of one
host would do."""
_POLL_S = 0.1
_ATTEMPTS_MAX = 10
"""Attempts of a task among which those that run are looked for."""
_DRIVER = "driver"


def executors_of(context: SparkContext) -> list[ExecutorSlots]:
    """The executors that are up. In local mode there is none: the driver runs all tasks."""
    return [
        ExecutorSlots(
            ExecutorId(str(found.id())),
            str(found.hostPort()).rpartition(":")[0],
            int(found.maxTasks()),
            int(found.activeTasks()),
        )
        for found in _each(context._jsc.sc().statusStore().executorList(True))
        if str(found.id()) != _DRIVER
    ]


def wait_for_hosts(context: SparkContext, workers: int, seconds: float) -> None:
    """Give executors on a second host time to register, so that workers do not all start on the first one. Those of a
    session that has begun long ago have registered."""
    age_s = time.time() - context.startTime / 1000
    give_up_at = time.monotonic() + min(seconds, HOSTS_S_MAX - age_s)
    while workers > 1 and len({executor.host for executor in executors_of(context)}) == 1:
        if time.monotonic() >= give_up_at:
            return
        time.sleep(_POLL_S)


def running_attempts(context: SparkContext, tag: str) -> dict[int, ExecutorId]:
    """The attempts that run of the task of the job with this tag, by Spark's number, oldest first: where each runs.
    Speculation adds copies."""
    spark, attempts = context._jsc.sc(), dict[int, ExecutorId]()
    for job in spark.statusTracker().getJobIdsForTag(tag):
        found = spark.statusTracker().getJobInfo(job)
        for stage in [] if found.isEmpty() else found.get().stageIds():
            for task in _each(spark.statusStore().taskList(stage, 0, _ATTEMPTS_MAX)):
                if task.status() == "RUNNING":
                    attempts[int(task.taskId())] = ExecutorId(str(task.executorId()))
    return dict(sorted(attempts.items()))


def one_task(context: SparkContext, executor: ExecutorSlots | None) -> "RDD[int]":
    """An RDD of one partition, which Spark computes on this executor if it can."""
    if executor is None:
        return context.parallelize([0], 1)
    jvm = context._jvm
    assert jvm is not None
    places = [f"executor_{executor.host}_{executor.id}"]
    preferred = jvm.scala.Tuple2(pickle.dumps(0), _seq(jvm, places))
    bytes_of = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").apply(jvm.java.lang.Class.forName("[B"))
    rows = context._jsc.sc().makeRDD(_seq(jvm, [preferred]), bytes_of)
    return RDD(rows.toJavaRDD(), context, CPickleSerializer())


def _seq(jvm: Any, items: list[Any]) -> Any:
    """A list as Scala's."""
    java = jvm.java.util.ArrayList()
    for item in items:
        java.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(place) for place in range(items.size()))
