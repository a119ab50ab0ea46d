"""Each message that the code uses has texts, gets the values that they need, and no text is unused."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from mzplan.model.diagnostics import Diagnostic, ExitCode, ProblemKind, Severity
from mzplan.model.messages import PLACEHOLDER, filled, read_section, section_files

MZPLAN = Path(__file__).parents[3] / "mzplan"
PARTS = ("summary", "detail", "hint")
MESSAGE = re.compile(r"MZ\d{3}(\.[a-z0-9-]+)?")


def rows() -> dict[str, Mapping[str, str]]:
    """Return the texts of every message."""
    found: dict[str, Mapping[str, str]] = {}
    for entries in map(read_section, section_files()):
        for code, entry in entries.items():
            if code != "section":
                variants = {f"{code}.{name}": row for name, row in entry.items() if isinstance(row, dict)}
                found |= variants | ({code: entry} if "summary" in entry else {})
    return found


ROWS = rows()


TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MZPLAN.rglob("*.py")}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> dict[str, tuple[set[str], set[str]]]:
    """Return the functions that take a message and its values.

    For each, return its own keywords, and the values that it adds when it passes the message on.
    """
    found: dict[str, tuple[set[str], set[str]]] = {}
    parts = [part for tree in TREES.values() for part in ast.walk(tree) if isinstance(part, Function)]
    for _ in range(2):  # a function may pass the message to another one that adds values
        for part in parts:
            own = {argument.arg for argument in [*part.args.args, *part.args.kwonlyargs]}
            if "message" in own and part.args.kwarg is not None and part.args.kwarg.arg == "values":
                inner = [call for call in calls(part) if "message" in map(ast.unparse, call.args)]
                passed = {keyword.arg for call in inner for keyword in call.keywords if keyword.arg}
                for call in inner:
                    passed |= found.get(called(call), (set(), set()))[1]
                found[part.name] = own | found.get(part.name, (set(), set()))[0], passed - own
    return found


def called(call: ast.Call) -> str:
    """Return the last part of the name of the function that is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


FUNCTIONS = functions()


def uses() -> Iterator[tuple[str, str, ast.Call, list[str]]]:
    """Yield the place, the function, the call and the messages of each use in the code."""
    for path, tree in TREES.items():
        for call in calls(tree):
            function = called(call)
            for argument in call.args:
                if (found := list(ids(argument))) and function in FUNCTIONS and not has_texts(call):
                    yield f"{path.relative_to(MZPLAN.parent)}:{call.lineno}", function, call, found


def has_texts(call: ast.Call) -> bool:
    """Return whether a call of `error` gives the texts itself, as code that isn't migrated yet does."""
    function = getattr(call.func, "id", "")
    return function == "error" and (len(call.args) > 1 or "summary" in {word.arg for word in call.keywords})


def ids(argument: ast.AST) -> Iterator[str]:
    """Yield the messages that an argument names: one, or one of both branches of a condition."""
    if isinstance(argument, ast.IfExp):
        yield from ids(argument.body)
        yield from ids(argument.orelse)
    elif isinstance(argument, ast.Constant) and MESSAGE.fullmatch(str(argument.value)):
        yield str(argument.value)


USES = list(uses())


def placeholders(message: str) -> set[str]:
    return {match["name"] for part in PARTS for match in PLACEHOLDER.finditer(ROWS[message].get(part, ""))}


def test_each_use_gives_the_values_that_its_message_needs() -> None:
    wrong = []
    for place, function, call, messages in USES:
        own, added = FUNCTIONS[function]
        keywords = {keyword.arg for keyword in call.keywords}
        if unknown := set(messages) - set(ROWS):
            wrong.append(f"{place}: no message {sorted(unknown)}")
            continue
        needed = set().union(*map(placeholders, messages))
        if unused := keywords - own - needed:
            wrong.append(f"{place}: {messages} doesn't show {sorted(map(str, unused))}")
        if len(call.args) > 1 or function in ("_problem", "_error"):  # a place or a query has an address
            keywords.add("address")
        if missing := needed - keywords - added:
            wrong.append(f"{place}: {messages} needs {sorted(missing)}")
    assert not wrong, "\n".join(wrong)


def test_each_message_is_used() -> None:
    """A message that isn't an argument, but in a table of the code, has no values."""
    checked = {message for *_, messages in USES for message in messages}
    other = {message for tree in TREES.values() for node in ast.walk(tree) for message in named(node)}
    assert not {message for message in other - checked if message not in ROWS or placeholders(message)}
    assert not set(ROWS) - checked - other


def named(node: ast.AST) -> Iterator[str]:
    """Yield the message that a text names, if it has a variant: a code alone may be just a code."""
    yield from (message for message in ids(node) if "." in message and isinstance(node, ast.Constant))


def test_each_message_has_known_properties() -> None:
    names = {"severity", "kind", "exit_code", *PARTS, "title", "cause", "fix"}
    for message, row in ROWS.items():
        assert {name for name, value in row.items() if isinstance(value, str)} <= names, message
        assert row.get("severity", "error") in get_args(Severity), message
        assert row.get("kind", "") in get_args(ProblemKind), message
        assert row.get("exit_code", "ERROR") in ExitCode.__members__, message


def test_no_module_reads_the_tables_when_it_is_imported() -> None:
    code = "import sys, mzplan.cli.main, mzplan.features.ui.follower as _; sys.exit('tomllib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_codes_are_in_order() -> None:
    codes = [code for section in map(read_section, section_files()) for code in section if code != "section"]
    assert codes == sorted(set(codes))


def test_placeholders() -> None:
    values = {"name": "a\tb", "names": ["a", "b", "c"], "number": 2, "none": "", "body": {}}
    for text, expected in {
        "{name}, {name:shown}": 'a\tb, "a\\tb"',
        "{names:list}; {names:and}; {names:or}": "a, b, c; a, b and c; a, b or c",
        "{number:count query/queries}, {number:.1f}": "2 queries, 2.0",
        "{none|nothing} ${env:NAME} {type: kafka} {body:kind}": "nothing ${env:NAME} {type: kafka} a mapping",
    }.items():
        assert filled(text, values) == expected
    with pytest.raises(KeyError):
        filled("{missing}", values)
    with pytest.raises(KeyError):
        Diagnostic.of("MZ001.missing")
