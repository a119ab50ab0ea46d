"""docs/glossary.md names code that exists, and the code's public names avoid the words that it rules out."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict

import pytest

from tests.code_names import exists, modules, packages, public_names
from tests.docs_commands import DOCS

PAGE = (DOCS / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| term ")
]
WORDS = sorted({word for row in ROWS for word in re.findall(r"`(\w+)`", row[2])})

# The interface that mzplan comes from has its own words: these stay for as long as its methods do.
OF_THE_TRAIT = {
    "export": [
        "controller.catalog.Catalog.export",
        "controller.hosting.Hosting.cancel_prepare_export",
        "controller.hosting.Hosting.export",
        "controller.hosting.Hosting.prepare_export",
        "controller.protocol.StorageController.cancel_prepare_export",
        "controller.protocol.StorageController.export",
        "controller.protocol.StorageController.export_mut",
        "controller.protocol.StorageController.prepare_export",
        "controller.terms.CreateExportToken",
        "controller.terms.ExportDescription",
        "controller.terms.ExportState",
    ],
    "exports": [
        "controller.catalog.Catalog.create_exports",
        "controller.hosting.Hosting.create_exports",
        "controller.hosting.Hosting.exports",
        "controller.hosting.Hosting.prepare_exports",
        "controller.protocol.StorageController.create_exports",
        "runner.commands.CreateExports",
    ],
    "replica": [
        "controller.core.Controller.connect_replica",
        "controller.protocol.StorageController.connect_replica",
        "controller.terms.ReplicaLocation",
    ],
}
# Today's other names with a word that the glossary rules out. Shorten this list; never lengthen it.
EXCEPTIONS: dict[str, list[str]] = {}


def split(name: str) -> list[str]:
    """The words of a name: `CreateExportToken` → create, export, token."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_term_has_a_meaning_and_its_code_exists(row: list[str]) -> None:
    assert len(row) == 4 and row[1]
    names = [name for name in re.findall(r"`([\w.]+)`", row[3]) if name.partition(".")[0] in packages()]
    assert names
    assert [name for name in names if not exists(name)] == []


def test_a_term_is_there_once_and_is_no_synonym_of_another() -> None:
    terms = [term for row in ROWS for term in row[0].split(", ")]
    assert len(terms) == len(set(terms))
    assert set(terms) & set(WORDS) == set()


def test_the_terms_that_a_newcomer_meets_are_there() -> None:
    terms = {term for row in ROWS for term in row[0].split(", ")}
    met = (
        "source sink collection upstream downstream target instance runner lease epoch serial lineage "
        "generation digest offset checkpoint step frontier upper since hold proposal observation condition "
        "canary drift"
    )
    assert terms >= {*re.findall(r"\w+", met)}


def test_names_avoid_the_words_that_are_ruled_out() -> None:
    """Of modules, and of public classes, functions and methods. A name that is gone leaves its list, too."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in (*modules(), *public_names()):
        for word in {*split(name.rpartition(".")[2])} & {*WORDS}:
            found[word].append(name)
    assert {word: sorted(names) for word, names in found.items()} == {**OF_THE_TRAIT, **EXCEPTIONS}


def test_no_class_name_stands_twice() -> None:
    """Private ones too: who reads a name in a trace should not have to ask which of two it is."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            places[name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# What a package of a connector has of its own, and a room of features, is called the same in each.
PARTS = {"__init__.py", "connector.py", "source.py", "sink.py", "command.py"}


def test_a_file_name_says_the_noun_inside() -> None:
    names = Counter(path.name for path in modules().values())
    assert {name for name, number in names.items() if number > 2} - PARTS == set()


def test_no_folder_is_crowded() -> None:
    """At most 24 files side by side, in tests too."""
    folders = Counter(path.parent for path in modules().values())
    folders.update(path.parent for path in (DOCS.parent / "tests").rglob("*.py"))
    assert {str(folder): number for folder, number in folders.items() if number > 24} == {}


POOR = {
    "all_",
    "both",
    "found",
    "has",
    "is_",
    "it",
    "made",
    "one",
    "ones",
    "said",
    "that",
    "them",
    "there",
    "this",
    "what",
}


@pytest.mark.parametrize("package", sorted(packages()))
def test_locals_say_what_they_hold(package: str) -> None:
    """Names of fields and parameters are public: they are not looked at here."""
    poor = []
    for name, path in modules().items():
        tree = (
            ast.parse(path.read_text(encoding="utf-8")) if name.split(".")[0] == package else ast.Module([])
        )
        nodes = list(ast.walk(tree))
        fields = {id(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
        bound = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        poor += [f"{name}:{n.lineno}: {n.id}" for n in bound if n.id in POOR and id(n) not in fields]
    assert not poor
