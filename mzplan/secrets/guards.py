"""The guards of processes without a policy.

A runner uses `CommittedGuard`. Commands that validate live without a runner resolve and send secrets
themselves, and use one of the other guards. The validated files never choose the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from mzplan.model.diagnostics import Diagnostic, MzplanError, ProblemKind, Severity
from mzplan.secrets.policy import Flow, Guard, lines_for, shown_route


class CommittedGuard(Guard):
    """The guard of a runner without a policy.

    It allows the flows of the committed state and the flows that were granted. It also allows flows of
    earlier serials, because a query may return to an earlier description, or must clean up after it.

    `past`: yields the flows of earlier serials, newest first.
    """

    def __init__(self, past: Callable[[], Iterator[frozenset[Flow]]] = lambda: iter(())):
        self._past = past
        self._committed: frozenset[Flow] = frozenset()
        self._granted: frozenset[Flow] = frozenset()
        self._refused: frozenset[Flow] = frozenset()  # flows that no serial up to the latest one has

    def set_committed(self, flows: Iterable[Flow]) -> None:
        """Record the flows of a newly committed serial."""
        self._committed, self._refused = frozenset(flows), frozenset()

    def grant(self, flows: Iterable[Flow]) -> None:
        """Allow these flows. The requester is a user who may do everything that this process may."""
        self._granted |= frozenset(flows)

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raise MzplanError MZ107; a warning if `proposed`, as the runner validates after the commit."""
        unknown = set(flows) - self._committed - self._granted
        if unknown and not proposed:
            unknown = self._unknown_flows(unknown)
        if unknown and proposed:
            raise _refusal(
                unknown,
                f"{subject} was not validated live: it would send {_first_flow(unknown)}, which the "
                "committed state doesn't",
                "The runner validates it after the commit, before it stops anything.",
                "to validate it before the commit, start the runner with a policy (--policy) that has:",
                severity="warning",
                kind="not-sent",
            )
        if unknown:
            raise _refusal(
                unknown,
                f"{subject} would send {_first_flow(unknown)}",
                "Without a policy, a runner sends secrets only where a committed state does.",
                "find out who wrote it. To allow it, start the runner with a policy (--policy) that has:",
                kind="not-sent",
            )

    def _unknown_flows(self, flows: set[Flow]) -> set[Flow]:
        unknown = flows - self._refused
        for earlier in self._past() if unknown else ():
            unknown -= earlier
            if not unknown:
                break
        self._refused |= unknown
        return flows & self._refused


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFlowsGuard(Guard):
    """The guard of a command that commits nothing: secrets go only where the committed state sends them.

    `committed_flows`: the flows of the committed state.
    `reason`: why the committed state isn't used, or "".
    `severity`: the severity of the diagnostic for a description that isn't validated.
    """

    committed_flows: frozenset[Flow]
    reason: str = ""
    severity: Severity = "error"

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ107."""
        unknown = set(flows) - self.committed_flows
        if unknown:
            raise _refusal(
                unknown,
                f"{subject} was not validated live: this command doesn't send {_first_flow(unknown)}",
                "The files send it there, but no committed state does, so the files' author could get it."
                + (f" {self.reason}" if self.reason else ""),
                "if you wrote or reviewed the files, add --send-secrets; otherwise add --policy FILE "
                "(outside the project) with:",
                severity=self.severity,
            )


class AllowingGuard(Guard):
    """Allows all flows, because the user asked for it or is about to commit the files."""

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Allow all flows."""


def _refusal(
    flows: Collection[Flow],
    summary: str,
    detail: str,
    hint: str,
    *,
    severity: Severity = "error",
    kind: ProblemKind = "",
) -> MzplanError:
    """Return MZ107 for flows. The hint continues with the lines of a policy that allows them."""
    return MzplanError(
        Diagnostic(
            severity=severity,
            code="MZ107",
            kind=kind,
            summary=summary,
            detail=detail,
            hint=f"{hint}\n{lines_for(sorted(flows))}",
        )
    )


def _first_flow(flows: Collection[Flow]) -> str:
    first = min(flows)
    return f"{first.reference} to {shown_route(first.route)}"
