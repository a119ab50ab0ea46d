"""Who decides which secrets live validation from here may send, by what the command is about to do."""

from __future__ import annotations

from pathlib import Path

from mzplan.host.checkout import may_be_foreign, why_not_own
from mzplan.model.diagnostics import Severity
from mzplan.model.state import State
from mzplan.operations.project import Project
from mzplan.secrets.command_guards import AsWritten, Looking
from mzplan.secrets.policy import Guard
from mzplan.store.backends.local import STATE_KEY, LocalBackend


def guard_to_look(project: Project, state: State, chosen: Guard | None, severity: Severity) -> Guard:
    """For a command that commits nothing. `chosen`: what its user has named, which decides alone; without it,
    in a checkout, the committed state does, if it is not the checkout's own word. `severity`: of what is left
    out."""
    from mzplan.connectors.admission import flows_of_state

    if chosen is not None:
        return chosen
    if not may_be_foreign(Path(project.settings.directory)):
        return AsWritten()
    if not state.serial:
        return Looking(held=frozenset(), severity=severity)
    why = _why_it_does_not_count(project)
    return Looking(held=frozenset() if why else flows_of_state(state), why=why, severity=severity)


def guard_to_commit(chosen: Guard | None) -> Guard:
    """For a command that is about to commit, after its plan was approved: where secrets go is then its
    user's own decision, unless a policy says otherwise."""
    return chosen or AsWritten()


def _why_it_does_not_count(project: Project) -> str:
    """Why the committed state says nothing of where secrets may go: a checkout that names its state, or
    brings it, would say by it whatever it likes. "" where it does."""
    backend = project.store.backend
    file = backend.folder / STATE_KEY if isinstance(backend, LocalBackend) else None
    inside = file is not None and file.resolve().is_relative_to(Path(project.settings.directory).resolve())
    if project.settings.state_config and not inside:
        return ""
    if file is None:
        return (
            "What is committed does not count: the files themselves name the server that it is on. Take "
            "`state:` from a file outside the project, and it does: --state-config."
        )
    why = why_not_own(file)
    return f"What is committed does not count, in {file}: {why}." if why else ""
