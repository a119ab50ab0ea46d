"""Canaries: queries that restart first, and must make progress before those that wait restart too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.stored import SPARSE

DEFAULT_WAIT = 60.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A query that goes first. Until it has made progress, which it must within `wait` seconds, the queries
    that it `holds` run on as they were last accepted. `serial` is that of the commit it was made with (0: it
    is not committed yet): another one is another attempt."""

    address: Address
    wait: float
    holds: tuple[Address, ...] = ()
    serial: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a canary ended, as its runner has decided once and for all. `condition`, `reason` and `code` are
    of a canary that has not passed: rejected before anything was stopped, or failed."""

    serial: int
    passed: bool
    condition: Literal["rejected", "failed"] = "failed"
    reason: str = ""
    code: str = ""
