"""Calls a function of the user for the value of one row, in Spark's Python tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mzplan.connectors.formats.records import MARK
from mzplan.connectors.user_code.failures import failed
from mzplan.model.address import Address
from mzplan.model.diagnostics import sentence
from mzplan.schema.user_functions import FunctionName


class CallError(Exception):
    """Raised in a task if a function fails. Its text is a failure that mzplan recognizes (MARK)."""


def value_of(
    call: Callable[..., Any],
    address: Address,
    function: FunctionName,
    check: Callable[[Any], None] | None = None,
) -> Callable[..., Any]:
    """Return the function, with an error that names the query, the function, the file and the line.

    The error is found wherever a task of Spark fails: in a runner, a test, a preview. `check`: raises an
    error for a value that isn't of the function's type.
    """

    def value(*arguments: Any) -> Any:
        try:
            result = call(*arguments)
            if check is not None:
                check(result)
            return result
        except Exception as problem:
            (diagnostic,) = failed(address, function, problem).diagnostics
            text = " ".join(sentence(diagnostic).split())
        raise CallError(f"{MARK}[{diagnostic.code}]: {text}")

    return value


def never_called(*_: Any) -> NoReturn:
    """Stand in for a function whose code isn't committed."""
    raise AssertionError("code that isn't committed doesn't run")
