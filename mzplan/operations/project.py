"""What every command works with: the project's folder, its runners, and a reporter of progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mzplan.config import load_configuration, load_project, read_files
from mzplan.host.local_folder import journal_path
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, usage_error
from mzplan.model.resources import Configuration, Instance, ProjectSettings
from mzplan.model.state import ResourceState, State
from mzplan.model.tasks import TaskOutcome
from mzplan.model.words import count, did_you_mean
from mzplan.store.backends.backend import CommittedError
from mzplan.store.store import Store, misplaced_state, open_store

if TYPE_CHECKING:
    from mzplan.config import FilesRead
    from mzplan.secrets.policy import SecretValues


LOCK_WAIT = 2.0  # seconds that a command waits for another one's lock
_AS_WRITTEN: Mapping[str, bytes] = {}


OutcomeStatus = Literal["applied", "pending", "rejected", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one query. `seconds` since the commit; `reason` for all but `applied`; `warning`: of
    what it warns, and goes on all the same; `tasks_done`: see RunFacts."""

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
    """How a command reaches the runners of this machine, without importing the running side."""

    def require(self, instance: Instance) -> None:
        """Raise MzplanError MZ096 where `ensure` would have to start a runner, and its packages are not
        installed here. Starts nothing."""

    def ensure(
        self,
        instance: Instance,
        packages: Mapping[str, tuple[str, ...]] = ...,
        wait: float = ...,
        trial: int | None = ...,
    ) -> bool:
        """Start the embedded runner of an instance unless one leads, its Spark with these jars (see
        schema.description.packages_of), and wait at most so many seconds until it leads, and hears. Whether
        it was started. Does nothing for other types. `trial`: the serial that this process is to commit; the
        runner ends where this process ends without, however it ends."""

    def start_again(self, instance: Instance, wait: float) -> bool:
        """Start once more, but only once, a runner that `ensure` has started and that has ended without a
        word; as of `ensure`. Whether it was started."""

    def stop(self, instance: Instance) -> None:
        """Stop the embedded runner of an instance, which `ensure` has started."""

    def wake(self, instance: Instance, secret_values: SecretValues) -> int | None:
        """Wake a local runner, and send it these. Returns what its `secret_values_in_use` will be once values
        that it is to use at once are in use; None where it does not hear."""

    def settle(self, instance: Instance, wait: float) -> None:
        """Have a dry instance take in the commit, unless another process leads it for so many seconds. Does
        nothing for other types."""

    def ended(self, instance: Instance) -> MzplanError | None:
        """Why the embedded runner has ended, when it has; None while one leads, and for other types."""


class Reporter(Protocol):
    """Receives the progress of a command."""

    def working(self, text: str | Callable[[], str]) -> AbstractContextManager[None]:
        """What is being done meanwhile (a function: how far it has come); shown when it takes longer than a
        second."""

    def stage(self, text: str) -> None:
        """What is being done now, always shown."""

    def detail(self, text: str) -> None:
        """A detail for troubleshooting."""

    def committing(self, serial: int) -> None:
        """A serial is about to be written; until `committed` it is unknown whether it was."""

    def committed(self, serial: int) -> None:
        """The serial is written."""

    def outcome(self, outcome: Outcome) -> None:
        """A query has converged, was rejected, or failed."""

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        """The queries still awaited, each with its condition, after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project's folder, with the variables of the command line; `remembered`: those of the saved plan that
    is applied."""

    settings: ProjectSettings
    variables: Mapping[str, str] = field(default_factory=dict)
    variable_files: Sequence[str] = ()
    remembered: Mapping[str, Any] | None = None

    @property
    def store(self) -> Store:
        return open_store(self.settings)

    def configuration(self, edited: Mapping[str, bytes] = _AS_WRITTEN) -> Configuration:
        """The configuration of the files. `edited`: by real path, contents that replace those on the disk.
        Raises MzplanError with every mistake."""
        files = self.files(edited)
        if files.configuration is None:
            raise MzplanError(files.mistakes)
        return files.configuration

    def files(self, edited: Mapping[str, bytes] = _AS_WRITTEN) -> FilesRead:
        """What the files give, as far as they can be read; `edited` as of `configuration`."""
        directory = self.settings.directory
        if not edited and os.path.lexists(journal_path(directory)):
            from mzplan.operations.alter_journal import waiting_edit

            edited = waiting_edit(directory, self.store)
        return read_files(
            directory,
            self.variables,
            self.variable_files,
            remembered=self.remembered,
            edited=edited,
            environment=self.settings.environment,
        )


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a command works with: its project, the runners of this machine, and a reporter of progress."""

    project: Project
    runners: Runners
    reporter: Reporter

    @property
    def store(self) -> Store:
        return self.project.store

    @property
    def directory(self) -> str:
        """The project's folder."""
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
    """Read mzplan.yaml of a folder, files of variables, and the file that `state:` is taken from instead.
    Raises MzplanError; with `whole`, also for mistakes in the other files, as the caller reads them next.
    `remembered`: the variables of a saved plan; no others are taken. `environment`: as of load_project."""
    try:
        settings = load_project(directory, variables, variable_files, remembered, state_config, environment)
    except MzplanError:
        if whole:
            load_configuration(directory, variables, variable_files, remembered, environment=environment)
        raise
    if (problem := misplaced_state(settings)) is not None:
        from mzplan.config.locations import locate_setting

        if settings.state_config:  # it is written there
            raise problem
        (diagnostic,) = problem.diagnostics
        own = ("environments", settings.environment, "state", "path")
        located = locate_setting(directory, diagnostic, own)
        raise MzplanError(located if located.range else locate_setting(directory, diagnostic, own[2:]))
    return Project(
        settings=settings,
        variables=variables or {},
        variable_files=variable_files,
        remembered=remembered,
    )


def read_state(store: Store, reporter: Reporter) -> State:
    """The committed state. Raises MzplanError where it can't be read."""
    with reporter.working("reading the state"):
        state = store.read_state()
    reporter.detail(
        f"read the state: serial {state.serial}, lineage {state.lineage or '(none)'}, "
        f"{count(len(state.resources), 'resource')}"
    )
    return state


@contextlib.contextmanager
def locked(store: Store, reporter: Reporter, command: str, wait: float | None = None) -> Iterator[None]:
    """Hold the lock of the state; another command's is waited for (by default as long as LOCK_WAIT)."""
    with contextlib.ExitStack() as held:
        with reporter.working("waiting for the lock of the state"):
            held.enter_context(store.lock(command, LOCK_WAIT if wait is None else wait))
        yield


@contextlib.contextmanager
def committing(reporter: Reporter, serial: int) -> Iterator[None]:
    """Around the commit of a serial, and nothing else: reports whether it was, also where something has
    failed after it."""
    reporter.committing(serial)
    try:
        yield
    except CommittedError:
        reporter.committed(serial)
        raise
    reporter.committed(serial)


def why_nothing_runs(state: State, resource: ResourceState) -> str:
    """Of a query of a dry instance, which stores nothing; "" for any other."""
    instance = state.instances.get(resource.instance)
    if instance is None or instance.type != "dry":
        return ""
    return f"Its instance {instance.name} is dry: what is committed there runs nothing and stores nothing."


TO_RUN = "to run it, give that instance another type in mzplan.yaml, such as {type: embedded}, and apply."


def unknown_address(address: Address, state: State) -> MzplanError:
    """MZ070: no such resource."""
    return usage_error(
        f"There is no {address} in the state",
        f"The state has {count(len(state.resources), 'resource')}.",
        did_you_mean(str(address), sorted(map(str, state.resources)))
        or "`mzplan status` lists the queries, `mzplan show` all.",
    )


def committed_resource(state: State, address: Address) -> ResourceState:
    """The record of an address. Raises MZ070 (usage) where there is none."""
    if address not in state.resources:
        raise unknown_address(address, state)
    return state.resources[address]
