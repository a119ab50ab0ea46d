"""Open items: changes that are pending, rejected or failed, and drift."""

from __future__ import annotations

from mzplan.features.ui.error_page import linked
from mzplan.features.ui.frame import chip
from mzplan.features.ui.graph_page import CONDITIONS, resource_link
from mzplan.features.ui.overview import Overview
from mzplan.model.address import Address
from mzplan.render.html import Content, Markup, element

_MAX_ITEMS = 500  # in each list; the commands show all


def open_page(overview: Overview) -> Content:
    """Return the page with the unconverged changes and the drift. A resource may be in both lists."""
    pending = [
        _item(
            resource_link(p.address),
            p.condition,
            p.condition if p.condition in CONDITIONS else "held",
            p.reason,
        )
        for p in overview.pending[:_MAX_ITEMS]
    ]
    drift = [_item(_link(d.address), d.kind, "pending", d.detail) for d in overview.drift[:_MAX_ITEMS]]
    return [
        element("h1", "Open"),
        element("h2", f"Committed, but not converged: {len(overview.pending):,}"),
        element("div", pending) if pending else element("p", "None: all reported queries are as committed."),
        _more(len(overview.pending), "`mzplan plan` lists them"),
        element("h2", f"Drift: {len(overview.drift):,}"),
        element("div", drift) if drift else element("p", "None reported by the runners."),
        _more(len(overview.drift), "`mzplan drift` lists them"),
        element(
            "p",
            "As the runners report it. `mzplan drift` also compares secrets, and storage on its own machine.",
            class_="quiet",
        ),
    ]


def _item(name: Content, kind: str, look: str, reason: str) -> Markup:
    text = element("pre", linked(reason)) if reason and reason != kind else None
    return element("div", element("p", name, " ", chip(kind, look)), text, class_="item")


def _link(text: str) -> Content:
    """Return a link if the text is a resource's address: drift also names instances."""
    try:
        return resource_link(Address.parse(text))
    except ValueError:
        return text


def _more(number: int, command: str) -> Content:
    return (
        element("p", f"And {number - _MAX_ITEMS:,} more: {command}.", class_="quiet")
        if number > _MAX_ITEMS
        else None
    )
