"""A plan, or drift, as a review comment: Markdown that always fits a forge's limit.

The headline, the counts, and warnings about queries that stop or are replaced come first. Details are folded.
If they don't fit, the least important ones are dropped; the summary never is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from mzplan.model.address import Address, natural_item
from mzplan.model.plan import ACTIONS, FATES, Change, DriftItem, FieldChange, Plan
from mzplan.plan.comparison import all_fields
from mzplan.plan.file import digest_of_plan
from mzplan.plan.highlights import changed_settings, restarts_elsewhere
from mzplan.render.cause_text import drift_lines
from mzplan.render.diagnostics import merge_equal, render_diagnostics
from mzplan.render.html import (
    LIMIT,
    alert,
    code,
    fence,
    fit_comment,
    folded,
    length,
    link,
    many,
    names,
    shorten,
)
from mzplan.render.plan_groups import group_changes, row_lines, shapes, title
from mzplan.render.plan_text import ALWAYS, SIGNS, pause_effect, turns, variables_of
from mzplan.render.previews import NO_PREVIEWS, Previews, preview_sections
from mzplan.render.query_text import is_explained, query_lines, worst_state
from mzplan.render.text import (
    MAX_SERVER_VALUE,
    brief,
    cut,
    edit_of,
    full_length,
    lines_changed,
    lines_of,
    safe,
    value,
)
from mzplan.render.warnings import MAX_SERVER_EDITS, PlanWarning, impact_graph, warnings_of

ERRORS = 6_000  # maximum characters of a section; changes get the rest
NOTICES = 4_000
SETTINGS = 4_000
SERVERS = 5_000  # of a warning about other servers
DRIFT = 10_000
PENDING = 4_000
_INSTANCES = 40  # listed; the digest covers all
_FRAME = 200  # characters around the changes of a group
_RESERVE = 1_500  # for the frames of sections and the notes about omissions

# From the most to the least important for a reviewer. The first is dropped last.
_IMPORTANCE = ("forbidden", "replace", "delete", "pause", "resume", "restart", "update", "move", "create")


def _marker(what: str, project: str, environment: str) -> str:
    """Return the hidden first line by which a bot finds its earlier comment. Each environment has its own."""
    return f"<!-- mzplan:{':'.join(filter(None, (what, project, environment)))} -->"


def _title(what: str, project: str, environment: str) -> str:
    return f"## mzplan {what}: {code(project)}" + (
        f", environment {code(environment)}" if environment else ""
    )


def render_plan_markdown(plan: Plan, html_url: str | None = None, previews: Previews = NO_PREVIEWS) -> str:
    """Return the plan as Markdown: fewer than 65,536 characters, with a newline at the end.

    `html_url`: the address of the same plan as an HTML page (`plan --html`). `previews`: of changed queries
    (`plan --preview`).
    """
    head = [_marker("plan", plan.project, plan.environment), _title("plan", plan.project, plan.environment)]
    head.append(_verdict(plan))
    if not plan.is_empty:
        head.append(_digest(plan))
    if html_url is not None:
        head.append(f"{link('The plan as a picture', html_url)}, with a search and every change.")
    if plan.variables:
        head.append(f"Variables: {names(variables_of(plan), 40, room=NOTICES)}.")
    if plan.changes:
        head.append(_table(plan))
    head += list(_warnings(plan))
    errors = [d for d in plan.diagnostics if d.severity == "error"]
    if errors:
        head.append(fence("text", [shorten(render_diagnostics(merge_equal(errors), False), ERRORS)]))
    head += list(preview_sections(previews))
    graph = impact_graph(plan)
    if graph:
        head.append(fence("mermaid", [graph]))
    tail = list(_sections_after(plan))
    if plan.settings_changes:
        ahead, others = changed_settings(plan)
        lines = [line for field in ahead for line in _field(field, MAX_SERVER_VALUE)]
        each = max(80, SETTINGS // len(plan.settings_changes) // 2 - 60)
        lines += [line for field in others for line in _field(field, each)]
        text = "\n".join(["! mzplan.yaml: takes effect in runners; restarts nothing", *lines])
        tail.insert(
            0, folded(many(len(plan.settings_changes), "setting"), fence("diff", [shorten(text, SETTINGS)]))
        )
    left = LIMIT - _RESERVE - sum(length(part) + 2 for part in (*head, *tail))
    middle = [_changes(plan, left)] if plan.changes else []
    return fit_comment([*head, *middle, *tail])


def render_drift_markdown(
    project: str, serial: int, drift: Sequence[DriftItem], environment: str = ""
) -> str:
    """Return drift as Markdown: fewer than 65,536 characters, with a newline at the end."""
    head = [_marker("drift", project, environment), _title("drift", project, environment)]
    if not drift:
        return fit_comment([*head, f"**No drift.** All queries run as serial {serial} requires."])
    kinds = Counter(item.kind for item in drift)
    head.append(f"**Drift of {many(len({d.address for d in drift}), 'resource')}** from serial {serial}.")
    rows = [f"| {code(kind)} | {number:,} |" for kind, number in sorted(kinds.items())]
    head.append("\n".join(["| kind | number |", "|---|--:|", *rows]))
    head.append(fence("text", _drift_lines(drift, LIMIT - _RESERVE - sum(length(p) + 2 for p in head))))
    return fit_comment(head)


def _verdict(plan: Plan) -> str:
    errors = sum(d.severity == "error" for d in plan.diagnostics)
    kept = plan.unaffected + len(plan.downstream)
    if errors:
        text = f"**This plan can't be applied: {many(errors, 'error')}.**"
    elif plan.is_empty:
        return f"**No changes.** {many(kept, 'resource')} as committed with serial {plan.serial}."
    else:
        away = len(restarts_elsewhere(plan))
        shown = [
            f"{number:,} to {fate}" + (f" ({away:,} elsewhere)" if fate == "restart" and away else "")
            for fate, number in plan.fates().items()
            if number
        ]
        settings = len(plan.settings_changes)
        shown += [f"{many(settings, 'setting')} to change"] if settings else []
        text = f"**{', '.join(shown)}.**" if shown else "**No changes.**"
    running = ""
    if plan.downstream:
        keep = "keeps" if len(plan.downstream) == 1 else "keep"
        running = f" {many(len(plan.downstream), 'query', 'queries')} downstream {keep} running."
    worst = f" **{state}**" if (state := worst_state(plan)) else ""
    return f"{text}{running} {plan.unaffected:,} unaffected. Planned on serial {plan.serial}.{worst}"


def _digest(plan: Plan) -> str:
    """Return the line that identifies the plan: its digest, with the warehouse and the instances."""
    listed = sorted(plan.instances.items(), key=natural_item)[:_INSTANCES]
    more = len(plan.instances) - len(listed)
    instances = "; ".join(f"{code(cut(name, 140))}, {cut(instance.type, 40)}" for name, instance in listed)
    instances += f" and {more:,} more" if more else ""
    places = f"warehouse {code(cut(plan.warehouse, 1000))}, instances: {instances}"
    return f"Digest: {code(digest_of_plan(plan))} ({places})."


def _table(plan: Plan) -> str:
    counts = plan.fates()
    shown = [fate for fate in FATES if counts[fate] or fate in ALWAYS]
    heads = " | ".join(f"{SIGNS[fate]} {fate}" for fate in shown)
    numbers = " | ".join(f"{counts[a]:,}" for a in shown)
    return (
        f"| {heads} | keeps running |\n|{'--:|' * (len(shown) + 1)}\n| {numbers} | {len(plan.downstream):,} |"
    )


def _warnings(plan: Plan) -> Iterator[str]:
    """Yield warnings about queries that stop, are replaced, use other servers or write other rows."""
    for kind, is_loss in (("CAUTION", True), ("WARNING", False)):
        boxes = [
            f"**{warning.headline}**{warning.details}: {_affected(warning)}"
            for warning in warnings_of(plan)
            if warning.is_loss is is_loss
        ]
        if boxes:
            yield alert(kind, "\n\n".join(boxes).split("\n"))
    if plan.canaries:
        number = many(len(plan.canaries), "query goes", "queries go")
        yield alert("NOTE", [f"**{number} first**: {turns(plan)}"])
    if plan.resuming:
        number = many(len(plan.resuming), "query resumes", "queries resume")
        yield alert("NOTE", [f"**{number}** after a failed canary: {names(plan.resuming)}"])


def _affected(warning: PlanWarning) -> str:
    if warning.names_servers:
        return names(warning.affected, MAX_SERVER_EDITS, longest=3 * MAX_SERVER_VALUE, room=SERVERS)
    return names(warning.affected)


def _changes(plan: Plan, room: int) -> str:
    """Return all changes in diff fences, as far as there is room.

    Each change gets its first line before any gets details. A group is a foldable section that shows common
    details once.
    """
    alike = shapes(plan.changes)
    groups = list(group_changes(plan.changes, lambda change: _group_key(change, alike)))
    room -= _FRAME * sum(len(group) > 1 for group in groups)
    at = {id(change): index for index, change in enumerate(plan.changes)}
    common = [list(_common(group)) if len(group) > 1 else [] for group in groups]
    room -= sum(length(line) + 1 for lines in common for line in lines)
    grouping = {
        at[id(change)]: {*lines} for group, lines in zip(groups, common, strict=True) for change in group
    }
    ranked = sorted(range(len(plan.changes)), key=lambda i: (_rank(plan.changes[i]), i))
    shown: dict[int, list[str]] = {}
    for index in ranked:
        line = _line(plan.changes[index])
        room -= length(line) + 1
        if room < 0:
            break
        shown[index] = [line]
    bare = 0
    for index in ranked[: len(shown)]:
        details = [line for line in _details(plan.changes[index]) if line not in grouping[index]]
        size = sum(length(line) + 1 for line in details)
        if size > room:
            bare += 1  # shorten each value, so that a long one doesn't hide others
            details = list(_details(plan.changes[index], MAX_SERVER_VALUE))
            size = sum(length(line) + 1 for line in details)
        if size > room:
            continue
        room -= size
        shown[index] += details
    blocks: list[str] = []
    lines: list[str] = []
    for group, have in zip(groups, common, strict=True):
        own = [line for change in group for line in shown.get(at[id(change)], ())]
        if len(group) == 1:
            lines += own
        elif own:
            blocks += [fence("diff", lines)] if lines else []
            lines = []
            blocks.append(folded(title(group), fence("diff", [*have, *own])))
    blocks += [fence("diff", lines)] if lines else []
    if left_out := _omissions(plan, shown, bare):
        blocks.append(left_out)
    return folded(many(len(plan.changes), "change"), "\n\n".join(blocks))


def _group_key(change: Change, alike: Mapping[Address, Hashable]) -> Hashable:
    """Return everything that is shown for a change, except its name."""
    if change.action == "create":
        return change.action, alike.get(change.address)
    return change.action, change.effect, change.fate, change.reason, tuple(_fields(change))


def _common(group: list[Change]) -> Iterator[str]:
    """Return the details that all changes of a group have."""
    every = [set(_details(change)) for change in group]
    return (line for line in _details(group[0]) if all(line in lines for lines in every))


def _omissions(plan: Plan, shown: dict[int, list[str]], bare: int) -> str:
    dropped = Counter(c.action for i, c in enumerate(plan.changes) if i not in shown)
    parts = []
    if bare:
        parts.append(f"the details of {many(bare, 'change')}")
    if dropped:
        listed = ", ".join(f"{dropped[a]:,} to {a}" for a in ACTIONS if dropped[a])
        parts.append(f"{many(sum(dropped.values()), 'change')} ({listed})")
    if not parts:
        return ""
    return f"Omitted for length: {' and '.join(parts)}. `mzplan plan` shows everything."


def _rank(change: Change) -> int:
    if change.effect == "forbidden":
        return 0
    name = "restart" if change.effect == "restart" and change.fate == "update" else change.fate
    return _IMPORTANCE.index(name)


def _line(change: Change) -> str:
    """Format a change: `! source.orders restarts: connection.shop_kafka changed`.

    The sign colours the line.
    """
    match change.action:
        case "create":
            return f"+ {change.address}"
        case "delete":
            return f"- {change.address}: {safe(change.reason)}"
        case "move":
            before = change.before.address if change.before else ""
            return f"! {change.address} was {before}" + _after_move(change)
    if paused := pause_effect(change):
        return f"! {change.address} {paused}: {cut(safe(change.reason), 160)}"
    query = change.address.is_query
    consequence = {
        "replace": "begins again" if query else "replaces what uses it",
        "restart": "restarts" if query else "restarts what uses it",
        "forbidden": "can't change",
    }.get(change.effect, "in place" if query else "restarts nothing")
    return f"! {change.address} {consequence}: {cut(safe(change.reason), 160)}"


def _after_move(change: Change) -> str:
    return f": {pause_effect(change) or 'restarts'}" if change.fate != "move" else ""


def _details(change: Change, most: int = 0) -> Iterator[str]:
    """Yield the lines of a change's fields. For `most`, see `_field`."""
    yield from _fields(change, most)
    yield from (f"      {line}" for line in (*query_lines(change), *row_lines(change)))


def _fields(change: Change, most: int = 0) -> Iterator[str]:
    if change.action == "create" and change.after is not None:
        for field in all_fields(change.after):
            yield from _added(field, most)
        return
    for field in change.fields:
        if not is_explained(change, field):
            yield from _field(field, most)


def _added(field: FieldChange, most: int) -> Iterator[str]:
    path, lines = safe(field.path), [] if field.sensitive or most else lines_of(field.after)
    shown = "(sensitive)" if field.sensitive else value(field.after, most or full_length(field))
    yield f"+     {path}: {'|' if lines else shown}"
    yield from (f"+       {line}" for line in lines)


def _field(field: FieldChange, most: int = 0) -> Iterator[str]:
    """Yield the lines of a field. `most` limits the characters of its name and of each value; 0: no limit."""
    path = cut(safe(field.path), most or sys.maxsize)
    if field.sensitive:
        yield f"!     {path}: {edit_of(field)}"
        return
    if not most and (changed := lines_changed(field.before, field.after)):
        yield from (f"{line[0]}     {path}: {line[2:]}" for line in changed)
        return
    if field.before is not None:
        yield f"-     {path}: {value(field.before, most or full_length(field))}"
    if field.after is not None:
        yield f"+     {path}: {value(field.after, most or full_length(field))}"


def _sections_after(plan: Plan) -> Iterator[str]:
    """Yield the sections after the changes: drift, queries that haven't converged, notices."""
    if plan.drift:
        body = fence("text", _drift_lines(plan.drift, DRIFT))
        yield folded(f"Drift: {many(len(plan.drift), 'finding')} (not part of this plan)", body)
    if plan.pending:
        lines = [f"{p.address}: {p.condition}: {brief(p.reason, 300)}" for p in plan.pending]
        body = fence("text", [shorten("\n".join(lines), PENDING)])
        yield folded(f"Committed, but not converged: {len(plan.pending):,}", body)
    notices = [d for d in plan.diagnostics if d.severity != "error"]
    if notices:
        body = fence("text", [shorten(render_diagnostics(merge_equal(notices), False), NOTICES)])
        yield folded(f"{many(len(notices), 'notice')}", body)


def _drift_lines(drift: Sequence[DriftItem], most: int) -> list[str]:
    lines: list[str] = []
    for line in (found := drift_lines(drift, 300)):
        most -= length(line) + 1
        if most < 60:
            return [*lines, f"… and {len(found) - len(lines):,} more: `mzplan drift` lists them"]
        lines.append(line)
    return lines
