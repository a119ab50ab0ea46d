"""Whether a saved plan is still valid: planning again must commit the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import error
from mzplan.model.plan import Change, Plan
from mzplan.model.state import ResourceState, State
from mzplan.model.words import first_names
from mzplan.plan.comparison import compare_resources
from mzplan.plan.file import digest_of_plan

MAX_SHOWN = 8  # differences in the error
MAX_FIELDS = 3


def ensure_same(saved: Plan, current: Plan, state: State) -> None:
    """Raise MZ036 (exit code 5), with the differences, unless both plans commit the same.

    `current` is the plan made again on `state`.
    """
    if saved.lineage and saved.lineage != current.lineage:
        differences = ["it was made for another state"]
    elif digest_of_plan(saved) == digest_of_plan(current):
        return
    else:
        differences = [*_changes(saved, current, state), *_settings(saved, current)] or ["it was edited"]
    more = f"; and {len(differences) - MAX_SHOWN} more" if len(differences) > MAX_SHOWN else ""
    raise error("MZ036.plan-stale", differences="; ".join(differences[:MAX_SHOWN]), more=more)


def _changes(saved: Plan, current: Plan, state: State) -> Iterator[str]:
    if saved.changes and all(_is_done(change, state) for change in saved.changes):
        yield "all its changes are done already"
        return
    old, new = ({change.address: change for change in plan.changes} for plan in (saved, current))
    for address in sorted(old.keys() | new.keys(), key=natural):
        committed = state.resources.get(address)
        if (difference := _difference(address, old.get(address), new.get(address), committed)) is not None:
            yield difference


def _is_done(change: Change, state: State) -> bool:
    committed, after = state.resources.get(change.address), change.after
    if committed is None or after is None:
        return committed is after
    return committed == replace(after, id=after.id or committed.id)


def _difference(
    address: Address, saved: Change | None, current: Change | None, committed: ResourceState | None
) -> str | None:
    if saved is None or current is None:
        if saved is not None and (fields := _fields(saved.before, committed)):
            return f"{address} was changed since ({fields})"
        planned, verb = (current, "would also") if current is not None else (saved, "would no longer")
        return f"{address} {verb} {planned.action}" if planned is not None else None
    if fields := _fields(saved.before, current.before):
        return f"{address} was changed since ({fields})"
    if fields := _fields(saved.after, current.after):
        return f"{address} would become something else ({fields})"
    if (saved.action, saved.effect, saved.fields) != (current.action, current.effect, current.fields):
        return f"{address} would {current.action}, with effect {current.effect}"
    return None


def _fields(one: ResourceState | None, other: ResourceState | None) -> str:
    """Return the differing fields as `brokers[0], security.protocol and 2 more`; "" for none."""
    if one is None or other is None:
        return "" if one is other else "added" if one is None else "removed"
    if one == other:
        return ""
    paths = [field.path for field in compare_resources(one, other)]
    if one.generation != other.generation:
        paths.append("its generation")
    if (one.override, one.restart_token) != (other.override, other.restart_token):
        paths.append("paused or restarted by hand")
    paths = paths or ["a connection it uses"]
    return first_names(paths, MAX_FIELDS)


def _settings(saved: Plan, current: Plan) -> Iterator[str]:
    if saved.project != current.project:
        yield f"the project is {current.project!r}, not {saved.project!r}"
    if saved.warehouse != current.warehouse:
        yield f"the warehouse is {current.warehouse!r}, not {saved.warehouse!r}"
    if dict(saved.instances) != dict(current.instances):
        names = saved.instances.keys() | current.instances.keys()
        changed = [n for n in sorted(names) if saved.instances.get(n) != current.instances.get(n)]
        yield f"the instances differ ({', '.join(changed)})"
    if (saved.settings, saved.settings_changes) != (current.settings, current.settings_changes):
        edits = [{field.path: field for field in plan.settings_changes} for plan in (saved, current)]
        paths = sorted(edits[0].keys() | edits[1].keys(), key=natural)
        differing = [path for path in paths if edits[0].get(path) != edits[1].get(path)] or paths
        named = f" ({first_names(differing, MAX_FIELDS)})" if differing else ""
        yield f"the settings of runners differ{named}"
    if saved.canaries != current.canaries:
        yield "other queries would restart first"
    if saved.resuming != current.resuming:
        yield "other held queries would be released"
    for address in sorted({*saved.losing} ^ {*current.losing}, key=natural):
        yield f"{address} {'would lose rows' if address in current.losing else 'would no longer lose rows'}"
