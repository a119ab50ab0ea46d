"""What every command uses: the project's folder, its runners, and a progress reporter."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mzplan.config import OtherEnvironment, load_configuration, load_project, read_files
from mzplan.host.checkout import journal_path
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import Configuration, Instance, ProjectSettings, is_dry
from mzplan.model.state import ResourceState, State
from mzplan.model.tasks import TaskOutcome
from mzplan.model.words import count
from mzplan.store.backends.backend import CommittedError
from mzplan.store.store import Store, misplaced_state, open_store

if TYPE_CHECKING:
    from mzplan.config import FilesRead, ReadEnvironment
    from mzplan.secrets.policy import SecretValues


LOCK_WAIT = 2.0  # seconds that a command waits for another command's lock


OutcomeStatus = Literal["applied", "pending", "rejected", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one query.

    `seconds`: since the commit.
    `reason`: empty if `status` is `applied`.
    `warning`: a problem that doesn't stop the query.
    `tasks_done`: see RunFacts.
    """

    address: Address
    status: OutcomeStatus
    seconds: float
    reason: str = ""
    code: str = ""
    warning: str = ""
    query_id: str | None = None
    run_id: str | None = None
    tasks_done: tuple[TaskOutcome, ...] = ()


class Runners(Protocol):
    """The runners of this machine. Operations don't import the code that runs queries."""

    def require(self, instance: Instance) -> None:
        """Raise MzplanError MZ096 if `ensure` couldn't start a runner for lack of packages.

        Starts nothing.
        """

    def ensure(
        self,
        instance: Instance,
        packages: Mapping[str, tuple[str, ...]] = ...,
        wait: float = ...,
        trial: int | None = ...,
    ) -> bool:
        """Start the embedded runner of an instance unless one leads; return whether it was started.

        Does nothing for other types. `packages`: jars for its Spark (see schema.description.packages_of).
        `wait`: how many seconds to wait until it leads and listens. `trial`: the serial that this process is
        going to commit; the runner ends if this process ends without committing it.
        """

    def start_again(self, instance: Instance, wait: float) -> bool:
        """Start a runner again that `ensure` started and that ended without an error; at most once.

        Waits like `ensure`. Returns whether it was started.
        """

    def stop(self, instance: Instance) -> None:
        """Stop the embedded runner that `ensure` started."""

    def wake(self, instance: Instance, secret_values: SecretValues) -> int | None:
        """Wake a local runner and send it secret values.

        Returns the `secret_values_in_use` from which the runner uses values meant for immediate use; None if
        the runner doesn't listen.
        """

    def read_commit(self, instance: Instance, wait: float) -> None:
        """Let a dry instance read the commit, unless another process leads it for `wait` seconds.

        Does nothing for other types.
        """

    def ended(self, instance: Instance) -> MzplanError | None:
        """Return why the embedded runner has ended; None while one leads, and for other types."""


class Reporter(Protocol):
    """Receives the progress of a command."""

    def working(self, text: str | Callable[[], str]) -> AbstractContextManager[None]:
        """Show the current work, if it takes more than a second. `text` may be a function."""

    def stage(self, text: str) -> None:
        """Show the current stage, always."""

    def detail(self, text: str) -> None:
        """Report a detail for troubleshooting."""

    def committing(self, serial: int) -> None:
        """Report that a serial is about to be written; until `committed`, its outcome is unknown."""

    def committed(self, serial: int) -> None:
        """Report that the serial is written."""

    def outcome(self, outcome: Outcome) -> None:
        """Report that a query has converged, was rejected, or failed."""

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        """Report the queries still awaited, each with its condition, after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project's folder, with the variables of the command line.

    `saved_variables`: the variables of the saved plan that is applied.
    """

    settings: ProjectSettings
    variables: Mapping[str, str] = field(default_factory=dict)
    variable_files: Sequence[str] = ()
    saved_variables: Mapping[str, Any] | None = None

    @property
    def store(self) -> Store:
        return open_store(self.settings)

    def configuration(
        self,
        records: Mapping[Address, ResourceState] = MappingProxyType({}),
        read_environment: ReadEnvironment | None = None,
    ) -> Configuration:
        """Return the configuration of the files. Raises MzplanError with every mistake. See `files`."""
        files = self.files(records=records, read_environment=read_environment)
        if files.configuration is None:
            raise MzplanError(files.mistakes)
        return files.configuration

    def files(
        self,
        edited: Mapping[str, bytes] = MappingProxyType({}),
        records: Mapping[Address, ResourceState] = MappingProxyType({}),
        read_environment: ReadEnvironment | None = None,
    ) -> FilesRead:
        """Return the content of the files, as far as they can be read.

        - `edited`: contents that replace files on the disk, by real path.
        - `records`: see `read_files`.
        - `read_environment`: see `read_files`; by default, it reads the environment's state.
        """
        directory = self.settings.directory
        if not edited and os.path.lexists(journal_path(directory)):
            from mzplan.operations.alter_journal import waiting_edit

            edited = waiting_edit(directory, self.store)
        return read_files(
            directory,
            self.variables,
            self.variable_files,
            saved_values=self.saved_variables,
            edited=edited,
            environment=self.settings.environment,
            records=records,
            read_environment=read_environment or self._committed,
        )

    def _committed(self, environment: str) -> OtherEnvironment:
        return OtherEnvironment(state=self.in_environment(environment).store.read_state())

    def in_environment(self, name: str) -> Project:
        """Return the same project in another of its environments. Raises MzplanError."""
        config = self.settings.state_config
        directory, files = self.settings.directory, self.variable_files
        return open_project(directory, self.variables, files, state_config=config, environment=name)


@dataclass(frozen=True, slots=True)
class Workbench:
    project: Project
    runners: Runners
    reporter: Reporter

    @property
    def store(self) -> Store:
        return self.project.store

    @property
    def directory(self) -> str:
        return self.project.settings.directory


def open_project(
    directory: str,
    variables: Mapping[str, str] | None = None,
    variable_files: Sequence[str] = (),
    *,
    state_config: str = "",
    whole: bool = False,
    remembered: Mapping[str, Any] | None = None,
    environment: str = "",
) -> Project:
    """Open a project: read mzplan.yaml, files of variables, and the file that replaces `state:`.

    Raises MzplanError. `whole`: also raise mistakes in the other files, which the caller reads next.
    `remembered`: the variables of a saved plan, used instead of others. `environment`: as for load_project.
    """
    try:
        settings = load_project(directory, variables, variable_files, remembered, state_config, environment)
    except MzplanError:
        if whole:
            load_configuration(directory, variables, variable_files, remembered, environment=environment)
        raise
    if (problem := misplaced_state(settings)) is not None:
        from mzplan.config.locations import locate_setting

        if settings.state_config:  # the path is written in that file
            raise problem
        (diagnostic,) = problem.diagnostics
        own = ("environments", settings.environment, "state", "path")
        located = locate_setting(directory, diagnostic, own)
        raise MzplanError(located if located.range else locate_setting(directory, diagnostic, own[2:]))
    return Project(
        settings=settings,
        variables=variables or {},
        variable_files=variable_files,
        saved_variables=remembered,
    )


def read_state(store: Store, reporter: Reporter) -> State:
    """Return the committed state. Raises MzplanError if it can't be read."""
    with reporter.working("reading the state"):
        state = store.read_state()
    reporter.detail(
        f"read the state: serial {state.serial}, lineage {state.lineage or '(none)'}, "
        f"{count(len(state.resources), 'resource')}"
    )
    return state


@contextlib.contextmanager
def locked(store: Store, reporter: Reporter, command: str, wait: float = LOCK_WAIT) -> Iterator[None]:
    """Hold the lock of the state, after waiting for it at most `wait` seconds."""
    with contextlib.ExitStack() as stack:
        with reporter.working("waiting for the lock of the state"):
            stack.enter_context(store.lock(command, wait))
        yield


@contextlib.contextmanager
def committing(reporter: Reporter, serial: int) -> Iterator[None]:
    """Report that a serial is committed, even if the wrapped commit raises CommittedError."""
    reporter.committing(serial)
    try:
        yield
    except CommittedError:
        reporter.committed(serial)
        raise
    reporter.committed(serial)


def why_nothing_runs(state: State, resource: ResourceState) -> str:
    """Return why a query doesn't run, if its instance is dry; else ""."""
    if not is_dry(state.instances, resource.instance):
        return ""
    return f"Its instance {resource.instance} is dry: it runs and stores nothing."


TO_RUN = "to run it, give that instance another type in mzplan.yaml, such as {type: embedded}, and apply."


def unreadable(summary: str, problem: OSError, address: Address | None = None) -> MzplanError:
    """Return MZ090 for a failure of the warehouse's storage."""
    return error("MZ090.check-warehouse-mzplan", address=address, what=summary, problem=problem)
