"""A reporter that says nothing, for operations called without a command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from mzplan.operations.project import Reporter


class SilentReporter(Reporter):
    def working(self, text: str | Callable[[], str]) -> AbstractContextManager[None]:
        return nullcontext()
