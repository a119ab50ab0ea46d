"""A time limit for what has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from mzplan.connectors.api.protocols import PROBE_TIMEOUT_S

Result = TypeVar("Result")


def bounded(work: Callable[[], Result], seconds: float = PROBE_TIMEOUT_S + 1) -> Result:
    """The result of `work`, or TimeoutError: resolving a name can take longer than libpq's own limit."""
    results: list[Result] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name="mzplan-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if problems:
        raise problems[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]
