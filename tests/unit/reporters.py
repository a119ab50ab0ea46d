"""A reporter that says nothing, for operations called without a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from mzplan.model.address import Address
from mzplan.operations.project import Outcome


class SilentReporter:
    def working(self, text: str | Callable[[], str]) -> AbstractContextManager[None]:
        return nullcontext()

    def stage(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def committing(self, serial: int) -> None: ...

    def committed(self, serial: int) -> None: ...

    def outcome(self, outcome: Outcome) -> None: ...

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None: ...
