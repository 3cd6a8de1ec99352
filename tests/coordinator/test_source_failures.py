"""Which failures of a source are worth another attempt: a table of what Spark says."""

import pytest

from upriver.coordinator.sources import ERROR_CHARS_MAX, SourceFault, judge, stall

FAILED = SourceFault("StreamingQueryException", "STREAM_FAILED", "XXKST", "[STREAM_FAILED] Query terminated")
UNKNOWN_TOPIC = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
INVALID_BATCH = "assertion failed: Invalid batch: id#1L,name#2 != id#3L,name#4,more#5"
ABORTED = SourceFault("org.apache.spark.SparkException", None, None, "Job aborted due to stage failure")


def spark(condition: str, state: str | None = None) -> SourceFault:
    return SourceFault("org.apache.spark.SparkException", condition, state, f"[{condition}] it says")


def java(kind: str, text: str = "it says") -> SourceFault:
    return SourceFault(kind, None, None, text)


@pytest.mark.parametrize(
    ("chain", "is_permanent", "advice"),
    [
        # may go away
        ([spark("FAILED_READ_FILE.NO_HINT", "KD001"), java("java.lang.RuntimeException")], False, "Repair or restore"),
        ([spark("FAILED_READ_FILE.FILE_NOT_EXIST", "KD001")], False, "Repair or restore the file"),
        ([spark("FAILED_READ_FILE.SOMETHING_NEW", "KD001")], False, "Repair or restore the file"),
        ([spark("PATH_NOT_FOUND", "42K03")], False, "when the cause is gone"),
        (
            [spark("TASK_WRITE_FAILED", "58030"), java("java.io.IOException", "No space left on device")],
            False,
            "continues",
        ),
        ([ABORTED, java("java.io.IOException", "No space left on device")], False, "continues where it was"),
        ([FAILED, java("org.apache.kafka.common.errors.TimeoutException")], False, "Check that the servers run"),
        ([FAILED, java("java.net.ConnectException", "Connection refused")], False, "Check that the servers run"),
        ([FAILED, java(UNKNOWN_TOPIC), java("X")], False, "Check that the topic or table exists"),
        ([FAILED, spark("DELTA_SCHEMA_NOT_SET", "KD008")], False, "Check that the topic or table exists"),
        ([FAILED, java("java.lang.AssertionError", "assertion failed")], False, "continues where it was"),
        ([spark("UNABLE_TO_ACQUIRE_MEMORY", "53200")], False, "continues where it was"),
        ([spark("SOMETHING_OF_TOMORROW", None)], False, "continues where it was"),
        ([java("TypeError")], False, "continues where it was"),
        ([spark("CONCURRENT_STREAM_LOG_UPDATE", "40000")], False, "continues where it was"),
        # may not
        ([spark("FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH", "KD001")], True, "has other columns"),
        ([FAILED, spark("STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY", "42K03")], True, "Restore the checkpoint"),
        ([FAILED, spark("STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "42K03")], True, "Restore the checkpoint"),
        ([FAILED, spark("MALFORMED_LOG_FILE", "KD002")], True, "Restore the checkpoint"),
        ([FAILED, java("x.KafkaException"), spark("KAFKA_DATA_LOSS.START_OFFSET_RESET", "22000")], True, "has dropped"),
        ([FAILED, spark("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "0A000")], True, "takes no updates or deletes"),
        ([FAILED, spark("KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED", "22000")], True, "has dropped rows"),
        ([FAILED, spark("DELTA_SCHEMA_CHANGED_WITH_VERSION", "KD007")], True, "has other columns"),
        ([FAILED, java("java.lang.AssertionError", INVALID_BATCH)], True, "has other columns"),
        ([FAILED, spark("DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART", "KD007")], True, "has other columns"),
        ([FAILED, spark("DELTA_STREAMING_METADATA_EVOLUTION", "22000")], True, "has other columns"),
        ([FAILED, spark("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE", "42KD4")], True, "has other columns"),
        ([FAILED, spark("DELTA_MISSING_FILES_UNEXPECTED_VERSION", "42K03")], True, "has dropped rows"),
        ([FAILED, spark("DELTA_TRUNCATED_TRANSACTION_LOG", "42K03")], True, "has dropped rows"),
        ([ABORTED, spark("DIVIDE_BY_ZERO", "22012")], True, "The row comes again"),
        ([ABORTED, spark("USER_RAISED_EXCEPTION", "P0001")], True, "The row comes again"),
        ([FAILED, spark("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703")], True, "Declare the table"),
        ([FAILED, spark("STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION", "42KDE")], True, "Declare the table"),
        ([spark("INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS", "51024")], True, "has other columns"),
        ([FAILED, java("java.lang.UnsupportedOperationException")], True, "Declare the table"),
    ],
)
def test_a_failure_is_judged_by_what_spark_says(chain: list[SourceFault], is_permanent: bool, advice: str) -> None:
    failure = judge(chain)
    assert failure.is_permanent == is_permanent
    assert advice in failure.error


def test_a_stall_says_what_spark_is_at() -> None:
    assert 'for 60 s. Spark says "Getting offsets". Check' in stall(" Getting\n offsets ")
    assert "for 60 s. Check" in stall("")


def test_what_is_said_is_the_error_its_cause_the_place_and_what_helps() -> None:
    chain = [
        FAILED,
        SourceFault("SparkException", "TASK_WRITE_FAILED", "58030", "Task failed."),
        java("E", "No space left"),
    ]
    told = "Task failed (No space left) (its checkpoint is /lake). It continues where it was when the cause is gone."
    assert judge(chain, " (its checkpoint is /lake)").error == told


def test_an_error_without_words_is_named_and_long_ones_are_cut() -> None:
    assert judge([java("java.lang.NullPointerException", "")]).error.startswith("java.lang.NullPointerException. ")
    assert len(judge([java("E", "x" * 10_000)]).error) < ERROR_CHARS_MAX + 100
