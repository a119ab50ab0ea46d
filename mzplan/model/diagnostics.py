"""Diagnostics: messages for people. Each says where, what, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, cast

from mzplan.model import messages
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.stored import NOT_STORED, SPARSE, Positive

Severity = Literal["error", "warning", "notice"]

# How the program recognises the few problems that it handles in a special way.
ProblemKind = Literal[
    "",
    "another-upstream",  # also used for another target
    "checkpoint-missing",
    "code-changed",  # another version of a function's package is installed
    "collection-missing",
    "columns-changed",  # of a table that a running query reads
    "damaged",
    "data-loss",  # a new generation can't read everything again
    "destroy-prevented",
    "edited",  # somebody edited the state by hand
    "missing-package",
    "missing-property",
    "mixed-state",  # a stateful view keeps its state, and reads other rows from now on
    "no-permission",
    "no-such-serial",
    "not-found",
    "not-migratable",
    "not-sent",  # a secret wasn't sent, so the query wasn't validated
    "offsets-gone",
    "refused-login",
    "steps-given-up",
    "steps-missing",  # from a collection
    "stopped-by-hand",
    "target-behind",
    "target-restored",
    "uncommitted",
    "unexplained",
    "unfit",  # the runner can't run the description
    "unparsed",  # a file couldn't be parsed, so its declarations are unknown
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
    """A range of text in a file. Lines and columns count from 1; the end is exclusive."""

    path: str
    line: Positive
    column: Positive
    end_line: Positive
    end_column: Positive

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One error, warning or notice for a person.

    - `code`: the entry in docs/errors.md that explains it. `kind` identifies the problem for the program.
    - `summary` says what is wrong in a few words, `detail` why, and `hint` how to fix it.
    - `excerpt`: the source line, with secrets masked.
    - `addresses`: every affected resource, if there are several; `address` is the first.
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

    @classmethod
    def of(
        cls,
        message: str,
        *,
        address: Address | None = None,
        addresses: tuple[Address, ...] = (),
        range: SourceRange | None = None,
        severity: Severity | None = None,
        **values: Any,
    ) -> Diagnostic:
        """Return a diagnostic with the texts of a message, such as `MZ002.tag` (see mzplan.model.messages).

        The message also defines its severity, kind and exit code. The texts may use the address.
        """
        row = messages.row(message)
        values["address"] = address
        summary, detail, hint = (
            messages.filled(row.get(part, ""), values) for part in ("summary", "detail", "hint")
        )
        return cls(
            severity=severity or cast(Severity, row.get("severity", "error")),
            code=message[:5],
            kind=cast(ProblemKind, row.get("kind", "")),
            summary=summary,
            detail=detail,
            hint=hint,
            range=range,
            address=address,
            addresses=addresses,
            exit_code=ExitCode[row.get("exit_code", "ERROR")],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the diagnostic as commands print it: without `kind` and `exit_code`."""
        document = encode(self)
        document.pop("kind", None)
        del document["exit_code"]
        return document


def sentence(problem: Diagnostic) -> str:
    """Return a problem and its fix in one paragraph, for logs and statuses.

    The fix keeps its line breaks, and an SQL statement keeps its `;`.
    """
    parts = [problem.summary, problem.detail, f"Fix: {problem.hint}" if problem.hint else ""]
    return " ".join(part if part.endswith(";") else f"{part.rstrip('.')}." for part in parts if part)


class MzplanError(Exception):
    """An error for the user, which ends the command.

    It has every diagnostic, not only the first, and the exit code. The command line shows it without a
    traceback.
    """

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic], exit_code: ExitCode | None = None):
        listed = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(listed)
        errors = [d for d in listed if d.severity == "error"] or listed
        self.exit_code: ExitCode = exit_code if exit_code is not None else errors[0].exit_code
        super().__init__("; ".join(f"[{d.code}] {d.summary}" for d in listed))

    @property
    def kind(self) -> ProblemKind:
        return self.diagnostics[0].kind


def error(  # a short name, because it is called in many places
    message: str,
    summary: str = "",
    detail: str = "",
    hint: str = "",
    *,
    address: Address | None = None,
    range: SourceRange | None = None,
    exit_code: ExitCode = ExitCode.ERROR,
    kind: ProblemKind = "",
    **values: Any,
) -> MzplanError:
    """Return an MzplanError with one diagnostic (see `Diagnostic.of`)."""
    if not summary:
        return MzplanError(Diagnostic.of(message, address=address, range=range, **values))
    return MzplanError(
        Diagnostic(
            code=message,
            kind=kind,
            summary=summary,
            detail=detail,
            hint=hint,
            address=address,
            range=range,
            exit_code=exit_code,
        )
    )


def usage_error(
    summary: str, detail: str = "", hint: str = "", *, address: Address | None = None
) -> MzplanError:
    """Return the error for a wrong command line (MZ070, exit code 64)."""
    return error("MZ070", summary, detail, hint, address=address, exit_code=ExitCode.USAGE)
