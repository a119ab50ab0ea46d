"""Diagnostics: feedback to a person. Where, what, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, get_args

from mzplan.model.address import Address

Severity = Literal["error", "warning", "notice"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


class ExitCode(IntEnum):
    """The process exit codes of interface.md."""

    OK = 0
    ERROR = 1
    CHANGES = 2
    DRIFT = 3
    CHANGES_AND_DRIFT = 4
    STALE = 5
    LOCKED = 6
    REFUSED = 7
    NOT_CONVERGED = 8
    USAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """Where something was written. Lines and columns count from 1; the end is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SourceRange:
        """The inverse. Raises ValueError."""
        from mzplan.model import reading

        numbers = ("line", "column", "end_line", "end_column")
        return cls(path=reading.text(data, "path"), **{n: reading.integer(data, n, least=1) for n in numbers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One thing to tell a person.

    `summary` says what in a few words, `detail` why, `hint` how to fix it; docs/errors.md explains
    each `code`. `excerpt` is the source line, already masked where it holds a secret.
    """

    severity: Severity = "error"
    code: str
    summary: str
    detail: str = ""
    hint: str = ""
    range: SourceRange | None = None
    address: Address | None = None
    excerpt: str | None = None
    exit_code: ExitCode = field(default=ExitCode.ERROR, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "summary": self.summary,
            "detail": self.detail,
            "hint": self.hint,
            "range": self.range.to_json() if self.range else None,
            "address": str(self.address) if self.address else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Diagnostic:
        """The inverse of `to_json` (a runner's answer travels through the store). Raises ValueError."""
        from mzplan.model import reading  # only for what was saved or sent

        written, address = data.get("range"), reading.text_or_none(data, "address")
        return cls(
            severity=reading.one_of(data, "severity", SEVERITIES),
            code=reading.text(data, "code"),
            summary=reading.text(data, "summary"),
            detail=reading.text(data, "detail", ""),
            hint=reading.text(data, "hint", ""),
            range=SourceRange.from_json(reading.mapping(written, "range")) if written else None,
            address=Address.parse(address) if address else None,
            exit_code=ExitCode(reading.integer(data, "exit_code", ExitCode.ERROR.value)),
        )


class MzplanError(Exception):
    """Something that a person must be told, and that ends the command.

    Carries diagnostics (all that were found, not just the first) and the exit code. The command line
    renders it; a traceback is never shown for it.
    """

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic], exit_code: ExitCode | None = None):
        found = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(found)
        errors = [d for d in found if d.severity == "error"] or found
        self.exit_code: ExitCode = exit_code if exit_code is not None else errors[0].exit_code
        super().__init__("; ".join(f"[{d.code}] {d.summary}" for d in found))


def error(  # a short name: errors are written in many places, and each should read as one sentence
    code: str,
    summary: str,
    detail: str = "",
    hint: str = "",
    *,
    address: Address | None = None,
    range: SourceRange | None = None,
    exit_code: ExitCode = ExitCode.ERROR,
) -> MzplanError:
    """An MzplanError with one diagnostic."""
    return MzplanError(
        Diagnostic(
            code=code,
            summary=summary,
            detail=detail,
            hint=hint,
            address=address,
            range=range,
            exit_code=exit_code,
        )
    )
