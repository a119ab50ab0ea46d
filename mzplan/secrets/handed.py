"""What a command hands to the runners of its own machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mzplan.secrets.policy import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """`values` of `${env:NAME}` references, by name; `flows`: where a command that commits sends secrets.
    `proposal`: the id of the one for whose validation alone the values are. `state`: the digest of the state
    with whose commit they are taken over (Store.serial_digest). Neither: they are used from now on."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    flows: Collection[Flow] = ()
    proposal: str = ""
    state: str = ""


NOTHING_HANDED = Handed()
