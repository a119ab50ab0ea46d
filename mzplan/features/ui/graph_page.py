"""The graph of committed resources, coloured by condition. A large one is grouped by connection."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

from mzplan.features.ui.frame import chip, scrolled
from mzplan.features.ui.overview import Overview
from mzplan.model.address import Address, natural
from mzplan.model.observed import Condition
from mzplan.model.state import QueryStatus
from mzplan.render.graphs.drawing import COLLAPSED, DrawnNode, collapse, columns_of, draw, home_connections
from mzplan.render.html import Content, Markup, element
from mzplan.render.plan_page import search_field
from mzplan.render.status import COLUMNS, row

# The most urgent conditions come first.
CONDITIONS: tuple[Condition, ...] = (
    "rejected",
    "failed",
    "degraded",
    "starting",
    "stopped",
    "paused",
    "running",
)


def graph_page(overview: Overview, connection: Address | None = None, *, ungrouped: bool = False) -> Content:
    """Return the whole graph, or a connection's part of it. `ungrouped`: never group the queries."""
    heading = element("h1", "Graph")
    shown: Collection[Address] = overview.state.resources.keys()
    link_line: Content = None
    if connection is not None:
        shown = {connection, *overview.graph.all_dependents([connection])}
        shown |= overview.graph.requirements(shown)
        heading = element("h1", f"What uses {connection}")
        link_line = element("p", element("a", "The whole graph", href="/"), " · ", resource_link(connection))
    elif len(shown) > COLLAPSED:
        link = ("By connection", "/") if ungrouped else ("Each query separately", "/?all=1")
        link_line = element("p", element("a", link[0], href=link[1]))
    if not shown:
        return [heading, element("p", "Nothing is committed yet. Run `mzplan apply`.", class_="quiet")]
    group = len(shown) > COLLAPSED and not ungrouped and connection is None
    return [
        heading,
        summary(overview),
        link_line,
        search_field("Find in the graph"),
        scrolled(drawing(overview, shown, group=group), "Graph"),
    ]


def summary(overview: Overview) -> Markup:
    """Return the number of queries in each condition, and whether the instances have a runner."""
    numbers = Counter(query.condition for query in overview.status.queries)
    chips = [
        element(
            "li", element("a", chip(f"{numbers[name]:,} {name}", name), href=f"/queries?condition={name}")
        )
        for name in CONDITIONS
        if numbers[name]
    ]
    for instance in overview.status.instances:
        text = "is dry" if instance.is_dry else "has a runner" if instance.alive else "has no runner"
        behind = instance.alive and instance.serial < overview.status.serial
        text += f", still at serial {instance.serial}" if behind else ""
        look = "stopped" if not instance.alive else "starting" if behind else "running"
        chips.append(element("li", chip(f"instance {instance.name} {text}", look)))
    return element("ul", chips, class_="chips", aria_label="Conditions and instances")


def drawing(
    overview: Overview,
    shown: Collection[Address],
    *,
    group: bool = False,
    looks: Mapping[Address, tuple[str, str]] | None = None,
) -> Markup:
    """Return the graph of the resources `shown`.

    `looks`: a look and note for some resources, in place of the ones for their condition."""
    graph, state = overview.graph, overview.state
    addresses = sorted((address for address in shown if address in state.resources), key=natural)
    included = set(addresses)
    references = {a: [needed for needed in graph.dependencies(a) if needed in included] for a in addresses}
    faults = {
        query.observation.at_fault
        for query in overview.status.queries
        if query.observation is not None and query.observation.at_fault is not None
    }
    columns = columns_of(references)
    nodes = {}
    for address in addresses:
        query = overview.queries.get(address)
        look, note = (looks or {}).get(address) or _look(query, address in faults)
        observation = query.observation if query is not None else None
        nodes[address] = DrawnNode(
            key=str(address),
            column=columns[address],
            title=str(address),
            note=note or state.resources[address].type,
            look=look,
            href=f"/resources/{address}",
            weight=-CONDITIONS.index(look) if look in CONDITIONS else 0,
            place=", ".join(connection.name for connection in own_connections(overview, address))
            if query
            else "",
            rate=observation.input_rows_per_second if observation is not None else None,
            lag=row(query, time.time())[COLUMNS.index("LAG")].strip("-") if query is not None else "",
        )
    if group:
        nodes = collapse(nodes, home_connections(references))
    return draw(nodes, references, "Dependencies between connections and queries")


def own_connections(overview: Overview, address: Address) -> list[Address]:
    """Return the connections that a query itself names."""
    return [used for used in overview.graph.dependencies(address.resource) if used.is_connection]


def resource_link(address: Address, text: str = "") -> Markup:
    """Return a link to a resource's page, which also shows the generation that runs beside it."""
    return element("a", text or str(address), href=f"/resources/{address.resource}")


def _look(query: QueryStatus | None, at_fault: bool) -> tuple[str, str]:
    if query is None:
        return ("fault", "doesn't answer") if at_fault else ("connection", "")
    return query.condition, query.condition
