"""What a controller knows after a round, for whoever writes the Status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.reconcile import Decision, Desired, Memory
from mzplan.controller.types import Step
from mzplan.model.address import Address
from mzplan.model.state import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The lease under which an instance is led, as it was renewed last. `lost`: why it is led no more."""

    lease: Lease
    lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """One query. `wanted`: as it is committed; None where it is no longer, and still there or about to come
    up. `decision`: that of the last round; None while the engine opens. `upstream`: the identity of what it
    reads. `keeps`: what its collection keeps for it alone. `reached`: its last step, as far as is known
    without a run; -1 for none."""

    wanted: Desired | None
    decision: Decision | None
    memory: Memory
    upstream: Any = None
    keeps: str | None = None
    reached: Step = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`busy`: something is under way that is worth another look at once. `maintained`: the source whose
    collection storage is writing. `secrets`: digests of the values in use, by reference. `foreign`: what runs
    in the engine and was not started here."""

    queries: Mapping[Address, QueryState] = field(default_factory=dict)
    busy: bool = False
    maintained: Address | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
