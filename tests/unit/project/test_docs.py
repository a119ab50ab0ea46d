"""The documentation builds without a network, and what its pages and the README show and name is true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mzplan.cli.main import cli
from tests.machines import DOCS, commands, run_page
from tests.unit.cli_runs import add_settings
from tests.warm_commands import warm_mzplan

ROOT = DOCS.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# tests/integration/views runs these pages, or compares generations without a page.
ON_SPARK = ("compare-generations", "see-what-a-change-gives", "test-a-view")
DRY = sorted(page for page in (DOCS / "how-to").glob("*.md") if page.stem not in ON_SPARK)


WITH_GIT = [page for page in DRY if "\ngit " in page.read_text(encoding="utf-8")]
MARKED = [pytest.param(p, marks=[pytest.mark.programs] * (p in WITH_GIT), id=p.stem) for p in DRY]


@pytest.mark.parametrize("page", MARKED)
def test_a_how_to_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert commands(page)
    run_page(page, tmp_path)


def test_every_command_of_the_docs_is_run_by_a_test() -> None:
    """Commands are `console` blocks. This module runs those of the how-tos; other tests use Spark."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ *```(sh|bash|shell)?\n *\$ ", text, re.MULTILINE), page
        assert not re.search(r"^ *```(sh|bash|shell)\n", text, re.MULTILINE), page
        shown = re.findall(r"^ *```text\n\$ (.*)", text, re.MULTILINE)
        assert shown in ([], ["mzplan steps source.orders --last 3"]), page
        elsewhere = ("tutorial.md", "deploy.md", *(f"{name}.md" for name in ON_SPARK))
        assert not commands(page) or page in DRY or page.name in elsewhere, page


def test_the_site_fetches_nothing(tmp_path: Path) -> None:
    """It is built without a network: the proxy does not exist."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, **nowhere}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 12
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]*)"', text)
        fetched += re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:[^"]*)"', text)
        assert fetched == [], page


def _slug(heading: str) -> str:
    """The anchor that a Git host gives a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def test_links_between_pages_and_files_are_valid() -> None:
    folders = [ROOT / name for name in ("docs", "examples", "benchmarks", "state", "tests")]
    pages, broken = [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))], []
    assert len(pages) > 40
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists():
                broken.append(f"{page}: {link}")
            elif anchor and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                if anchor not in map(_slug, headings):
                    broken.append(f"{page}: {link}")
    assert not broken


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = [f": {page.relative_to(DOCS)}\n" for page in DOCS.rglob("*.md")]
    assert [page for page in pages if page not in f"{navigation}\n"] == []


def test_the_reference_matches_the_code(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "tools/docs_reference.py", str(tmp_path)], cwd=ROOT, check=True)
    made, found = (
        {
            page.name: page.read_text("utf-8")
            for page in [*folder.glob("reference/*.md"), folder / "errors.md"]
        }
        for folder in (tmp_path, DOCS)
    )
    assert found == made, "write it again: make reference"
    assert not re.search(r"`(?:True|False|None)`|`[\[{]'", "".join(found.values()))


def test_the_first_steps_of_the_readme_work(tmp_path: Path) -> None:
    """The example on a dry instance. The tutorial runs the same project on Spark."""
    lines = README.partition("Without any server, files only:\n\n```sh\n")[2].partition("```")[0].splitlines()
    assert lines[0] == "make setup" and len(lines) == 4
    shutil.copytree(ROOT / "examples" / "files", tmp_path / "examples" / "files")
    add_settings(tmp_path / "examples" / "files", "instances: {local: {type: dry}}\n")
    for line in lines[1:]:
        command = line.replace(".venv/bin/mzplan", warm_mzplan())
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_plan_in_the_readme_is_what_mzplan_prints() -> None:
    golden = (ROOT / "tests/cases/broker_moved/plan.txt").read_text(encoding="utf-8")
    assert f"$ mzplan plan\n{golden.rstrip()}\n```" in README


def test_the_commands_and_make_targets_in_the_readme_exist() -> None:
    named = set(re.findall(r"^\| `mzplan (\w+)|`mzplan (\w+)|/ `(\w+)`", README, flags=re.M))
    words = {word for found in named for word in found if word}
    assert words >= {"plan", "apply", "status", "destroy", "down"}
    assert words <= set(cli.list_commands(click.Context(cli)))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
