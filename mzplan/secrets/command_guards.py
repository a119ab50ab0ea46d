"""Who decides, where a command itself would resolve and send secrets: live validation from here, without a
runner. Not one of these is chosen by the files that are validated."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mzplan.model.diagnostics import Diagnostic, MzplanError, Severity
from mzplan.secrets.policy import Flow, Route, lines_for, shown_route


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """A command that commits nothing: secrets go only where the committed state sends them (`held`). `why`:
    why no state counts, "" where one does. `severity`: of what is left out."""

    held: frozenset[Flow]
    why: str = ""
    severity: Severity = "error"

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ107."""
        left = sorted(set(flows) - self.held)
        if not left:
            return
        detail = (
            "The files send it there, and no committed state does: whoever wrote the files could get at it."
        )
        raise MzplanError(
            Diagnostic(
                severity=self.severity,
                code="MZ107",
                summary=f"{subject} was not validated live: {left[0].reference} is not sent from here to "
                f"{shown_route(left[0].route)}",
                detail=f"{detail} {self.why}" if self.why else detail,
                hint="if the files are yours, or you have read them, add --send-secrets; else add --policy "
                "FILE "
                "(outside the project) with:\n"
                f"{lines_for(left)}",
            )
        )

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Without a secret any server may be reached: that is what --live asks for."""


class AsWritten:
    """Secrets go where the files say: their user has asked for it, or is about to commit just that."""

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Refuses nothing."""

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Refuses nothing."""
