"""The documentation: it builds without a network, and every command block of it does what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from mzplan.cli.main import COMMANDS
from mzplan.schema.dialect import words
from mzplan.schema.loading import schema_names
from tests.docs_commands import DOCS, commands, matches, run_page
from tests.unit.small_projects import at, commit, shop

ROOT = DOCS.parent
DRY = sorted((DOCS / "how-to").glob("*.md"))


NEED_PROGRAMS = [page for page in DRY if re.search("^git ", page.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.programs] * (page in NEED_PROGRAMS), id=page.stem)
        for page in DRY
    ],
)
def test_a_how_to_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert commands(page)
    run_page(page, tmp_path)


def test_no_page_has_commands_that_nobody_runs() -> None:
    """Commands are shown as `console` blocks, and those are run: how-tos here, others on real Spark."""
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^ *```(sh|bash|shell)?\n *\$ ", text, re.MULTILINE), page
        assert not re.search(r"^ *```(sh|bash|shell)\n", text, re.MULTILINE), page
        shown = re.findall(r"^ *```text\n\$ (.*)", text, re.MULTILINE)
        assert shown in ([], ["mzplan steps source.orders --last 3"]), page  # see below
        assert not commands(page) or page in DRY or page.name in ("tutorial.md", "deploy.md"), page


def test_commands_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```console title="master, worker"\n$ one \\\n  --more\nsaid\n$ two\n```\n'
        '```yaml title="laptop, driver: a.yaml"\nb: 1\n```\n```console\n$ three\n```\n'
    )
    one, two, file, three = commands(page)
    assert (one.text, one.expected, one.machines) == ("one \\\n  --more", "said", ("master", "worker"))
    assert (two.text, two.expected) == ("two", "")
    assert file.text.startswith("cat > a.yaml") and file.machines == ("laptop", "driver")
    assert (three.text, three.machines) == ("three", ())


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


def _slug(heading: str) -> str:
    """The anchor that a Git host gives a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def test_links_in_the_repository_lead_somewhere() -> None:
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


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # of a server: its links begin at the root
            continue
        for link in re.findall(r'<a[^>]*\bhref="([^"]*)"', page.read_text(encoding="utf-8")):
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                anchor and f'id="{anchor}"' not in target.read_text(encoding="utf-8")
            ):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "tools/docs_reference.py", str(tmp_path)], cwd=ROOT, check=True)
    made, found = (
        {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md")}
        for folder in (tmp_path, DOCS / "reference")
    )
    assert found == made, "write it again: make reference"
    assert not re.search(r"`(?:True|False|None)`|`[\[{]'", "".join(found.values()))


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

    from mzplan.features.steps.steps import ShownSteps
    from mzplan.features.steps.steps_text import render_steps
    from mzplan.warehouse.step_history import Steps
    from mzplan.warehouse.step_record import StepRecord

    text = (DOCS / "internals" / "content-hash.md").read_text(encoding="utf-8")
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
