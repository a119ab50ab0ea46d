"""Reports the errors of the Python functions that write micro-batches (Spark's `foreachBatch`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Spark finds these texts in an error of Python if a stop has interrupted the batch (StreamExecution).
_FROM_JAVA = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


@contextmanager
def micro_batch(fail: Callable[[BaseException], None]) -> Iterator[None]:
    """Pass the error of a micro-batch to `fail`, and a short one to Spark.

    Spark's regular expression for interrupted batches recurses for each character. A text as long as Java's
    stacks of a merge overflows the stack of the query's thread, while the query stops.
    """
    try:
        yield
    except BaseException as problem:  # such as asyncio's CancelledError: PySpark handles only an Exception
        fail(problem)
        raise RuntimeError(_text_for_spark(problem)) from None


def _text_for_spark(problem: BaseException) -> str:
    _, is_from_java, text = "".join(traceback.format_exception(problem)).partition(_FROM_JAVA)
    interruption = next((name for name in _INTERRUPTIONS if name in text), "")
    if is_from_java and interruption:
        return f"{_FROM_JAVA} a method: {interruption}"
    return f"the micro-batch failed: {type(problem).__name__}"
