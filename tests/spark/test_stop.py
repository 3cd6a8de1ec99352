"""What Spark logs while an app stops: nothing on the loggers of what the app itself ends, and as before afterwards."""

from typing import Any

import pytest

from upriver.spark.session import STOP_LOGGERS, stop_unlogged

pytestmark = pytest.mark.spark


def level(spark: Any, name: str) -> str:
    """At which level a logger of the JVM logs."""
    return str(spark._jvm.org.apache.logging.log4j.LogManager.getLogger(name).getLevel())


def set_level(spark: Any, name: str, to: str) -> None:
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(name, log4j.Level.getLevel(to))


def test_spark_says_nothing_of_what_the_app_ends_and_speaks_again_afterwards(spark: Any) -> None:
    before = [level(spark, name) for name in STOP_LOGGERS]
    assert "OFF" not in before
    with stop_unlogged(spark):
        assert {level(spark, name) for name in STOP_LOGGERS} == {"OFF"}
    assert [level(spark, name) for name in STOP_LOGGERS] == before


def test_a_level_that_the_user_has_set_stays(spark: Any) -> None:
    name = STOP_LOGGERS[0]
    set_level(spark, name, "INFO")
    try:
        with stop_unlogged(spark):
            assert level(spark, name) == "INFO"
        assert level(spark, name) == "INFO"
    finally:
        log4j = spark._jvm.org.apache.logging.log4j
        context = log4j.LogManager.getContext(False)
        context.getConfiguration().removeLogger(name)
        context.updateLoggers()
