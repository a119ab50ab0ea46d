"""Where a graph has its connections: those of sources on the left, those of sinks on the right."""

from __future__ import annotations

import re

from mzplan.model.address import Address
from mzplan.render.drawing import DrawnNode, columns_of, draw


def test_connections_of_sinks_are_on_the_right() -> None:
    written = {
        "connection.bastion": [],
        "connection.kafka": [],
        "connection.pg": ["connection.bastion"],
        "connection.unused": [],
        "source.orders": ["connection.kafka"],
        "view.totals": ["source.orders"],
        "sink.back": ["connection.kafka", "view.totals"],
        "sink.table": ["connection.pg", "source.orders"],
    }
    references = {Address.parse(a): [*map(Address.parse, used)] for a, used in written.items()}
    columns = columns_of(references)
    nodes = {
        a: DrawnNode(key=str(a), column=columns[a], title=str(a), note="", look="kept") for a in references
    }
    picture = str(draw(nodes, references, "a graph"))
    found = re.findall(r"translate\((\d+) \d+\)\"><title>([\w.]+)", picture)
    titles = [title for _, title in sorted(found, key=lambda pair: (int(pair[0]), pair[1]))]
    assert titles == [
        "connection.kafka",
        "connection.unused",
        "source.orders",
        "view.totals",
        "sink.back",
        "sink.table",
        "connection.kafka",
        "connection.pg",
        "connection.bastion",
    ]
