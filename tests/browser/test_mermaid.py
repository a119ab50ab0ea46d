"""The impact graphs of review comments, drawn by Mermaid in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mzplan.render.graphs.graph import render_graph
from tests.browser.chromium import drawn, mermaid, missing
from tests.programs import skip_without
from tests.unit.small_projects import at, console, kafka, project, shop, source

CASES = Path(__file__).parents[1] / "cases"
COMMENTS = sorted([*CASES.glob("*/plan.md"), *CASES.glob("sizes/*.md")])
FENCE = re.compile(r"^```mermaid\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r'\["(.*?)"\]')


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without(missing(npm=True))
    return mermaid(tmp_path_factory.mktemp("npm"))


def check(graphs: list[str], library: Path, folder: Path) -> None:
    pictures = drawn(graphs, library, folder)
    assert len(pictures) == len(graphs)
    for graph, picture in zip(graphs, pictures, strict=True):
        assert "<svg" in picture and "broken" not in picture[:20] and "Syntax error" not in picture, picture
        for label in LABEL.findall(graph):
            for line in label.split("<br/>"):
                assert line in picture, f"{line} is not drawn"
        arrows = re.findall(r'class="[^"]*flowchart-link', picture)
        assert len(arrows) == graph.count(" --> ")


def test_the_graph_of_every_golden_comment(library: Path, tmp_path: Path) -> None:
    graphs = [graph for path in COMMENTS for graph in FENCE.findall(path.read_text(encoding="utf-8"))]
    assert len(graphs) >= 15
    check(graphs, library, tmp_path)


def test_the_graphs_of_the_graph_command(library: Path, tmp_path: Path) -> None:
    words = [source(name) for name in ("end", "graph", "subgraph", "click", "class", "default", "o", "x")]
    odd = project(kafka(), *words, *(console(f"s_{word.address.name}", word.address.name) for word in words))
    check([render_graph(shop()), render_graph(odd, impact=at("connection.k"))], library, tmp_path)
