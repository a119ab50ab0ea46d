"""The table of all queries with live numbers; the queries that need attention come first.

Another page has the open items: changes that are pending, rejected or failed, and drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mzplan.features.ui.follower import View
from mzplan.features.ui.frame import chip, code_link, linked, moment, scrolled
from mzplan.features.ui.graph_page import CONDITIONS, own_connections, resource_link, summary
from mzplan.features.ui.overview import Overview
from mzplan.model.address import Address, natural
from mzplan.model.state import QueryStatus
from mzplan.model.words import count
from mzplan.render.html import Content, Markup, element
from mzplan.render.plan_page import search_field
from mzplan.render.text import cut

NUMBERS = ("Latency", "Step", "Rows", "Rows/s", "Lag")
_COLUMNS = ("Query", "Condition", "Connection", "Error", *NUMBERS, "Last batch", "Instance")
_ERROR = 160  # characters; the query's own page shows the whole error


def queries_page(view: View, condition: str = "", connection: str = "") -> Content:
    """Return the page with all queries, or only with the queries in a condition, or of a connection.

    A connection's queries are the queries that use it, and the queries that read from these."""
    overview = view.overview
    assert overview is not None
    connections_of = {address: sorted(_connections(overview, address)) for address in overview.queries}
    queries = [
        query
        for query in overview.status.queries
        if (not condition or query.condition == condition)
        and (not connection or connection in connections_of[query.resource.address])
    ]
    queries.sort(key=lambda query: (CONDITIONS.index(query.condition), natural(query.resource.address)))
    head = element(
        "thead",
        element(
            "tr", [element("th", name, scope="col", class_=name in NUMBERS and "number") for name in _COLUMNS]
        ),
    )
    body = element("tbody", [_row(overview, query, view.numbers) for query in queries])
    label = ": ".join(filter(None, ("Queries", ", ".join(filter(None, (condition, connection))))))
    names = sorted({name for connections in connections_of.values() for name in connections})
    return [
        element("h1", label),
        summary(overview),
        _filter(condition, connection, names),
        search_field("Find a query"),
        scrolled(element("table", head, body), label),
        element("p", count(len(queries), "query", "queries"), class_="quiet"),
    ]


def _connections(overview: Overview, address: Address) -> set[str]:
    needed = overview.graph.requirements([address.resource])
    return {other.name for other in needed if other.is_connection}


def _filter(condition: str, connection: str, connections: list[str]) -> Markup:
    fields = [
        _choice("condition", "Condition", condition, CONDITIONS),
        _choice("connection", "Connection", connection, connections),
        element("button", "Show", type="submit"),
        [" ", element("a", "All queries", href="/queries")] if condition or connection else None,
    ]
    return element("form", fields, action="/queries", method="get", class_="filter")


def _choice(name: str, label: str, chosen: str, choices: Iterable[str]) -> Markup:
    options = [element("option", "all", value="")]
    options += [element("option", choice, value=choice, selected=choice == chosen) for choice in choices]
    return element("label", f"{label} ", element("select", options, name=name), " ")


def _row(overview: Overview, query: QueryStatus, numbers: Mapping[Address, tuple[str, ...]]) -> Markup:
    address, observation = query.resource.address, query.observation
    cells = [element("td", number, class_="number") for number in numbers[address]]
    connections = own_connections(overview, address)
    names = (
        str(address),
        query.condition,
        *(connection.name for connection in connections),
        query.resource.instance,
    )
    return element(
        "tr",
        element("th", resource_link(address), scope="row"),
        element("td", chip(query.condition, query.condition)),
        element("td", [[resource_link(connection, connection.name), " "] for connection in connections]),
        element(
            "td", _error(query), class_="wide" if observation is not None and observation.error else None
        ),
        cells,
        element("td", moment(observation.last_batch_at if observation is not None else None)),
        element("td", query.resource.instance),
        data_name=" ".join(names),
        data_query=str(address),
    )


def _error(query: QueryStatus) -> Content:
    """Return the last attempt's error, the number of failures, and the time of the next attempt."""
    observation = query.observation
    if observation is None or not observation.error:
        return None
    attempts = f"{count(observation.failures, 'attempt')}" if observation.failures else ""
    next_attempt = (
        [", next at " if attempts else "next at ", moment(observation.retry_at)]
        if observation.retry_at
        else None
    )
    return [
        [code_link(observation.error_code), " "] if observation.error_code else None,
        cut(observation.error.split("\n")[0], _ERROR),
        element("div", attempts, next_attempt, class_="quiet") if attempts or next_attempt else None,
    ]


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
