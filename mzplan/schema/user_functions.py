"""The user's functions, as a body names them.

`shop.enrich:clean` is a function of a package, and `transforms/enrich.py:clean` one of a file in the project.
Nothing here imports or runs the user's code.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mzplan.schema.columns import canonical_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.sql_text import tokens
from mzplan.schema.sql.type_rules import plain_type

CODE = "code"
"""The property with the text of a module of the project's folder; it follows from the function's file."""
FUNCTIONS = "functions"
"""The property with the functions of mzplan.yaml that a query's SQL calls, by name; it follows from both."""
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


@dataclass(frozen=True, slots=True)
class SqlFunction:
    """A function that SQL calls by a name.

    - `returns`: the type of its values, in canonical DDL.
    - `code`: the text of a module in the project's folder, "" for a package.
    """

    function: FunctionName
    returns: str
    requires: str = ""
    code: str = ""

    @property
    def version(self) -> str:
        """Return a short digest of everything that decides the function's values, as far as it is known."""
        content = repr((str(self.function), self.returns, self.requires, self.code))
        return digest_of_code(content)


def sql_functions(body: Mapping[str, Any]) -> dict[str, SqlFunction]:
    """Return the functions that the SQL of a query calls, by name."""
    return {
        name: SqlFunction(
            parse_function(called["function"]),
            canonical_type(called["returns"]) or "",
            called.get("requires", ""),
            called.get(CODE, ""),
        )
        for name, called in (body.get(FUNCTIONS) or {}).items()
    }


def returned_types(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of the functions that the SQL of a query calls, by name."""
    types = ((name, plain_type(function.returns)) for name, function in sql_functions(body).items())
    return {name: type_ for name, type_ in types if type_ is not None}


def function_versions(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the functions that the SQL of a query calls, by name."""
    return {name: function.version for name, function in sql_functions(body).items()}


def calls_in(sql: str, names: Container[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the calls of these functions in SQL without comments: the name, its start and its end."""
    for token, after in pairwise(tokens(sql)):
        if after.text == "(" and token.name in names:
            yield token.name, token.start, token.end


def parse_function(text: str) -> FunctionName:
    module, _, name = text.rpartition(":")
    return FunctionName(module, name)


def function_of(kind_: Any, type_: str, body: Mapping[str, Any]) -> FunctionName | None:
    """Return the function of a view or sink; None if another type of query, or none is set."""
    property_ = resource_kind(kind_, type_).function_property
    text = body.get(property_) if property_ is not None else None
    return parse_function(text) if isinstance(text, str) else None


def functions_of(kind_: Any, type_: str, body: Mapping[str, Any]) -> tuple[FunctionName, ...]:
    """Return the user's functions that a query runs: its own, or those that its SQL calls."""
    own = function_of(kind_, type_, body)
    return (own,) if own is not None else tuple(one.function for one in sql_functions(body).values())


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
