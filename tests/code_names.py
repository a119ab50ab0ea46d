"""The names of mzplan's code, read from its files: nothing is imported, so nothing need be installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mzplan"


@cache
def packages() -> set[str]:
    """The packages directly below mzplan: `cli`, `config`, …"""
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


@cache
def modules() -> dict[str, Path]:
    """Every module and package by its dotted name, without `mzplan.`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def defined_in(path: Path) -> dict[str, dict[str, None]]:
    """What a module defines at its top, and for each class what is defined in it. Without what it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, dict[str, None]] = {}
    for node in tree.body:
        inner = _names(node.body) if isinstance(node, ast.ClassDef) else ()
        for name in _names([node]):
            found[name] = dict.fromkeys(inner)
    return found


def exists(dotted: str) -> bool:
    """Whether there is a module, a name in one, or an attribute of a class of that name (no `mzplan.`)."""
    known = modules()
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        path = known.get(".".join(parts[:end]))
        if path is None:
            continue
        rest = parts[end:]
        if not rest:
            return True
        names = defined_in(path)
        return rest[0] in names and (len(rest) == 1 or (len(rest) == 2 and rest[1] in names[rest[0]]))
    return False


def public_names() -> Iterator[str]:
    """Every public class and function, and the public methods of these classes: `model.state.State`."""
    for module, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            yield f"{module}.{node.name}"
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
                    yield f"{module}.{node.name}.{inner.name}"


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
