"""Plans for `replay`: steps of a sink once more into its target, recorded in the state until that is done."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.connectors.catalogue import find_connector
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.state import Replay, ResourceState, State
from mzplan.plan.errands import left_of, plan_errands
from mzplan.plan.manual_changes import committed

Range = tuple[int, int | None]
"""The first and last step of a range, both included; None: up to the newest."""
_NO_STATUS: Mapping[str, Status] = {}


def plan_replay(
    state: State,
    address: Address,
    steps: Range | None,
    *,
    missing: bool,
    statuses: Mapping[str, Status] = _NO_STATUS,
) -> Plan:
    """Write these steps of a sink (None: all of them) into its target once more; with `missing`, only the
    rows that it lacks. The query restarts for it.

    Raises MzplanError where that can't be done or would do damage: MZ295, MZ296.
    """
    before = committed(state, address)
    _ensure_able(before, missing=missing)
    first, last = steps or (0, None)
    new = Replay(
        serial=state.serial + 1, first=first, last=last, missing=missing, generation=before.generation
    )
    left = left_of(before, statuses)
    if same := next((one for one in left if str(one) == str(new)), None):
        raise _refused(
            "MZ296",
            address,
            f"The replay of {address} {same} was already requested",
            f"Serial {same.serial} has asked for it, and no runner has reported it done.",
            f"wait for it (mzplan status); to have it once more, ask again then. mzplan replay {address} "
            "--cancel gives it up.",
        )
    return plan_errands(state, before, (*left, new), statuses)


def plan_without_replays(state: State, address: Address, statuses: Mapping[str, Status] = _NO_STATUS) -> Plan:
    """Give up the replays of a sink that are not done. Raises MzplanError MZ296 where there are none."""
    before = committed(state, address)
    if not left_of(before, statuses):
        raise _refused(
            "MZ296",
            address,
            f"{address} has no replay that could be given up",
            "None was asked for, or its runner has reported it done.",
            f"`mzplan status {address} --json` lists those that are done.",
        )
    return plan_errands(state, before, (), statuses)


def _ensure_able(record: ResourceState, *, missing: bool) -> None:
    address = record.address
    if address.kind != "sink":
        why = "Only a sink has a target, into which steps could be written once more."
        raise _unable(address, why, "name a sink; a source reads a range again by mzplan backfill.")
    connector = find_connector(record.type)
    if connector is None or not connector.replays:
        why = f"What a sink of type {record.type} has written can't be put right row by row."
        anew = f"let it write all rows anew: mzplan apply --replace {address} --allow-replace"
        raise _unable(address, why, anew)
    if not missing and record.body.get("mode", "append") == "append":
        why = (
            "It appends, and its target does not say of a row which step it came with: it could not be taken "
            "away first, and would be there twice."
        )
        raise _unable(address, why, "add --missing, which writes only the rows that the target lacks.")
    if record.paused:
        why = "It is paused: until it is resumed, its source may give up these steps."
        raise _unable(address, why, f"mzplan resume {address}, then ask again.")


def _unable(address: Address, why: str, hint: str) -> MzplanError:
    return _refused("MZ295", address, f"Steps of {address} can't be replayed", why, hint)


def _refused(code: str, address: Address, summary: str, detail: str, hint: str) -> MzplanError:
    return error(code, summary, detail, hint, address=address, exit_code=ExitCode.REFUSED)
