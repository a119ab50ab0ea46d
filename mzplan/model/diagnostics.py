"""Diagnostics: feedback to a person. Where, what, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.stored import NOT_STORED, SPARSE, Positive

Severity = Literal["error", "warning", "notice"]

# What a problem means to the program, for the few problems that it treats in their own way.
ProblemKind = Literal[
    "",
    "another-upstream",  # or another target
    "checkpoint-missing",
    "collection-missing",
    "damaged",
    "data-loss",  # a new generation can't read everything again
    "destroy-prevented",
    "edited",  # the state, by hand
    "missing-package",
    "missing-property",
    "no-permission",
    "no-such-serial",
    "not-found",
    "not-migratable",
    "not-sent",  # a secret, so the query was not validated
    "offsets-gone",
    "refused-login",
    "steps-given-up",
    "steps-missing",  # of a collection
    "stopped-by-hand",
    "target-behind",
    "target-restored",
    "uncommitted",
    "unexplained",
    "unfit",  # the runner can't run the description
    "unparsed",  # a file: what it declares is not known
    "unreachable",
]


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
    line: Positive
    column: Positive
    end_line: Positive
    end_column: Positive

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One thing that a person should know.

    - `code`: docs/errors.md explains it to people; `kind` tells the program what the problem means.
    - `summary` says what is wrong in a few words, `detail` why, and `hint` how to fix it.
    - `excerpt`: the source line; a secret in it is masked already.
    - `addresses`: everything that one cause affects, if there are several; `address` is the first.
    """

    severity: Severity = "error"
    code: str
    kind: ProblemKind = field(default="", compare=False, metadata=SPARSE)
    summary: str
    detail: str = ""
    hint: str = ""
    range: SourceRange | None = None
    address: Address | None = None
    addresses: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    excerpt: str | None = field(default=None, metadata=NOT_STORED)
    exit_code: ExitCode = field(default=ExitCode.ERROR, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnostic as commands show it: without its kind, and without its exit code, because a
        command has its own."""
        document = encode(self)
        document.pop("kind", None)
        del document["exit_code"]
        return document


def sentence(problem: Diagnostic) -> str:
    """A problem in one paragraph, with its fix: for logs and statuses. The fix keeps its lines, and a
    statement of SQL its end."""
    parts = [problem.summary, problem.detail, f"Fix: {problem.hint}" if problem.hint else ""]
    return " ".join(part if part.endswith(";") else f"{part.rstrip('.')}." for part in parts if part)


class MzplanError(Exception):
    """Something that a person must know, and that ends the command.

    Carries diagnostics (all that were found, not just the first) and the exit code. The command line
    renders it; a traceback is never shown for it.
    """

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic], exit_code: ExitCode | None = None):
        listed = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(listed)
        errors = [d for d in listed if d.severity == "error"] or listed
        self.exit_code: ExitCode = exit_code if exit_code is not None else errors[0].exit_code
        super().__init__("; ".join(f"[{d.code}] {d.summary}" for d in listed))

    @property
    def kind(self) -> ProblemKind:
        """The kind of the first diagnostic."""
        return self.diagnostics[0].kind


def error(  # a short name: errors are written in many places, and each should read as one sentence
    code: str,
    summary: str,
    detail: str = "",
    hint: str = "",
    *,
    address: Address | None = None,
    range: SourceRange | None = None,
    exit_code: ExitCode = ExitCode.ERROR,
    kind: ProblemKind = "",
) -> MzplanError:
    """An MzplanError with one diagnostic."""
    return MzplanError(
        Diagnostic(
            code=code,
            kind=kind,
            summary=summary,
            detail=detail,
            hint=hint,
            address=address,
            range=range,
            exit_code=exit_code,
        )
    )


def refusal(
    code: str,
    summary: str,
    detail: str = "",
    hint: str = "",
    *,
    address: Address | None = None,
    kind: ProblemKind = "",
) -> MzplanError:
    """Return the error of a command that is refused (exit code 7)."""
    return error(code, summary, detail, hint, address=address, exit_code=ExitCode.REFUSED, kind=kind)


def usage_error(
    summary: str, detail: str = "", hint: str = "", *, address: Address | None = None
) -> MzplanError:
    """Return the error of a wrong command line (MZ070, exit code 64)."""
    return error("MZ070", summary, detail, hint, address=address, exit_code=ExitCode.USAGE)


def notice(summary: str, detail: str = "", hint: str = "", *, address: Address | None = None) -> Diagnostic:
    """Return a notice (MZ045) about the effect of a change, which needs no fix."""
    return Diagnostic(
        severity="notice", code="MZ045", summary=summary, detail=detail, hint=hint, address=address
    )
