"""The documentation: it builds without a network, and every command block of it does what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mzplan.cli.main import COMMANDS
from mzplan.kinds import schema_names
from tests.docs_commands import DOCS, commands, matches, run_page

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
        assert not re.search(r"^ *```(sh|bash|shell)\n", text, re.MULTILINE), page
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
