"""The history of the state: its commits, and what each of them has changed."""

from __future__ import annotations

from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.history import HistoryEntry
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.store.store import Store


def entry_of(store: Store, serial: int) -> HistoryEntry:
    """One serial. Raises MZ038 (exit 7) where the history has none of that number."""
    state = committed_state(store, serial)
    return HistoryEntry(
        serial=serial,
        current=store.read_state().serial == serial,
        commit=state.commit,
        outcome=store.read_outcome(state.lineage, serial),
    )


def changes_of(store: Store, serial: int) -> Plan:
    """What a serial has changed of the one before it, as a plan (to be shown). Raises MZ038."""
    earlier = [one for one in store.serials() if one < serial]
    after = committed_state(store, serial)
    before = store.read_serial(earlier[-1]) if earlier else None
    return _plan(before or State(project=after.project, lineage=after.lineage), after)


def changes_between(store: Store, one: int, other: int) -> Plan:
    """What is to change of one serial to make another of it, as a plan (to be shown). Raises MZ038."""
    return _plan(committed_state(store, one), committed_state(store, other))


def committed_state(store: Store, serial: int) -> State:
    """A serial, current or earlier. Raises MZ038 (exit 7) where there is none."""
    current = store.read_state()
    found = current if current.serial == serial and current.lineage else store.read_serial(serial)
    if found is None:
        raise no_serial(store, serial, current.serial)
    return found


def no_serial(store: Store, serial: int, current: int = 0) -> MzplanError:
    """MZ038 (exit 7): no such serial. `current`: the newest, if that can be read."""
    there = [one for one in (*store.serials(), current) if one > 0]
    return error(
        "MZ038",
        f"There is no serial {serial} in the history",
        f"The history of {store.backend.describe()} has: "
        + (f"{there[0]} to {there[-1]}." if there else "none."),
        "name one of these; `mzplan history` lists them.",
        exit_code=ExitCode.REFUSED,
    )


def _plan(before: State, after: State) -> Plan:
    from mzplan.plan.between import plan_between

    return plan_between(before, after)
