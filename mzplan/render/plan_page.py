"""A plan as one HTML file: the graph with what restarts, is replaced and keeps running, the changes beneath.

It loads nothing, from anywhere: its style and its script are in it, and its policy lets no others run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode

from mzplan.model.address import Address, natural_item
from mzplan.model.plan import Change, Plan
from mzplan.render.drawing import COLLAPSED, DrawnNode, collapsed, columns_of, drawn, homes
from mzplan.render.html import Markup, element, inlined, joined, static_text
from mzplan.render.impact import VERBS, edges_of
from mzplan.render.plan_groups import title
from mzplan.render.plan_text import plan_parts, verdict
from mzplan.render.warnings import Warned, warnings_of

_WEIGHTS = {
    fate: n
    for n, fate in enumerate(("kept", "running", "move", "create", "update", "resume", "pause", "restart"))
}
_HEAVY = {"delete": 8, "replace": 9}


def render_plan_page(plan: Plan) -> str:
    """The file, ending in a newline."""
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
    main = element("main", element("h1", title), plan_view(plan, on_serial=True))
    body = element("body", main, inlined("script", script))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def plan_view(plan: Plan, *, on_serial: bool = False) -> Markup:
    """The plan as a part of a page: verdict, counts, graph, changes, and what else there is to say.
    `on_serial`: with its last lines, which are about the plan itself and not about what changes."""
    changes, rest = plan_parts(plan)
    looks = {change.fate for change in plan.changes} | ({"running"} if plan.downstream else set())
    legend = [element("li", VERBS[fate], class_=f"chip look-{fate}") for fate in VERBS if fate in looks]
    parts = [
        element("p", verdict(plan) if on_serial else _counted(plan)),
        element("p", f"Planned on serial {plan.serial}.", class_="quiet") if on_serial else None,
        *([_warned(warning) for warning in warnings_of(plan)] if on_serial else ()),
    ]
    if plan.changes:
        graph = _graph(plan)
        parts += [
            element("ul", legend, class_="chips", aria_label="What the colours mean"),
            element("div", graph, class_="scroll", tabindex=0, role="region", aria_label="Graph of the plan"),
            element("h2", "Changes"),
            search_field("Search the changes"),
            element("div", [_group(group) for group in changes]),
        ]
    if on_serial and (beside := "\n".join(rest).strip()):
        parts += [element("h2", "Beside the changes"), element("pre", beside, class_="box")]
    return joined(parts)


def _warned(one: Warned) -> Markup:
    more = [element("li", text) for text in one.of]
    head = element("summary", element("strong", one.what), one.more.replace("`", ""))
    return element("details", head, element("ul", more), class_="box warned", open=len(more) <= 12)


def search_field(label: str) -> Markup:
    """The field that `search.js` looks at, and where it says how much it has found."""
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
            fates.setdefault(used, "kept")  # what a change stands on, though it stays as it is
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
            address: node if node.href.startswith("#") or not node.href else _unlinked(node)
            for address, node in collapsed(nodes, homes(references), by_look=True).items()
        }
    return drawn(nodes, references, "What the plan changes, and what that reaches")


def _unlinked(node: DrawnNode) -> DrawnNode:
    """A group leads nowhere in a single file: its members are found among the changes."""
    return DrawnNode(
        key=node.key,
        column=node.column,
        title=node.title,
        note=VERBS.get(node.look, ""),
        look=node.look,
    )


def _group(group: list[tuple[Change, list[str]]]) -> Markup:
    """Changes that belong together, in one box that opens."""
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
