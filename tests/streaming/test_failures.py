"""A line for what a query failed with."""

import pytest

from streaming.failures import failure_of

TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0
in stage 1.0 failed 1 times, most recent failure: Lost task 0.0: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "a.py", line 1, in pull
    raise ValueError("the first one")
ValueError: the first one

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in write
    raise InvalidArgument(
cloud_sdk.errors.InvalidArgument: batch 3 of the producer q/0: other messages

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Caused by: something: else
Driver stacktrace: SQLSTATE: XXKST"""
ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved. SQLSTATE: 42703;
'Project ['a]
+- Relation

JVM stacktrace:
org.apache.spark.sql.AnalysisException
\tat org.apache.spark"""
OPTION = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
streaming.option_values.OptionError: unknown option 'topik'; did you mean topic?
 SQLSTATE: 38000"""
CALL = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'x'
\tat org.apache.spark.SparkContext"""


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (TASK, "cloud_sdk.errors.InvalidArgument", "batch 3 of the producer q/0: other messages"),
        (ANALYSIS, "", "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved."),
        (OPTION, "streaming.option_values.OptionError", "unknown option 'topik'; did you mean topic?"),
        (CALL, "", "Could not parse Master URL: 'x'"),
        ("x" * 1_000, "", "x" * 599 + "…"),
        ("", "", "it failed for an unknown reason"),
        ("no user 'a b': c\nmore", "", "no user 'a b': c"),
    ],
)
def test_the_cause_without_its_stacks(text: str, kind: str, reason: str) -> None:
    failure = failure_of(text)
    assert (failure.kind, failure.reason, failure.is_away) == (kind, reason, False)


def test_a_node_that_is_away_may_come_back() -> None:
    text = 'Traceback (most recent call last):\n  File "a"\ncloud_sdk.errors.Unavailable: refused\n'
    assert failure_of(text).is_away


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted: org.apache.spark.SparkException: Python worker failed to connect back.",
        "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back",
        "State server socket closed before the Python worker connected",
        "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] it took too long",
    ],
)
def test_a_python_process_that_was_too_slow_is_told_from_other_failures(text: str) -> None:
    assert failure_of(text).is_late_worker
    assert not failure_of(TASK).is_late_worker
