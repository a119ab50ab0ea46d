"""A plan as text for people: the changes, what they restart and why, and what keeps running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mzplan.model.address import Address, natural_item
from mzplan.model.plan import FATES, Action, Change, Fate, FieldChange, Plan
from mzplan.model.words import count, first_names
from mzplan.plan.comparison import all_fields
from mzplan.plan.file import digest_of_plan
from mzplan.plan.highlights import changed_settings, restarts_elsewhere
from mzplan.render.cause_text import drift_lines
from mzplan.render.diagnostics import merge_equal, render_diagnostics
from mzplan.render.plan_groups import (
    common_fields,
    consequence,
    group_changes,
    group_row_lines,
    names,
    noun,
    row_lines,
    shapes,
)
from mzplan.render.previews import NO_PREVIEWS, Previews, preview_lines
from mzplan.render.query_text import is_explained, query_lines, worst_state
from mzplan.render.text import Paint, brief, cut, edit_of, full_length, lines_changed, lines_of, safe, value
from mzplan.render.warnings import MAX_SERVER_EDITS, warnings_of

SIGNS: Mapping[Fate, str] = {
    "create": "+",
    "update": "~",
    "restart": "⟳",
    "replace": "±",
    "delete": "-",
    "move": "→",
    "pause": "~",
    "resume": "~",
}
_COLOURS: Mapping[Action, str] = {
    "create": "green",
    "update": "yellow",
    "restart": "cyan",
    "replace": "magenta",
    "delete": "red",
    "move": "yellow",
}
ALWAYS = ("create", "update", "restart", "replace", "delete")
MAX_LISTED = 8
MAX_CAUSE_FIELDS = 3


def render_plan(
    plan: Plan,
    colour: bool = False,
    *,
    whole: bool = False,
    full: bool = False,
    previews: Previews = NO_PREVIEWS,
) -> str:
    """Format the whole plan, ending in a newline. ANSI codes are added only with `colour`.

    Many changes with one cause, or of one shape, become one paragraph. `whole` adds all of their names.
    `full` shows each change by itself. `previews` come after the changes.
    """
    return "\n".join(_Renderer(plan, colour, whole, full, previews).lines()) + "\n"


def render_changes(plan: Plan, colour: bool = False, *, whole: bool = False) -> str:
    """Format only the changes and their effects, for a plan that is only displayed."""
    lines = [*_Renderer(plan, colour, whole).changed()]
    shown = ", ".join(f"{n} to {fate}" for fate, n in plan.fates().items() if n)
    return "\n".join([*lines, f"Changes: {shown}." if shown else "No changes of resources."]) + "\n"


def headline(plan: Plan) -> str:
    """Return `Plan: 1 to create, 0 to update, …`, or that there is nothing to do."""
    if plan.is_empty:
        return f"No changes. {count(plan.unaffected + len(plan.downstream), 'resource')} as committed."
    counts, away = plan.fates(), len(restarts_elsewhere(plan))
    shown = [f"{counts[fate]} to {fate}" for fate in FATES if counts[fate] or fate in ALWAYS]
    if away:
        shown[shown.index(f"{counts['restart']} to restart")] += f" ({away} elsewhere)"
    shown += [f"{count(len(plan.settings_changes), 'setting')} to change"] if plan.settings_changes else []
    shown += [f"{len(plan.resuming)} to resume"] if plan.resuming else []
    return f"Plan: {', '.join(shown)}. {worst_state(plan)}".rstrip()


def plan_parts(
    plan: Plan, previews: Previews = NO_PREVIEWS
) -> tuple[list[list[tuple[Change, list[str]]]], list[str]]:
    """Return the parts of `render_plan` without colours.

    They are, by group, the lines of each change; and the lines about the settings and after the changes.
    """
    renderer = _Renderer(plan, False, previews=previews)
    rest = [*renderer._settings(), *renderer.after()]
    groups = [[(c, list(renderer.change_lines(c))) for c in group] for group in renderer.groups()]
    return groups, rest


def waits_for(plan: Plan) -> Mapping[Address, tuple[Address, ...]]:
    """Return, by waiting query, the canaries that it waits for."""
    waits: dict[Address, tuple[Address, ...]] = {}
    for canary in plan.canaries:
        for held in canary.holds:
            waits[held] = (*waits.get(held, ()), canary.address)
    return waits


def variables_of(plan: Plan) -> list[str]:
    """Format each variable that the plan was made with: `region=eu`."""
    return [
        f"{safe(name)}={value(given)}" for name, given in sorted(plan.variables.items(), key=natural_item)
    ]


def turns(plan: Plan) -> str:
    """Format the order of the canaries: `source.a; 3 queries wait for it, 60 s at most`."""
    first = tuple(canary.address for canary in plan.canaries)
    waiting = len({held for canary in plan.canaries for held in canary.holds})
    if not waiting:
        return f"{first_names(first, MAX_LISTED)}, with {plan.canaries[0].wait:g} s to make progress"
    verb = "waits" if waiting == 1 else "wait"
    pronoun = "it" if len(first) == 1 else "them"
    most = max(canary.wait for canary in plan.canaries)
    waits = f"{count(waiting, 'query', 'queries')} {verb} for {pronoun}, {most:g} s at most"
    return f"{first_names(first, MAX_LISTED)}; {waits}"


class _Renderer:
    def __init__(
        self,
        plan: Plan,
        colour: bool,
        whole: bool = False,
        full: bool = False,
        previews: Previews = NO_PREVIEWS,
    ):
        self.plan = plan
        self.previews = previews
        self.whole = whole
        self.full = full
        self.shapes = shapes(plan.changes)
        self.colour = colour
        self.paint = Paint(colour)
        self.by_address = {change.address: change for change in plan.changes}
        self.first = {canary.address for canary in plan.canaries}
        self.waits = waits_for(plan)

    def changed(self) -> Iterator[str]:
        yield from self._warnings()
        yield from self._settings()
        for group in self.groups():
            yield from self.change_lines(group[0]) if len(group) == 1 else self._group(group)
        if self.plan.changes or self.plan.settings_changes:
            yield ""
        yield from self._running()

    def groups(self) -> Iterator[list[Change]]:
        """Return the changes in their order. Changes that are shown together are one list."""
        return (
            ([change] for change in self.plan.changes)
            if self.full
            else group_changes(self.plan.changes, self._group_key)
        )

    def _warnings(self) -> Iterator[str]:
        warnings = [warning for warning in warnings_of(self.plan) if not warning.is_obvious]
        for warning in warnings:
            most = MAX_SERVER_EDITS if warning.names_servers else MAX_LISTED
            headline = self.paint(f"! {warning.headline}", "bold")
            yield f"{headline}: {first_names(warning.affected, most)}"
        if warnings:
            yield ""

    def _settings(self) -> Iterator[str]:
        if self.plan.settings_changes:
            sign = self.paint(SIGNS["update"], _COLOURS["update"])
            yield f"{sign} {self.paint('mzplan.yaml', 'bold')}  takes effect in runners; restarts nothing"
            ahead, others = changed_settings(self.plan)
            yield from (f"    {self._field(field, 'update')}" for field in (*ahead, *others))

    def _running(self) -> Iterator[str]:
        if self.plan.downstream:
            yield f"Still running downstream: {first_names(self.plan.downstream, MAX_LISTED)}"
        if self.plan.changes and self.plan.unaffected:
            yield f"Unaffected: {count(self.plan.unaffected, 'resource')}"

    def lines(self) -> Iterator[str]:
        yield from self.changed()
        yield from self._rest()

    def after(self) -> Iterator[str]:
        """Yield the lines after the changes."""
        yield from self._running()
        yield from self._rest()

    def _rest(self) -> Iterator[str]:
        yield from preview_lines(self.previews, self.paint)
        if self.plan.resuming:
            yield f"Resuming after a failed canary: {first_names(self.plan.resuming, MAX_LISTED)}"
        if self.plan.canaries:
            yield f"First: {turns(self.plan)}"
        yield from self._pending()
        drift = drift_lines(self.plan.drift, 200)
        yield from (f"Drift: {line}" for line in drift[:MAX_LISTED])
        if len(drift) > MAX_LISTED:
            yield f"Drift of {len(drift) - MAX_LISTED} more: `mzplan drift` lists them"
        if self.plan.diagnostics:
            diagnostics = self.plan.diagnostics if self.full else merge_equal(self.plan.diagnostics)
            yield render_diagnostics(diagnostics, self.colour)
            yield ""
        if self.plan.environment:
            yield f"Environment: {safe(self.plan.environment)}"
        if self.plan.variables:
            yield f"Variables: {', '.join(variables_of(self.plan))}"
        if not self.plan.is_empty:
            places = f"warehouse {safe(self.plan.warehouse)}, {_instances(self.plan)}"
            yield f"Digest: {digest_of_plan(self.plan)} ({places})"
        yield self.paint(headline(self.plan), "bold")

    def change_lines(self, change: Change) -> Iterator[str]:
        """Yield the lines of one change."""
        sign = self.paint(SIGNS[change.action], _COLOURS[change.action])
        parts = [_consequence(change), self._turn(change.address)]
        line = f"{sign} {self.paint(str(change.address), 'bold')}  {', '.join(filter(None, parts))}"
        yield line.rstrip()
        fields = change.fields
        if change.action == "create" and change.after is not None:
            fields = all_fields(change.after)
        for field in fields:
            if not is_explained(change, field):
                yield f"    {self._field(field, change.action)}"
        yield from (f"    {line}" for line in (*self._reasons(change), *row_lines(change)))

    def _group_key(self, change: Change) -> tuple[str, ...]:
        """Return everything that is shown for a change except its name. Equal changes are grouped."""
        shown = (field for field in change.fields if not is_explained(change, field))
        fields = tuple(self._field(field, change.action) for field in shown)
        turn = self._turn(change.address)
        if change.action == "create":
            return (change.action, str(self.shapes.get(change.address)), turn)
        return (change.action, consequence(change), turn, *fields, *self._reasons(change))

    def _group(self, group: list[Change]) -> Iterator[str]:
        first = group[0]
        sign = self.paint(SIGNS[first.action], _COLOURS[first.action])
        created = first.action == "create"
        number = count(len(group), first.address.kind) if created else noun(group)
        happens = "are new" if created else consequence(first)
        parts = [f"{self.paint(number, 'bold')} {happens}", self._turn(first.address)]
        because = list(self._reasons(first))
        cause = f" {because.pop()}" if len(because) == 1 else ""
        yield f"{sign} {', '.join(filter(None, parts))}{cause}"
        shown = (field for field in first.fields if not is_explained(first, field))
        yield from (f"    {self._field(field, first.action)}" for field in shown)
        if first.action == "create":
            yield from (f"    {safe(f.path)}: {_each(v, self.whole)}" for f, v in common_fields(group))
        yield from (f"    {line}" for line in (*because, *group_row_lines(group, whole=self.whole)))
        yield from names(group, whole=self.whole)

    def _turn(self, address: Address) -> str:
        """Return whether the query goes first, or which canaries it waits for; "" for neither."""
        if address in self.first:
            return "first"
        waits = self.waits.get(address)
        return f"after {first_names(waits, MAX_LISTED)}" if waits else ""

    def _field(self, field: FieldChange, action: Action) -> str:
        path = safe(field.path)
        if action == "create":
            lines = [] if field.sensitive else lines_of(field.after)
            return _block(f"{path}: |", lines) if lines else f"{path}: {_after(field)}"
        mark = {"replace": "  (replace)", "forbidden": "  (can't change)"}.get(field.effect, "")
        changed = [] if field.sensitive else lines_changed(field.before, field.after)
        return _block(f"{path}:{mark}", changed) if changed else f"{path}: {edit_of(field)}{mark}"

    def _reasons(self, change: Change) -> Iterator[str]:
        """Yield what becomes of the state, and the dependencies that cause the change, with their fields."""
        yield from query_lines(change)
        for cause in change.triggered_by:
            dependency = self.by_address.get(cause)
            way = change.ways.get(cause, ())
            through = f", through {' and '.join(map(str, way))}" if way else ""
            if dependency is None:
                yield f"because {cause} changed{through}"
            elif dependency.action == "replace":
                yield f"because {cause} is replaced"
            else:
                yield cut(f"because {cause} changed{through}: {_fields_in_line(dependency.fields)}", 200)
        if not change.triggered_by and not change.fields and change.action in ("restart", "replace"):
            yield f"because {change.reason}"

    def _pending(self) -> Iterator[str]:
        if not self.plan.pending:
            return
        yield self.paint("Committed, but not converged:", "yellow")
        for pending in self.plan.pending[:MAX_LISTED]:
            why = "" if pending.reason == pending.condition else f": {brief(pending.reason, 200)}"
            yield f"  {pending.address}  {pending.condition}{why}"
        if len(self.plan.pending) > MAX_LISTED:
            yield f"  and {len(self.plan.pending) - MAX_LISTED} more"


def _consequence(change: Change) -> str:
    """Return the effect of the change on running queries; "" if the action alone makes it clear."""
    if (fate := pause_effect(change)) and change.action in ("update", "restart"):
        return fate
    if change.action == "replace" and change.after is not None:
        how = "begins with the rows of its collection" if change.migrates_rows else "reads from the start"
        beside = ""
        if change.before is not None and change.after.is_replaced_beside:
            beside = f" beside generation {change.before.generation}"
        return f"begins again as generation {change.after.generation}{beside}: {how}"
    if change.action == "restart":
        return "restarts from its checkpoint"
    if change.action == "delete":
        return change.reason
    if change.action == "move" and change.before is not None:
        on = ": restarts from its checkpoint" if change.fate == "restart" else ", and nothing restarts"
        on = f": {fate}" if fate else on
        return f"was {change.before.address}{on}"
    if change.action != "update":
        return ""
    query = change.after is not None and bool(change.after.digest)
    match change.effect:
        case "restart":
            return "restarts from its checkpoint" if query else "restarts what uses it"
        case "replace":
            return "replaces what uses it"
        case "forbidden":
            return "can't be done"
    return "in place" if query else "restarts nothing"


def pause_effect(change: Change) -> str:
    """Return what a query does if `paused` changes or is set; "" otherwise."""
    if change.fate in ("pause", "resume"):
        return "pauses, and keeps its checkpoint" if change.fate == "pause" else "resumes from its checkpoint"
    is_set = change.after is not None and change.after.paused and change.address.is_query
    return "stays paused" if is_set and change.action != "replace" else ""


def _fields_in_line(fields: tuple[FieldChange, ...]) -> str:
    felt = [field for field in fields if field.effect != "in-place"] or list(fields)
    shown = [f"{safe(field.path)} {edit_of(field, 40)}" for field in felt[:MAX_CAUSE_FIELDS]]
    if len(felt) > MAX_CAUSE_FIELDS:
        shown.append(f"and {len(felt) - MAX_CAUSE_FIELDS} more")
    return ", ".join(shown)


def _each(values: tuple[str, ...], whole: bool) -> str:
    """Return the only value, or the number of different values and some of them."""
    shown = values if whole else values[:MAX_CAUSE_FIELDS]
    more = f" and {len(values) - len(shown)} more: -v lists them all" if len(shown) < len(values) else ""
    return f"{len(values)} values: {', '.join(shown)}{more}" if len(values) > 1 else values[0]


def _block(head: str, lines: Sequence[str]) -> str:
    return "\n      ".join([head, *lines])


def _after(field: FieldChange) -> str:
    return "(sensitive)" if field.sensitive else value(field.after, full_length(field))


def _instances(plan: Plan) -> str:
    """Format all instances: `instances local, embedded; west, cluster`."""
    shown = [
        f"{safe(name)}, {instance.type}"
        for name, instance in sorted(plan.instances.items(), key=natural_item)
    ]
    return f"instance{'' if len(shown) == 1 else 's'} {'; '.join(shown)}"
