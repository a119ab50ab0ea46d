"""The table of all queries: what needs a person first, numbers live."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.model.address import Address, natural
from mzplan.model.state import QueryStatus
from mzplan.model.words import count
from mzplan.render.html import Content, Markup, element
from mzplan.render.plan_page import search_field
from mzplan.render.status import condition
from mzplan.ui.follower import View
from mzplan.ui.frame import chip, moment, scrolled
from mzplan.ui.graph_page import CONDITIONS, resource_link, summary

NUMBERS = ("Step", "Rows", "Rows/s", "Lag")
_COLUMNS = ("Query", "Condition", *NUMBERS, "Last batch", "Instance")


def queries_page(view: View, only: str = "") -> Content:
    """Every query, or those in one condition."""
    assert view.overview is not None
    queries = [one for one in view.overview.status.queries if not only or condition(one) == only]
    queries.sort(key=lambda one: (CONDITIONS.index(condition(one)), natural(one.resource.address)))
    head = element(
        "thead",
        element(
            "tr", [element("th", name, scope="col", class_=name in NUMBERS and "number") for name in _COLUMNS]
        ),
    )
    body = element("tbody", [_row(one, view.numbers) for one in queries])
    label = f"Queries: {only}" if only else "Queries"
    return [
        element("h1", label),
        summary(view.overview),
        element("p", element("a", "All queries", href="/queries")) if only else None,
        search_field("Find a query"),
        scrolled(element("table", head, body), label),
        element("p", count(len(queries), "query", "queries"), class_="quiet"),
    ]


def _row(query: QueryStatus, numbers: Mapping[Address, tuple[str, ...]]) -> Markup:
    address, seen = query.resource.address, query.observation
    cells = [element("td", one, class_="number") for one in numbers[address]]
    return element(
        "tr",
        element("th", resource_link(address), scope="row"),
        element("td", chip(condition(query), condition(query))),
        cells,
        element("td", moment(seen.last_batch_at if seen is not None else None)),
        element("td", query.resource.instance),
        data_name=f"{address} {condition(query)} {query.resource.instance}",
        data_query=str(address),
    )
