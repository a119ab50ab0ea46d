"""A plan as one HTML file: the graph of restarted, replaced and running queries, and the changes below it.

The file loads nothing. It contains its style and its script, and its policy allows no others.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import replace

from mzplan.model.address import Address, natural_item
from mzplan.model.plan import Change, Plan
from mzplan.render.graphs.drawing import COLLAPSED, DrawnNode, collapse, columns_of, draw, home_connections
from mzplan.render.html import Markup, element, inlined, joined, static_text
from mzplan.render.plan_groups import title
from mzplan.render.plan_text import headline, plan_parts
from mzplan.render.previews import NO_PREVIEWS, Previews
from mzplan.render.warnings import VERBS, PlanWarning, edges_of, warnings_of

_WEIGHTS = {
    fate: n
    for n, fate in enumerate(("kept", "running", "move", "create", "update", "resume", "pause", "restart"))
}
_HEAVY = {"delete": 8, "replace": 9}


def render_plan_page(plan: Plan, previews: Previews = NO_PREVIEWS) -> str:
    """Return the HTML file, ending in a newline. `previews`: of changed queries (`plan --preview`)."""
    title = f"Plan of {plan.project}" + (f", environment {plan.environment}" if plan.environment else "")
    style, script = static_text("mzplan.render", "graph.css"), static_text("mzplan.render", "search.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        inlined("style", style),
    )
    main = element("main", element("h1", title), plan_view(plan, on_serial=True, previews=previews))
    body = element("body", main, inlined("script", script))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def plan_view(plan: Plan, *, on_serial: bool = False, previews: Previews = NO_PREVIEWS) -> Markup:
    """Return the plan as a part of a page: headline, counts, graph, changes and further lines.

    `on_serial` includes the lines about the plan itself, besides the changes.
    """
    changes, rest = plan_parts(plan, previews)
    looks = {change.fate for change in plan.changes} | ({"running"} if plan.downstream else set())
    legend = [element("li", VERBS[fate], class_=f"chip look-{fate}") for fate in VERBS if fate in looks]
    parts = [
        element("p", headline(plan) if on_serial else _counted(plan)),
        element("p", f"Planned on serial {plan.serial}.", class_="quiet") if on_serial else None,
        *([_warned(warning) for warning in warnings_of(plan)] if on_serial else ()),
    ]
    if plan.changes:
        graph = _graph(plan)
        parts += [
            element("ul", legend, class_="chips", aria_label="Legend"),
            element("div", graph, class_="scroll", tabindex=0, role="region", aria_label="Graph of the plan"),
            element("h2", "Changes"),
            search_field("Search the changes"),
            element("div", [_group(group) for group in changes]),
        ]
    if on_serial and (beside := "\n".join(rest).strip()):
        parts += [element("h2", "Also in this plan"), element("pre", beside, class_="box")]
    return joined(parts)


def _warned(warning: PlanWarning) -> Markup:
    more = [element("li", text) for text in warning.affected]
    head = element("summary", element("strong", warning.headline), warning.details.replace("`", ""))
    return element("details", head, element("ul", more), class_="box warned", open=len(more) <= 12)


def search_field(label: str) -> Markup:
    """Return the search field that `search.js` reads, and the element for the number of matches."""
    field = element("input", type="search", id="search", placeholder=f"{label}  ( / )", aria_label=label)
    return element(
        "p", field, " ", element("span", id="found", class_="quiet", role="status"), class_="search"
    )


def _counted(plan: Plan) -> str:
    shown = ", ".join(f"{number:,} {_PAST[fate]}" for fate, number in plan.fates().items() if number)
    return f"{shown[:1].upper()}{shown[1:]}." if shown else "No resource has changed."


_PAST = {
    "create": "created",
    "update": "updated",
    "restart": "restarted",
    "replace": "replaced",
    "delete": "deleted",
    "move": "renamed",
    "pause": "paused",
    "resume": "resumed",
}


def _graph(plan: Plan) -> Markup:
    fates: dict[Address, str] = {change.address: change.fate for change in plan.changes}
    fates |= dict.fromkeys(plan.downstream, "running")
    references: dict[Address, list[Address]] = {address: [] for address in fates}
    for change in plan.changes:
        record = change.after or change.before
        for used in record.references.values() if record is not None else ():
            fates.setdefault(used, "kept")  # an unchanged dependency of a change
            references.setdefault(used, [])
    edges = edges_of(plan, fates)
    for used, user in edges:
        references[user].append(used)
    columns = columns_of(references)
    nodes = {
        address: DrawnNode(
            key=str(address),
            column=columns[address],
            title=str(address),
            note=VERBS[fate],
            look=fate,
            href=f"#{address}" if fate not in ("running", "kept") else "",
            weight=_WEIGHTS.get(fate, _HEAVY.get(fate, 0)),
        )
        for address, fate in sorted(fates.items(), key=natural_item)
    }
    if len(nodes) > COLLAPSED:
        nodes = {
            # A group has no link, because its members are in the list of changes.
            address: replace(node, note=VERBS.get(node.look, ""), href="") if node.href[:1] == "?" else node
            for address, node in collapse(nodes, home_connections(references), by_look=True).items()
        }
    return draw(nodes, references, "The changes of the plan, and the resources that they affect")


def _group(group: list[tuple[Change, list[str]]]) -> Markup:
    """Return a collapsible box for a group of changes. A single change has no group box."""
    shown = [_change(change, lines) for change, lines in group]
    if len(group) == 1:
        return shown[0]
    first = group[0][0]
    summary = element(
        "summary",
        element("span", first.fate, class_=f"chip look-{first.fate}"),
        " ",
        title([change for change, _ in group]),
    )
    return element("details", summary, shown, class_="box group")


def _change(change: Change, lines: list[str]) -> Markup:
    first, *more = lines
    summary = element("summary", element("span", change.fate, class_=f"chip look-{change.fate}"), " ", first)
    shown = [element("span", f"{line.removeprefix('    ')}\n", class_=_tone(change, line)) for line in more]
    body = element("pre", shown) if shown else None
    return element(
        "details",
        summary,
        body,
        class_="box",
        id=str(change.address),
        data_name=" ".join(lines),
        open=len(more) <= 12,
    )


def _tone(change: Change, line: str) -> str | None:
    if line.startswith("    because "):
        return "quiet"
    return {"create": "added", "delete": "removed"}.get(change.action)


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
