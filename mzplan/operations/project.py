"""What every verb works with: the project's folder, the way to its runners, and where progress goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.resources import Configuration, Instance, ProjectSettings
from mzplan.model.state import State
from mzplan.model.suggestions import did_you_mean
from mzplan.model.words import count
from mzplan.store.store import Store, open_store

if TYPE_CHECKING:
    from mzplan.operations.follower import Outcome


_NO_VALUES: Mapping[str, Any] = {}
_AS_WRITTEN: Mapping[str, bytes] = {}


class Runners(Protocol):
    """How a command reaches the runners of this machine, without importing the running side."""

    def require(self, instance: Instance) -> None:
        """Raise MzplanError MZ096 where `ensure` would have to start a runner, and what one needs is not
        installed here. Starts nothing."""

    def ensure(self, instance: Instance, packages: Mapping[str, tuple[str, ...]] = ...) -> None:
        """Start the embedded runner of an instance unless one leads, its Spark with these jars (see
        schema.description.packages_of). Nothing for other types."""

    def wake(self, instance: Instance, environment: Mapping[str, str]) -> None:
        """Tell a local runner to look now, and hand it values of `${env:…}` references."""

    def settle(self, instance: Instance) -> None:
        """A dry instance takes in the commit. Nothing for other types."""

    def ended(self, instance: Instance) -> MzplanError | None:
        """Why the embedded runner has ended, when it has; None while one leads, and for other types."""


class Reporter(Protocol):
    """Where progress goes."""

    def working(self, text: str | Callable[[], str]) -> AbstractContextManager[None]:
        """What is being done meanwhile (a function: as far as it has come): said when it takes longer than a
        second."""

    def stage(self, text: str) -> None:
        """What is being done now, always said."""

    def detail(self, text: str) -> None:
        """What only somebody who looks for a cause wants to know."""

    def committing(self, serial: int) -> None:
        """A serial is about to be written; until `committed` it is open whether it was."""

    def committed(self, serial: int) -> None:
        """It is written."""

    def outcome(self, outcome: Outcome) -> None:
        """A query has converged, was rejected, or failed."""

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        """What is still awaited, in which condition, after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project's folder, with what the command line said about variables."""

    settings: ProjectSettings
    variables: Mapping[str, str] = field(default_factory=dict)
    variable_files: Sequence[str] = ()

    @property
    def store(self) -> Store:
        return open_store(self.settings)

    def configuration(
        self, remembered: Mapping[str, Any] = _NO_VALUES, edited: Mapping[str, bytes] = _AS_WRITTEN
    ) -> Configuration:
        """What the files say. `remembered` are the variables of an earlier plan; `edited` are contents, by
        real path, that stand for what is on the disk."""
        from mzplan.config import load_configuration

        directory = self.settings.directory
        if not edited and (Path(directory) / ".mzplan" / "alter.json").exists():
            from mzplan.operations.alter_journal import settle_left

            settle_left(directory, self.store)
        return load_configuration(
            directory, self.variables, self.variable_files, remembered=remembered, edited=edited
        )


def open_project(
    directory: str,
    variables: Mapping[str, str] | None = None,
    variable_files: Sequence[str] = (),
    *,
    whole: bool = False,
) -> Project:
    """Read mzplan.yaml of a folder (only that). Raises MzplanError: `whole`, with what is wrong in the other
    files, too, for whoever reads them next."""
    from mzplan.config import load_configuration, load_project

    try:
        settings = load_project(directory)
    except MzplanError:
        if whole:
            load_configuration(directory, variables, variable_files)
        raise
    return Project(settings=settings, variables=variables or {}, variable_files=variable_files)


def read_state(store: Store, reporter: Reporter) -> State:
    """The committed state."""
    with reporter.working("reading the state"):
        state = store.read_state()
    reporter.detail(
        f"read the state: serial {state.serial}, lineage {state.lineage or '(none)'}, "
        f"{count(len(state.resources), 'resource')}"
    )
    return state


def unknown_address(address: Address, state: State) -> MzplanError:
    """MZ070: no such resource."""
    return error(
        "MZ070",
        f"There is no {address} in the state",
        f"The state has {count(len(state.resources), 'resource')}.",
        did_you_mean(str(address), sorted(map(str, state.resources)))
        or "`mzplan status` lists the queries, `mzplan show` all.",
        exit_code=ExitCode.USAGE,
    )
