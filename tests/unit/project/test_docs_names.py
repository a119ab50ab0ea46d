"""What the documentation says of the code is true: the names exist, the table of packages is what
import-linter checks, the maps are complete, and the paths are the ones that a command takes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mzplan.host.failpoints import Failpoint
from tests.code_names import PACKAGE, exists, modules, packages
from tests.docs_commands import DOCS

ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))
ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`\n]+)`")
NOT_CODE = {  # what begins as a module would, and is none
    *(point.value for point in Failpoint),
    *("mzplan.yaml", "mzplan.state.json", "mzplan.writers", "mzplan.steps", "mzplan.reason", "mzplan.offset"),
    *("mzplan.blobs", "mzplan.versions"),
    "mzplan.connectors",  # the entry point group
}
SHORT = {
    "architecture",
    "controller",
    "endpoints",
    "glossary",
}  # pages that leave `mzplan.` out, as decisions do


def named(page: Path) -> set[str]:
    """The dotted names of code on a page, without `mzplan.`."""
    found = set()
    for text in CODE.findall(page.read_text(encoding="utf-8")):
        if not re.fullmatch(r"[a-z_]+(\.\w+)+", text) or text in NOT_CODE or text.endswith(".md"):
            continue
        first, _, rest = text.partition(".")
        if first == "mzplan":
            found.add(rest)
        elif first in packages() and (page.stem in SHORT or page.parent.name == "decisions"):
            found.add(text)
    return {name for name in found if not name.endswith(".py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_that_a_page_names_exists(page: Path) -> None:
    assert [name for name in sorted(named(page)) if not exists(name)] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    """`mzplan/…`, `tests/…` and the like; `connectors/adapter/sink.py` below mzplan; modules of tests."""
    text = page.read_text(encoding="utf-8")
    for path in CODE.findall(text):
        first = path.partition("/")[0]
        if "…" in path or "<" in path or "*" in path or not re.fullmatch(r"[\w./-]+", path):
            continue
        if re.match(r"(mzplan|tests|tools|benchmarks|schemas)/", path):
            assert (ROOT / path).exists(), path
        elif first in packages() and path.endswith(".py"):
            assert (PACKAGE / path).exists(), path
        elif re.fullmatch(r"test_\w+\.py", path):
            assert list((ROOT / "tests").rglob(path)), path


# --- decisions


def test_a_decision_says_what_it_needs_to_and_is_in_the_list() -> None:
    listed = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in records] == list(range(1, len(records) + 1))
    for page in records:
        text = page.read_text(encoding="utf-8")
        number, _, title = text.partition("\n")[0].removeprefix("# ").partition(". ")
        assert int(number) == int(page.name[:4])
        assert f"| {page.name[:4]} | [{title}]({page.name}) |" in listed
        headings = re.findall(r"^## (.*)", text, flags=re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences", "What would change it"], page
        assert len(text.splitlines()) <= 40, f"{page}: half a page"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert [page for page in PAGES if f": {page.relative_to(DOCS)}\n" not in f"{navigation}\n"] == []


# --- the table of packages


def contracts() -> dict[str, dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def layers() -> list[list[str]]:
    return [layer.split(" | ") for layer in contracts()["layers"]["layers"]]


def allowed() -> dict[str, set[str]]:
    """What each package may import, as the contracts say: what is below it, but for what is forbidden."""
    found = {}
    for level, names in enumerate(layers()):
        found |= {name: {one for below in layers()[level + 1 :] for one in below} for name in names}
    for contract in contracts().values():
        if contract["type"] == "forbidden":
            forbidden = {one.removeprefix("mzplan.") for one in contract["forbidden_modules"]}
            for source in (one.removeprefix("mzplan.") for one in contract["source_modules"]):
                if source in found:
                    found[source] -= forbidden
    return found


def test_the_list_of_layers_is_the_one_that_is_checked() -> None:
    shown = ARCHITECTURE.partition("## Packages")[2].partition("```text\n")[2].partition("```")[0]
    assert shown.splitlines() == contracts()["layers"]["layers"]
    assert {name for names in layers() for name in names} == packages()


def test_the_table_of_packages_says_what_each_may_import() -> None:
    section = ARCHITECTURE.partition("## Packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [name for names in layers() for name in names]
    for name, cell in rows:
        below, _, without = cell.partition(", but not ")
        said: set[str] = set()
        if below != "nothing":
            top = re.fullmatch(r"`(\w+)` and below", below)
            assert top is not None, cell
            (level,) = (n for n, names in enumerate(layers()) if top[1] in names)
            said = {one for names in layers()[level:] for one in names}
        assert said - set(re.findall(r"`(\w+)`", without)) == allowed()[name], name


# --- the maps


@pytest.mark.parametrize("package", ["controller", "runner", "spark"])
def test_the_map_of_the_runtime_has_every_module(package: str) -> None:
    inside = ARCHITECTURE.partition(f"## Inside {'the ' * (package != 'spark')}{package}")[2].partition(
        "\n## "
    )[0]
    listed = {name for name in CODE.findall(inside) if name in modules()}
    assert listed == {name for name in modules() if name.startswith(f"{package}.")}


def test_the_map_of_connectors_has_every_package_of_it() -> None:
    inside = ARCHITECTURE.partition("## Inside connectors")[2].partition("\n## ")[0]
    below = {name for name in modules() if re.fullmatch(r"connectors\.\w+", name)}
    assert below <= set(CODE.findall(inside))


# --- the paths

TRACER = """
import sys, threading
from mzplan.cli.main import main

root, found = sys.argv.pop(1), set()

def called(frame, event, argument):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(root) and frame.f_code.co_name != "<module>":
        module = file[len(root) + 1 : -3].replace("/", ".").removesuffix(".__init__")
        found.update((module, f"{module}.{frame.f_code.co_qualname}"))

threading.setprofile(called)
sys.setprofile(called)
try:
    main()
finally:
    sys.setprofile(None)
    print(*sorted(found), sep="\\n", file=sys.stderr)
"""
# What a dry instance has none of: a process of its own, Spark, servers, questions to its runner.
NOT_DRY = ("spark.", "connectors.", "runner.embedded", "runner.wake")


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What `plan` and `apply` of a broker that has moved go through, on a dry instance."""
    folder = tmp_path_factory.mktemp("project")
    case = ROOT / "tests" / "cases" / "broker_moved"
    found = {}
    for files, command in (("before", "apply"), ("after", "plan"), ("after", "apply")):
        shutil.copytree(case / files, folder, dirs_exist_ok=True)
        settings = folder / "mzplan.yaml"
        settings.write_text(settings.read_text() + "instances: {local: {type: dry}}\n")
        options = ["--auto-approve"] if command == "apply" else []
        done = subprocess.run(
            [sys.executable, "-c", TRACER, str(PACKAGE), command, *options],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[command] = set(done.stderr.splitlines())
    return found


@pytest.mark.parametrize(("title", "command"), [("a plan", "plan"), ("an apply, and back", "apply")])
def test_a_path_names_what_the_command_goes_through(
    title: str, command: str, walked: dict[str, set[str]]
) -> None:
    path = ARCHITECTURE.partition(f"\n## The path of {title}\n")[2].partition("\n## ")[0]
    names = {name for name in CODE.findall(path) if name.partition(".")[0] in packages() and exists(name)}
    assert len(names) > 20
    assert {name for name in names if not name.startswith(NOT_DRY)} - walked[command] == set()
