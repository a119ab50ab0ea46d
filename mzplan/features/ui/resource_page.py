"""The pages of one resource: condition, dependents, impact of a change, declaration; and the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from mzplan.features.ui.follower import Point, Samples
from mzplan.features.ui.frame import chip, facts, linked, moment, scrolled
from mzplan.features.ui.graph_page import drawing, resource_link
from mzplan.features.ui.history_page import event_table
from mzplan.features.ui.overview import Overview, declaration
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import MEASURES, Condition, Observation
from mzplan.model.state import QueryStatus, ResourceState
from mzplan.model.words import count
from mzplan.operations.events import NOTHING, EventList
from mzplan.operations.logs import read_logs
from mzplan.operations.project import Project
from mzplan.render.cause_text import cause_in_words
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.graphs.column_graph import reach_of_columns
from mzplan.render.html import Content, Markup, element
from mzplan.render.status import COLUMNS, row
from mzplan.render.status_notes import notes
from mzplan.render.text import cut

_MAX_STEPS = 20  # the most to show: a store may contain any number
_STEP = ("Step", "When", "Rows")
_HOUR = 3600.0  # seconds
_WIDTH, _HEIGHT, _LEFT, _FOOT = 640, 150, 64, 22
_GAP = 150.0  # seconds without a sample that break the line; runners record one each minute
_MAX_NODES = 200  # nodes; a larger impact is a list instead
_MAX_ENTRIES = 200  # the newest entries; `mzplan logs` has all
_MAX_CHARACTERS = 8000  # characters of an entry


def resource_page(
    overview: Overview,
    address: Address,
    samples: Samples,
    origin: Content = None,
    events: EventList = NOTHING,
) -> Content:
    """Return the page of a committed resource.

    `origin`: the serial that last changed the resource, with its author. `events`: its query's past events.
    """
    resource, query = overview.state.resources[address], overview.queries.get(address)
    return [
        element("h1", str(address), " ", chip(query.condition, query.condition) if query else None),
        _facts(overview, resource, query, origin),
        element("p", element("a", "Its runner's log", href=f"/resources/{address}/logs")) if query else None,
        _notes(query) if query else None,
        _open(overview, address),
        event_table("Events", events),
        _plots(query, samples) if query else None,
        last_steps(query) if query else None,
        _reach(overview, address),
        element("h2", "Declaration"),
        element("pre", declaration(resource), class_="box"),
        element("p", "As committed. Secrets are references, and defaults are omitted.", class_="quiet"),
    ]


def _facts(overview: Overview, resource: ResourceState, query: QueryStatus | None, origin: Content) -> Markup:
    pairs: list[tuple[str, Content]] = [("Type", resource.type)]
    if query is not None:
        observation, cells = query.observation, row(query, time.time())
        pairs += [(name.capitalize(), cells[n]) for n, name in enumerate(COLUMNS) if n not in (0, 2)]
        pairs += _generations(overview, resource, observation)
        if resource.restart_token:
            restarts = f"{count(resource.restart_token, 'time')} by hand, or for a secret"
            pairs.append(("Restarts", restarts))
        if observation is not None and (cause := observation.started_because) is not None:
            pairs.append(("Started because of", f"{cause_in_words(cause)} ({cause.at or '-'})"))
        pairs += measures(observation) if observation is not None else []
        if observation is not None and observation.resumed:
            pairs.append(("Resumed after", f"step {observation.resumed.get('step', '-')}"))
    pairs.append(("Last changed by", origin if origin is not None else "-"))
    return facts(pairs)


def _generations(
    overview: Overview, resource: ResourceState, seen: Observation | None
) -> list[tuple[str, Content]]:
    """Return the generation in service, and how far the one is that runs beside it."""
    new = overview.queries.get(resource.address.beside(resource.generation))
    if new is None or seen is None:
        return [("Generation", str(resource.generation))]
    cells = zip(COLUMNS, row(new, time.time()), strict=True)
    shown = ", ".join(f"{name.lower()} {cell}" for name, cell in cells if name in ("STEP", "ROWS", "LAG"))
    beside = [chip(new.condition, new.condition), f" beside it: {shown}"]
    return [("Generation", f"{seen.generation}, in service"), (f"Generation {resource.generation}", beside)]


def measures(observation: Observation) -> list[tuple[str, Content]]:
    """Return the last batch's measures, the size of the query's state, and the runner's counters."""
    pairs: list[tuple[str, Content]] = []
    for name, measure in MEASURES.items():
        if (number := getattr(observation, name)) is not None:
            pairs.append((measure.title, measure.text(number)))
    if (counters := observation.counters) is not None:
        parts = [count(counters.batches, "batch", "batches"), count(counters.restarts, "restart")]
        parts.append(count(counters.retries, "retry", "retries"))
        pairs.append(("Since its runner became the leader", f"{counters.rows:,} rows, {', '.join(parts)}"))
    return pairs


def _notes(query: QueryStatus) -> Content:
    text = "\n\n".join(notes(query))
    return [element("h2", "Messages"), element("pre", linked(text), class_="box told")] if text else None


def _open(overview: Overview, address: Address) -> Content:
    """Return the resource's pending changes and its drift."""
    query = overview.queries.get(address)
    is_shown = query is not None and query.observation is not None and query.observation.error  # shown above
    lines = [
        f"pending: {p.condition}" if is_shown else f"pending: {p.condition}: {p.reason}"
        for p in overview.pending
        if p.address == address
    ]
    lines += [
        f"drift: {d.kind}" if is_shown else f"drift: {d.kind}: {d.detail}"
        for d in overview.drift
        if d.address == str(address)
    ]
    return (
        [element("h2", "Not as committed"), element("pre", "\n".join(lines), class_="box")] if lines else None
    )


def _plots(query: QueryStatus, samples: Samples) -> Content:
    address, observation, now = query.resource.address, query.observation, time.time()
    unit = (observation.lag_unit if observation is not None else None) or "records"
    runs = samples.runs(address)[1:]
    starts = [element("h2", "Observed restarts"), element("ul", [element("li", moment(at)) for at in runs])]
    return [
        element("h2", "The last hour"),
        element(
            "div",
            plot(samples.rates(address), "Rows/s", now),
            plot(samples.lags(address), f"Lag in {unit}", now),
            class_="plots",
        ),
        element("p", "Every ten seconds since mzplan ui started, every minute before that.", class_="quiet"),
        _conditions(samples.conditions(address)),
        starts if runs else None,
    ]


def _conditions(changes: list[tuple[float, Condition]]) -> Content:
    """Return the conditions of the last hour with their start times, if there was more than one."""
    if len(changes) < 2:
        return None
    lines = [
        element("li", moment(at), " ", chip(condition, condition)) for at, condition in changes[-_MAX_STEPS:]
    ]
    return [element("h2", "Conditions of the last hour"), element("ul", lines, id="conditions")]


def last_steps(query: QueryStatus) -> Content:
    """Return the last micro-batches, as the runner reported them."""
    steps = query.observation.last_steps[:_MAX_STEPS] if query.observation is not None else ()
    if not steps:
        return None
    names = [element("th", name, scope="col", class_=name != "When" and "number") for name in _STEP]
    rows = [
        element(
            "tr",
            element("th", f"{step:,}", scope="row", class_="number"),
            element("td", moment(at)),
            element("td", f"{written:,}" if written is not None else "-", class_="number"),
        )
        for step, at, written in steps
    ]
    table = element("table", element("thead", element("tr", names)), element("tbody", rows), id="steps")
    more = f"mzplan steps {query.resource.address}"
    return [
        element("h2", "The last steps"),
        scrolled(table, "The last steps"),
        element("p", "All steps, with offsets: ", element("code", more), class_="quiet"),
    ]


def _reach(overview: Overview, address: Address) -> Content:
    """Return a graph of a resource's requirements and dependents.

    The graph shows the effect that a change of the resource has on each dependent.
    """
    graph = overview.graph
    impact = graph.impact(address)
    looks = dict.fromkeys(impact.restarts, ("restart", "would restart"))
    looks |= dict.fromkeys(impact.downstream, ("kept", "would keep running"))
    looks[address] = ("changed", "this query, would restart" if address in impact.restarts else "this one")
    shown = {address, *graph.requirements([address]), *graph.all_dependents([address])}
    restarts = count(len(impact.restarts), "query", "queries")
    running = count(len(impact.downstream), "query", "queries")
    summary = f"A change of {address} would restart {restarts}; {running} downstream would keep running."
    parts = [element("h2", "What a change would affect"), element("p", summary)]
    if len(shown) <= _MAX_NODES:
        parts.append(scrolled(drawing(overview, shown, looks=looks), "What depends on it"))
    elif address.is_connection:
        parts.append(
            element("p", element("a", "Its queries, as a graph", href=f"/?connection={address.name}"))
        )
    if len(shown) <= _MAX_NODES:
        parts += _reach_of_columns(overview, address)
    dependents = graph.dependents(address)
    if dependents:
        links = [element("li", resource_link(dependent)) for dependent in dependents]
        list_ = element("ul", links, class_="columns")
        title = element("summary", f"Used by {count(len(dependents), 'resource')}")
        parts.append(element("details", title, list_, class_="box"))
    return parts


def _reach_of_columns(overview: Overview, address: Address) -> list[Markup]:
    """Return what each column of a collection reaches."""
    rows = [
        element(
            "tr",
            element("td", element("code", column)),
            element(
                "td", [element("p", resource_link(a), f": {how}") for a, how in reached.items()] or "no query"
            ),
        )
        for column, reached in reach_of_columns(address, overview.state.resources, overview.graph)
    ]
    title = element("summary", "What each column reaches")
    return [element("details", title, element("table", element("tbody", rows)), class_="box")] if rows else []


def plot(points: Sequence[Point], label: str, now: float) -> Markup:
    """Return a plot of the hour before `now`; a line connects consecutive samples."""
    visible = [(at, value) for at, value in points if now - _HOUR <= at <= now]
    maximum = max((value for _, value in visible if value is not None), default=0.0) or 1.0
    right, bottom = _WIDTH - 8, _HEIGHT - _FOOT

    def place(at: float, value: float) -> str:
        x = _LEFT + (at - now + _HOUR) / _HOUR * (right - _LEFT)
        return f"{x:.1f},{bottom - value / maximum * (bottom - 14):.1f}"

    lines: list[list[str]] = [[]]
    before = 0.0
    for at, value in visible:
        if value is None or at - before > _GAP:
            lines.append([])
        if value is not None:
            lines[-1].append(place(at, value))
            before = at
    last = next((value for _, value in reversed(visible) if value is not None), None)
    marks = [
        element(
            "text",
            f"{maximum:,.4g}" if maximum < 100 else f"{maximum:,.0f}",
            x=_LEFT - 8,
            y=18,
            class_="axis end",
        ),
        element("text", "0", x=_LEFT - 8, y=bottom, class_="axis end"),
        element("path", d=f"M{_LEFT} {bottom}H{right}M{_LEFT} 14H{right}", class_="grid"),
    ]
    for minutes in (60, 40, 20, 0):
        x = right - minutes * 60 / _HOUR * (right - _LEFT)
        text = f"-{minutes} min" if minutes else "now"
        marks.append(
            element("text", text, x=round(x), y=_HEIGHT - 6, class_="axis" if minutes == 60 else "axis end")
        )
    polylines = [
        element("polyline", points=" ".join(line if len(line) > 1 else line * 2), class_="line")
        for line in lines
        if line
    ]
    caption = f"{label}, now {last:,.4g}" if last is not None else f"{label}: no data"
    svg = element(
        "svg",
        marks,
        polylines,
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=caption,
    )
    return element("figure", element("figcaption", caption), svg)


def logs_page(project: Project, overview: Overview, address: Address) -> Content:
    """Return the newest log entries, the last one at the bottom, or why this machine has no log."""
    state, head = overview.state, element("h1", "Logs of ", resource_link(address))
    try:
        entries = deque(read_logs(project, state, [state.resources[address]], None), maxlen=_MAX_ENTRIES)
    except MzplanError as problem:
        return [head, element("pre", linked(render_diagnostics(problem.diagnostics, False)), class_="box")]
    if not entries:
        return [head, element("p", "Its runner has logged nothing about this query.", class_="quiet")]
    text = "\n".join(cut(entry.text, _MAX_CHARACTERS) for entry in entries)
    more = element("p", "All entries: ", element("code", f"mzplan logs {address}"), class_="quiet")
    return [head, element("pre", linked(text), class_="box"), more]
