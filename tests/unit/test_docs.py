"""The documentation: it builds without a network, and every command block of it does what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mzplan.cli.main import COMMANDS
from mzplan.schema.dialect import words
from mzplan.schema.kinds import schema_names
from tests.docs_commands import DOCS, commands, matches, run_page
from tests.unit.small_projects import at, commit, shop

ROOT = DOCS.parent
DRY = sorted((DOCS / "how-to").glob("*.md"))


@pytest.mark.parametrize("page", DRY, ids=lambda page: page.stem)
def test_a_how_to_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert commands(page)
    run_page(page, tmp_path)


def test_no_page_has_commands_that_nobody_runs() -> None:
    """Commands are shown as `console` blocks, and those are run: how-tos here, the tutorial on real Spark."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ *```(sh|bash|shell)?\n *\$ ", text, re.MULTILINE), page
        assert not re.search(r"^ *```(sh|bash|shell)\n", text, re.MULTILINE), page
        shown = re.findall(r"^ *```text\n\$ (.*)", text, re.MULTILINE)
        assert shown in ([], ["mzplan steps source.orders --last 3"]), page  # see below
        assert not commands(page) or page in DRY or page.name == "tutorial.md", page


def test_what_matches() -> None:
    assert matches("a\n…\nd", "a\nb\nc\nd\n") and matches("a …", "a b\n") and matches("", "")
    assert not matches("a", "a\nb\n") and not matches("", "x")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A proxy that is not there stands for a network that is not."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 12
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]*)"', text)
        fetched += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:[^"]*)"', text)
        assert fetched == [], page


def test_the_reference_has_every_command_option_and_kind(site: Path) -> None:
    listed = (site / "reference/commands/index.html").read_text(encoding="utf-8")
    for name in (*COMMANDS, "state rollback", "state unlock"):
        assert f"mzplan {name}" in listed, name
    assert "--allow-replace" in listed
    kinds = (site / "reference/connectors/index.html").read_text(encoding="utf-8")
    for kind in schema_names():
        assert f">{kind}<" in kinds, kind
    project = (site / "reference/project/index.html").read_text(encoding="utf-8")
    assert "state.secret_access_key" in project and "retain_dropped" in project
    dialect = (site / "reference/dialect/index.html").read_text(encoding="utf-8")
    for word in words():
        assert f"<code>{word}</code>" in dialect, word


def test_the_table_of_steps_is_what_is_printed() -> None:
    from datetime import UTC, datetime

    from mzplan.operations.steps import ShownSteps
    from mzplan.render.steps import render_steps
    from mzplan.warehouse.step_history import Steps
    from mzplan.warehouse.step_record import StepRecord

    text = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    began = datetime(2026, 3, 2, 10, 15, 7, tzinfo=UTC).timestamp()
    marks = [(88210, 87990), (88812, 88592), (89410, 89193), (89999, 89800)]
    offsets = [{"orders": {"0": one, "1": other}} for one, other in marks]
    rows, sizes = [1204, 1199, None], [38112, 37960, None]
    records = tuple(
        StepRecord(
            step=41 + n,
            start=offsets[n],
            end=offsets[n + 1],
            rows=rows[n],
            bytes=sizes[n],
            time=began + n,
            committed=n < 2,
        )
        for n in range(3)
    )
    resource = commit(shop()).resources[at("source.orders")]
    shown = ShownSteps(resource=resource, steps=Steps(since=0, upper=43, records=records))
    table = "\n".join(line.rstrip() for line in render_steps(shown).splitlines())
    assert f"$ mzplan steps source.orders --last 3\n{table}\n```" in text


def test_what_the_readme_has_one_try_works(tmp_path: Path) -> None:
    """Its commands on the example, without Spark: the tutorial runs the same project on it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("Without any server, files only:\n\n```sh\n")[2].partition("```")[0].splitlines()
    assert lines[0] == "make setup" and len(lines) == 4
    shutil.copytree(ROOT / "examples" / "files", tmp_path / "examples" / "files")
    settings = tmp_path / "examples" / "files" / "mzplan.yaml"
    settings.write_text(settings.read_text() + "instances: {local: {type: dry}}\n")
    for line in lines[1:]:
        command = line.replace(".venv/bin/mzplan", f"{sys.executable} -m mzplan")
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
