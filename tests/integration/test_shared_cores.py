"""Many queries that always have work, on one core: each gets its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import Project, eventually

QUERIES, STEPS = 12, 6
FILES = 200  # more than a query reads in the test


@pytest.mark.nightly
def test_no_query_starves_on_one_core(tmp_path: Path) -> None:
    """Spark gives a free core to the first of equal pools by name: five of twelve made no step in minutes."""
    master = {"PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"}
    project = Project(tmp_path / "p", "shared", master)
    names = [f"q{n:02}" for n in range(QUERIES)]
    for name in names:
        folder = project.folder / "in" / name
        folder.mkdir(parents=True)
        for file in range(FILES):
            (folder / f"{file}.json").write_text('{"id": 1}')
    project.write(
        "shared",
        "connections: {here: {type: files, path: .}}\n"
        "sources:\n"
        "  each:\n"
        f"    for_each: [{', '.join(names)}]\n"
        '    name: "${each.key}"\n'
        "    connection: here\n"
        '    path: "in/${each.key}"\n'
        '    format: {type: json, schema: "id BIGINT"}\n'
        "    max_files_per_trigger: 1\n"
        "    trigger: {interval: 100ms}\n",
    )

    def done() -> list[int]:
        """Of each query, how many steps it has done."""
        found = project.queries().values()
        return [0 if query["step"] is None else query["step"] + 1 for query in found]

    try:
        project.apply("--wait", "10m", seconds=700.0)
        eventually("one of them has done its steps", lambda: max(done()) >= STEPS, 600.0)
        counts = done()
        assert min(counts) >= max(counts) / 4, counts
    finally:
        project.down()
