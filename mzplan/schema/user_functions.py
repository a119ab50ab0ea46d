"""The user's functions, as a body names them.

`shop.enrich:clean` is a function of a package, and `transforms/enrich.py:clean` one of a file in the project.
Nothing here imports or runs the user's code.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mzplan.schema.kinds import resource_kind

CODE = "code"
"""The property with the text of a module of the project's folder; it follows from the function's file."""
SUFFIX = ".py"
MAX_CODE = 64 * 1024  # characters of a module


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The module of a function, or its file in the project's folder, and the function's name in it."""

    module: str
    name: str

    @property
    def is_in_project(self) -> bool:
        return self.module.endswith(SUFFIX)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def parse_function(text: str) -> FunctionName:
    module, _, name = text.rpartition(":")
    return FunctionName(module, name)


def function_of(kind_: Any, type_: str, body: Mapping[str, Any]) -> FunctionName | None:
    """Return the function of a view or sink; None if another type of query, or none is set."""
    property_ = resource_kind(kind_, type_).function_property
    text = body.get(property_) if property_ is not None else None
    return parse_function(text) if isinstance(text, str) else None


def digest_of_code(text: str) -> str:
    """Return a short digest of a module's text, for people."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def names_in(text: str) -> set[str] | None:
    """Return the names that a module's text defines at its top level; None if `import *` hides some.

    Raises SyntaxError, with line and column, for a text that this Python can't parse.
    """
    try:
        module = ast.parse(text)
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError):  # a NUL, or thousands of brackets
        raise SyntaxError("it isn't Python that can be parsed") from None
    names = set(_bound(module.body))
    return None if "*" in names else names


def _bound(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, also in the branches of `if` and `try`."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.If():
                yield from _bound([*statement.body, *statement.orelse])
            case ast.Try():
                handlers = [inner for handler in statement.handlers for inner in handler.body]
                yield from _bound([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
