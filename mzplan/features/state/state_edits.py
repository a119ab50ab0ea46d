"""Work on the state itself: rename, forget, adopt, roll back, move between backends. Each under the lock, as
a new serial; runners follow as they follow any commit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from mzplan.features.state.edit_plans import forgotten_by, plan_adopt, plan_forget, plan_move, plan_rollback
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.history import HistoryEntry
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.operations.apply import LOCK_WAIT, refuse
from mzplan.operations.history import no_serial, record_of, record_outcome
from mzplan.operations.project import Project, Reporter, Runners, Work, committing, read_state
from mzplan.secrets.policy import NOTHING_HANDED
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.formats import decode_state, encode_state
from mzplan.store.store import Store, serial_key

DAMAGED = frozenset({"MZ030", "MZ032"})


def move(
    work: Work,
    old: Address,
    new: Address,
    message: str | None = None,
) -> Plan:
    """`state mv`: another name for the same thing."""
    why = message if message is not None else f"{old} is {new}"
    return _edit(work, "state mv", lambda state: plan_move(state, old, new), why)


def forget(
    work: Work,
    addresses: list[Address],
    message: str | None = None,
) -> Plan:
    """`state rm`: out of the state; its storage stays, and can be imported again."""

    def keep(plan: Plan, new: State) -> State:
        return replace(new, forgotten={**new.forgotten, **forgotten_by(plan)})

    why = message if message is not None else f"Forgot {', '.join(map(str, addresses))}"
    return _edit(work, "state rm", lambda state: plan_forget(state, addresses), why, finish=keep)


def roll_back(
    work: Work,
    serial: int | None,
    approve: Callable[[Plan, list[HistoryEntry]], None],
    message: str | None = None,
) -> Plan:
    """`state rollback`: the resources of an earlier serial (None: the last one), as the next serial.
    `approve` is also given the commits that it undoes, the newest first."""
    undone: list[HistoryEntry] = []
    why = message or ""

    def planned(state: State) -> Plan:
        nonlocal why
        there = work.store.serials()
        wanted = serial if serial is not None else max((s for s in there if s < state.serial), default=None)
        then = work.store.read_serial(wanted) if wanted is not None else None
        if then is None or then.lineage != state.lineage:
            shown = f"{there[0]} to {there[-1]}" if there else "none"
            raise error(
                "MZ038",
                f"There is no serial {wanted} to go back to" if wanted is not None else "There is no history",
                f"The state is at serial {state.serial}; its history has: {shown}.",
                "name one of these; `mzplan history` lists them.",
                exit_code=ExitCode.REFUSED,
            )
        undone.extend(e for e in work.store.read_history() if e.serial > then.serial)
        if message is None:
            why = f"Back to serial {then.serial}"
        return plan_rollback(state, then)

    def approved(plan: Plan) -> None:
        approve(plan, undone)

    return _edit(work, "state rollback", planned, lambda: why, approve=approved)


def plan_import(
    work: Work,
    state: State,
    address: Address,
    id_: str | None,
    generation: int | None,
) -> Plan:
    """`import`: the plan that adds a declared resource with the checkpoint and table of an id (None: that of
    `state rm` under this name)."""
    from mzplan.operations.plan import validate

    configuration = validate(work.project, work.reporter)
    if id_ is None:
        known = {i: g for i, (a, g) in state.forgotten.items() if a == address}
        if len(known) != 1:
            raise error(
                "MZ039",
                f"What {address} is to adopt is not known",
                f"The state remembers {len(known)} forgotten checkpoints of this name"
                + (f": {', '.join(sorted(known, key=natural))}." if known else "."),
                "name it: mzplan import ADDRESS --id ID, the folder's name under checkpoints/.",
                address=address,
                exit_code=ExitCode.REFUSED,
            )
        ((id_, remembered),) = known.items()
        generation = generation or remembered
    if generation is None:
        generation = state.forgotten[id_][1] if id_ in state.forgotten else 1
    plan = plan_adopt(configuration, state, address, id_, generation)
    _check_storage(work.project, plan.warehouse, address, id_, generation)
    return plan


def pull(project: Project, serial: int | None = None) -> tuple[bytes, bytes | None, list[str]]:
    """`state pull`: the state file (or an earlier serial), byte for byte; the records of its runners (see
    migration), or None; and the instances whose runner is alive. Raises MZ030 where there is no state."""
    from mzplan.features.state.migration import collect_records

    if serial is None:
        project.store.read_state()  # raises for one that is lost, or another than the latest
    blob = project.store.backend.read(STATE_KEY if serial is None else serial_key(serial))
    if blob is None and serial is not None:
        # The history has only what came before the state, which may be damaged.
        with suppress(MzplanError):
            if project.store.read_state().serial == serial:
                blob = project.store.backend.read(STATE_KEY)
    if blob is None and serial is not None:
        raise no_serial(project.store, serial)
    if blob is None:
        place = project.store.backend.describe()
        raise error("MZ030", f"There is no state in {place}", "Nothing was applied yet.", "apply first.")
    state = decode_state(blob.data, f"{place_of(project)}")
    led = [
        name for name in sorted(state.instances, key=natural) if project.store.leases.leader(name) is not None
    ]
    return blob.data, collect_records(project.store, state.lineage), led


def place_of(project: Project) -> str:
    return f"{project.store.backend.describe()}/{STATE_KEY}"


def push(
    work: Work,
    data: bytes,
    name: str,
    *,
    force: bool,
    carried: bytes | None = None,
    message: str | None = None,
) -> tuple[int, bool]:
    """`state push`: make a state file the state: in an empty store unchanged, with the records of its runners
    (`carried`, see migration); else as a later serial, with only the epoch of `carried`. Returns the serial,
    and whether it was written.

    Raises MZ248 for another environment's, and MZ034 for another lineage and MZ038 where the store is ahead,
    all exit 7; `force` overrides the last two, and a state that is damaged.
    """
    from mzplan.features.state.migration import read_records, refuse_open_edit, write_epoch, write_records

    given = decode_state(data, name)
    refuse_open_edit(work.project)
    if given.project != work.project.settings.project:
        raise error(
            "MZ034",
            "The state belongs to another project",
            f"{name} is of project {given.project!r}, and this is {work.project.settings.project!r}.",
            "push it in its own folder.",
            exit_code=ExitCode.REFUSED,
        )
    store = work.store
    store.ensure_own(given, name)
    records = read_records(carried, f"{name}.runners", given.lineage)
    with ExitStack() as held:
        with work.reporter.working("waiting for the lock of the state"):
            held.enter_context(store.lock("state push", LOCK_WAIT))
        try:
            state = read_state(store, work.reporter)
        except MzplanError as problem:
            if not force or problem.diagnostics[0].code not in DAMAGED:
                raise
            write_epoch(store, records)
            given = replace(given, commit=record_of(work.project, "state push", None, message or ""))
            new = _over_what_is_damaged(store, given, work.reporter)
            record_outcome(store, work.reporter, new, None)
            _wake(work.runners, new)
            return new.serial, True
        if state.serial == 0 and not state.lineage:
            new = given
            write_records(store, records)  # before the commit: a runner that follows it finds them
        elif encode_state(replace(given, serial=state.serial, commit=state.commit)) == encode_state(state):
            write_epoch(store, records)
            return state.serial, False
        else:
            if not force:
                _check_push(given, state, name)
            write_epoch(store, records)
            record = record_of(work.project, "state push", None, message or "")
            new = replace(given, serial=max(given.serial, state.serial + 1), commit=record)
        with committing(work.reporter, new.serial):
            store.commit(new, state)
        if new is not given:
            record_outcome(store, work.reporter, new, None)
    _wake(work.runners, new)
    return new.serial, True


def _over_what_is_damaged(store: Store, given: State, reporter: Reporter) -> State:
    """Replace a state that can't be read, which stays in the history, with a whole one."""
    there = max(store.serials(), default=0)
    # Its serial, where that can be found: a runner that knows it takes in only a later one.
    with suppress(MzplanError):
        there = max(there, store.read_edited().serial)
    with suppress(MzplanError):
        there = max(there, *(status.serial for status in store.read_statuses().values()), 0)
    new = replace(given, serial=max(given.serial, there) + 1)
    with committing(reporter, new.serial):
        store.replace_damaged(new)
    return new


def _check_push(given: State, state: State, name: str) -> None:
    if given.lineage != state.lineage:
        raise error(
            "MZ034",
            "The state belongs to another history",
            f"{name} has lineage {given.lineage}, and the store has {state.lineage}. Nothing was changed.",
            "push it into an empty store; or, if it shall replace what is there, with --force.",
            exit_code=ExitCode.REFUSED,
        )
    if given.serial <= state.serial:
        raise error(
            "MZ038",
            "The store is ahead of what is pushed",
            f"{name} has serial {given.serial}, and the store has {state.serial}: commits would be lost. "
            "Nothing was changed.",
            "pull anew and make the change again; or, if they shall be lost, --force.",
            exit_code=ExitCode.REFUSED,
        )


def _edit(
    work: Work,
    command: str,
    planned: Callable[[State], Plan],
    message: str | Callable[[], str],
    *,
    approve: Callable[[Plan], None] | None = None,
    finish: Callable[[Plan, State], State] | None = None,
) -> Plan:
    """Plan, refuse, commit, wake. Nothing is started or waited for: runners follow by themselves."""
    from mzplan.plan import apply_changes

    store = work.store
    with ExitStack() as held:
        with work.reporter.working("waiting for the lock of the state"):
            held.enter_context(store.lock(command, LOCK_WAIT))
        state = read_state(store, work.reporter)
        plan = planned(state)
        refuse(plan, allow_replace=True)
        if plan.is_empty:
            return plan
        if approve is not None:
            approve(plan)
        why = message if isinstance(message, str) else message()
        new = apply_changes(state, plan, record=record_of(work.project, command, plan, why))
        new = finish(plan, new) if finish is not None else new
        with committing(work.reporter, new.serial):
            store.commit(new, state)
        record_outcome(store, work.reporter, new, None)
    _wake(work.runners, new)
    return plan


def _wake(runners: Runners, state: State) -> None:
    for instance in state.instances.values():
        runners.wake(instance, NOTHING_HANDED)
        runners.settle(instance, LOCK_WAIT)


def _check_storage(project: Project, warehouse: str, address: Address, id_: str, generation: int) -> None:
    """Raise MZ039 where the warehouse is on this machine and lacks what is to be adopted. Elsewhere the
    runner checks it."""
    from mzplan.warehouse.paths import absolute, local_path

    place = local_path(absolute(project.settings.directory, warehouse))
    if place is None:
        return
    below = f"{id_}/g{generation}"
    needed = [Path(place) / "checkpoints" / below]
    if address.kind == "source":
        needed.append(Path(place) / "collections" / below)
    missing = [str(path) for path in needed if not path.is_dir()]
    if missing:
        raise _not_there(address, missing)


def _not_there(address: Address, missing: list[str]) -> MzplanError:
    return error(
        "MZ039",
        f"There is nothing for {address} to adopt",
        f"Not there: {', '.join(missing)}.",
        "look below checkpoints/ and collections/ of the warehouse, and give --id and --generation.",
        address=address,
        exit_code=ExitCode.REFUSED,
    )
