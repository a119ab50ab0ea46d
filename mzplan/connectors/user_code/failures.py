"""Errors of the user's functions, told by the function, its file and its line, without the stack."""

from __future__ import annotations

import re
from traceback import extract_tb

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.user_functions import FunctionName
from mzplan.secrets.resolved import scrub, shortened

_LONGEST = 600  # characters of the exception's message
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


def failed(address: Address, function: FunctionName, problem: BaseException) -> MzplanError:
    """Return MZ362 for an exception of the user's code in this process, or in a task that it waited for."""
    if (in_task := failed_in_task(address, function, str(problem))) is not None:
        return in_task
    frames = [(frame.filename, frame.lineno or 0) for frame in extract_tb(problem.__traceback__)]
    if isinstance(problem, SyntaxError) and problem.filename:
        frames.append((problem.filename, problem.lineno or 0))
    message = str(problem)
    if type(problem).__module__.startswith(("pyspark", "py4j")):
        message = re.sub(
            r"\s*SQLSTATE: \w+.*", "", message.partition(";\n")[0], flags=re.S
        )  # without Spark's plan
    message = " ".join(message.split())
    return error(
        "MZ362.fails",
        address=address,
        function=function,
        where=_place(frames, function),
        reason=scrub(shortened(f"{type(problem).__name__}: {message}".rstrip(": "), _LONGEST)),
    )


def failed_in_task(address: Address, function: FunctionName, message: str) -> MzplanError | None:
    """Return MZ362 for an exception in a Python task; None if the user's code isn't in its traceback.

    `message`: Spark's message, with the traceback.
    """
    start = message.rfind("Traceback (most recent call last)")
    if start < 0:
        return None
    text = message[start:]
    frames = [(match[1], int(match[2])) for match in _FRAME.finditer(text)]
    where = _place(frames, function)
    if not where:
        return None
    ending = text[max(match.end() for match in _FRAME.finditer(text)) :]
    lines = [line for line in ending.splitlines()[1:] if line and not line[0].isspace()]
    lines = [line for line in lines if re.match(r"[\w.]+(: |$)", line)] or lines
    return error(
        "MZ362.fails",
        address=address,
        function=function,
        where=where,
        reason=scrub(shortened(lines[0].strip() if lines else "it failed", _LONGEST)),
    )


def _place(frames: list[tuple[str, int]], function: FunctionName) -> str:
    """Return the innermost line of the user's code, such as ` at shop/enrich.py:12`; "" if there is none."""
    for file, line in reversed(frames):
        shown = _shown(file, function)
        if shown:
            return f" at {shown}:{line}"
    return ""


def _shown(file: str, function: FunctionName) -> str:
    """Return a file's path for people if it belongs to the function's module or package; else ""."""
    if function.is_in_project:
        return file if file == function.module else ""
    top = function.module.partition(".")[0]
    path = f"/{file.replace(chr(92), '/')}"
    inside = f"/{top}/"
    if inside in path:
        return path[path.rindex(inside) + 1 :]
    return f"{top}.py" if path.endswith(f"/{top}.py") else ""
