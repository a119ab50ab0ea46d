"""The context of every command: the global options, the project, and output for the user."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mzplan.cli.arguments import ENVIRONMENT
from mzplan.cli.streams import Streams, write_text
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.resources import ENVIRONMENT_VARIABLE, STATE_CONFIG_VARIABLE

if TYPE_CHECKING:
    from mzplan.cli.progress import ProgressLines
    from mzplan.operations.project import Project, Workbench
    from mzplan.secrets.policy import Guard

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = "-"  # instead of the name of a file
COMPLETE = "_MZPLAN_COMPLETE"  # the variable that a shell's completion script sets


@dataclass
class Invocation:
    """The global options, given before or after the command."""

    directory: str = "."
    variables: dict[str, str] = field(default_factory=dict)
    variable_files: list[str] = field(default_factory=list)
    state_config: str = field(default_factory=lambda: os.environ.get(STATE_CONFIG_VARIABLE, ""))
    environment: str = field(default_factory=lambda: os.environ.get(ENVIRONMENT_VARIABLE, ""))
    json: bool = False
    verbose: int = 0
    sarif: bool = False  # print diagnostics as SARIF (validate)
    output: Streams = field(default_factory=Streams)
    may_commit: bool = False  # whether the command may commit, for the message after an interrupt

    @functools.cached_property
    def progress(self) -> ProgressLines:
        """Return the progress reporter; its clock starts with the command."""
        from mzplan.cli.progress import ProgressLines

        return ProgressLines(self.output, self.verbose)

    def end_progress(self) -> None:
        """Remove the live line; later output starts below earlier output."""
        if "progress" in self.__dict__:
            self.progress.close()

    @property
    def color(self) -> bool:
        """Return whether results may have colours: on a terminal, without --no-color and NO_COLOR."""
        return self.output.color

    @property
    def folder(self) -> str:
        """Return the absolute path of the project's folder."""
        return str(Path(self.directory).resolve())

    def project(self, *, whole: bool = False, remembered: Mapping[str, Any] | None = None) -> Project:
        """Open the project.

        `whole`: report all mistakes at once, for a command that reads all files. `remembered`: the variables
        of the plan that is applied.
        """
        from mzplan.host.checkout import pending_edit
        from mzplan.operations.project import open_project

        project = open_project(
            self.folder,
            self.variables,
            self.variable_files,
            state_config=self.state_config,
            whole=whole,
            remembered=remembered,
            environment=self.environment,
        )
        if not self.may_commit and (notice := pending_edit(self.folder)) is not None:
            self.note(f"{notice.severity}: {notice.summary}. {notice.detail} To fix it: {notice.hint}")
        if self.verbose:
            settings = project.settings
            place = project.store.backend.describe()
            which = f", environment {settings.environment}" if settings.environment else ""
            self.progress.detail(
                f"project {settings.project} in {settings.directory}{which}, state in {place}"
            )
        return project

    def work(
        self,
        *,
        whole: bool = False,
        remembered: Mapping[str, Any] | None = None,
        policy: str | None = None,
    ) -> Workbench:
        """Open the project like `project`, with the runners of this machine.

        `policy`: the policy file for runners that the command starts.
        """
        from mzplan.cli.runners import LocalRunners
        from mzplan.operations.project import Workbench

        project = self.project(whole=whole, remembered=remembered)
        runners = LocalRunners(project.settings, project.store, self.progress, policy)
        return Workbench(project, runners, self.progress)

    def guard(self, policy: str | None, send_secrets: bool = False) -> Guard | None:
        """Return the user's policy for secrets that live validation sends from here; None without one.

        Raises MzplanError MZ105 for an unusable policy, and for a policy inside the project.
        """
        if policy and send_secrets:
            raise click.UsageError(
                "--send-secrets can't be combined with a policy (--policy, MZPLAN_POLICY). "
                "Extend the policy, or leave it out: --policy ''."
            )
        if send_secrets:
            from mzplan.secrets.guards import AllowingGuard

            return AllowingGuard()
        if not policy:
            return None
        from mzplan.secrets.policy import read_policy

        if Path(os.path.realpath(policy)).is_relative_to(self.folder):
            raise error("MZ105.file-project", policy=policy, folder=self.folder)
        return read_policy(policy)

    def out(self, text: str) -> None:
        """Print results on stdout."""
        self.output.out(text)

    def document(self, content: Any) -> None:
        """Print results as one JSON document on stdout."""
        self.output.document(content)

    def result(self, document: Any, text: str) -> None:
        """Print results: the document with --json, else the text."""
        if self.json:
            self.document(document)
        else:
            self.out(text)

    def write_markdown(self, file: str, text: str) -> None:
        """Write a Markdown comment to a file, or to stdout (`-`)."""
        if file != STDOUT:
            write_text(file, text)
        elif self.json:
            raise click.UsageError(f"--markdown {STDOUT} and --json can't be combined: both write to stdout.")
        else:
            self.out(text)

    def note(self, text: str) -> None:
        """Print progress on stderr."""
        self.progress.stage(text)

    def ask(self, question: str) -> str:
        """Ask the user and return the answer; "" if stdin ends."""
        self.end_progress()
        self.output.live(question)
        return sys.stdin.readline().strip()

    def show(self, diagnostics: Iterable[Diagnostic], **more: Any) -> None:
        """Show errors and warnings on stderr; with --json, as the document unless one is printed.

        `more`: further fields of the document.
        """
        listed = list(diagnostics)
        from mzplan.render.diagnostics import diagnostics_to_json, diagnostics_to_sarif, render_diagnostics

        if self.sarif and not self.output.documents:
            self.document(diagnostics_to_sarif(listed, self.folder))
            return
        if self.json and not self.output.documents:
            self.document({"diagnostics": diagnostics_to_json(listed), **more})
            return
        self.output.err(render_diagnostics(listed, self.output.error_color, self.folder))


def global_options(command: F) -> F:
    """Add the global options to a command. Options after the command override options before it."""

    @click.option(
        "-C", "directory", metavar="DIR", help="The project's folder (default: the current directory)."
    )
    @click.option("--var", "var", metavar="K=V", multiple=True, help="Set a variable; repeatable.")
    @click.option(
        "--var-file",
        "var_file",
        metavar="FILE",
        multiple=True,
        help="Read variables from this YAML file; repeatable.",
    )
    @click.option(
        "--env",
        "environment",
        metavar="NAME",
        type=ENVIRONMENT,
        help="The environment in mzplan.yaml to use ($MZPLAN_ENV).",
    )
    @click.option(
        "--state-config",
        metavar="FILE",
        help="Read the `state:` settings from this file, outside the project, instead of mzplan.yaml "
        "($MZPLAN_STATE_CONFIG).",
    )
    @click.option("--json", "json_", is_flag=True, help="Print one JSON document on stdout.")
    @click.option("--no-color", is_flag=True, help="Disable colored output.")
    @click.option("-v", "verbose", count=True, help="Print more detail.")
    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        invocation = click.get_current_context().ensure_object(Invocation)
        _apply_global_options(invocation, arguments)
        return command(**arguments)

    return cast(F, wrapped)


def _apply_global_options(invocation: Invocation, arguments: dict[str, Any]) -> None:
    directory = arguments.pop("directory")
    if directory is not None:
        invocation.directory = directory
    for item in arguments.pop("var"):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not K=V", param_hint="--var")
        invocation.variables[name] = value
    environment = arguments.pop("environment")
    if environment == "":
        # A script's variable may be unset; don't silently use the default environment.
        raise click.BadParameter("the name is empty", param_hint="--env")
    if environment is not None:
        invocation.environment = environment
    state_config = arguments.pop("state_config")
    if state_config is not None:
        invocation.state_config = state_config
    invocation.variable_files += arguments.pop("var_file")
    invocation.json |= arguments.pop("json_")
    invocation.output.no_color |= arguments.pop("no_color")
    invocation.verbose += arguments.pop("verbose")


def command(
    *arguments: Any, changing: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a click command with the global options; the function gets the Invocation first.

    `changing`: whether the command commits.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def called(**given: Any) -> Any:
            invocation = click.get_current_context().ensure_object(Invocation)
            invocation.may_commit = changing
            return function(invocation, **given)

        decorated: click.Command = click.command(*arguments, **options)(global_options(called))
        return decorated

    return decorate
