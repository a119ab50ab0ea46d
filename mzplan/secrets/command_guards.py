"""Guards for commands that resolve and send secrets themselves, to validate live without a runner.

The validated files never choose the guard.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mzplan.model.diagnostics import Diagnostic, MzplanError, Severity
from mzplan.secrets.policy import Flow, Route, lines_for, shown_route


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFlowsGuard:
    """The guard of a command that commits nothing: secrets go only where the committed state sends them.

    `committed_flows`: the flows of the committed state.
    `reason`: why no state counts, or "" if one does.
    `severity`: of the diagnostic for a description that isn't validated.
    """

    committed_flows: frozenset[Flow]
    reason: str = ""
    severity: Severity = "error"

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ107."""
        unknown = sorted(set(flows) - self.committed_flows)
        if not unknown:
            return
        detail = "The files send it there, but no committed state does, so the files' author could get it."
        raise MzplanError(
            Diagnostic(
                severity=self.severity,
                code="MZ107",
                summary=f"{subject} was not validated live: "
                f"this command doesn't send {unknown[0].reference} to "
                f"{shown_route(unknown[0].route)}",
                detail=f"{detail} {self.reason}" if self.reason else detail,
                hint="if you wrote or reviewed the files, add --send-secrets; otherwise add --policy FILE "
                "(outside the project) with:\n"
                f"{lines_for(unknown)}",
            )
        )

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Permit any server, because `--live` asks for that and no secret is sent."""


class AllowingGuard:
    """Sends secrets wherever the files say: the user asked for it, or is about to commit the files."""

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Refuse nothing."""

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Refuse nothing."""
