"""What every command knows: the global options, the project, and how to speak to the person."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from mzplan.operations import Project

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Invocation:
    """The global options, wherever on the command line they were given."""

    directory: str = "."
    variables: dict[str, str] = field(default_factory=dict)
    variable_files: list[str] = field(default_factory=list)
    json: bool = False
    no_color: bool = False
    verbose: int = 0

    @property
    def color(self) -> bool:
        """Whether to write colours: a terminal, no --no-color, no NO_COLOR."""
        return sys.stdout.isatty() and not self.no_color and not os.environ.get("NO_COLOR")

    def project(self) -> Project:
        from mzplan.operations import open_project

        return open_project(str(Path(self.directory).resolve()), self.variables, self.variable_files)

    def out(self, text: str) -> None:
        """Results, on stdout."""
        click.echo(text.rstrip("\n"), color=self.color or None)

    def document(self, content: Any) -> None:
        """Results as one JSON document on stdout."""
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Progress, on stderr."""
        click.echo(text, err=True)

    def show(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Errors and warnings: JSON on stdout with --json, else text on stderr."""
        found = list(diagnostics)
        if self.json:
            self.document({"diagnostics": [d.to_json() for d in found]})
            return
        from mzplan.render.diagnostics import render_diagnostics

        color = sys.stderr.isatty() and not self.no_color and not os.environ.get("NO_COLOR")
        click.echo(render_diagnostics(found, color, str(Path(self.directory).resolve())), err=True)


def global_options(command: F) -> F:
    """Adds the global options to a command; what is given after the command wins over what is before it."""

    @click.option("-C", "directory", metavar="DIR", help="The project's folder (default: here).")
    @click.option("--var", "var", metavar="K=V", multiple=True, help="Set a variable; repeatable.")
    @click.option("--var-file", "var_file", metavar="FILE", multiple=True, help="Variables from a YAML file.")
    @click.option("--json", "json_", is_flag=True, help="One JSON document on stdout.")
    @click.option("--no-color", is_flag=True, help="No colours.")
    @click.option("-v", "verbose", count=True, help="Say more.")
    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        invocation = click.get_current_context().ensure_object(Invocation)
        _take(invocation, arguments)
        return command(**arguments)

    return cast(F, wrapped)


def _take(invocation: Invocation, arguments: dict[str, Any]) -> None:
    directory = arguments.pop("directory")
    if directory is not None:
        invocation.directory = directory
    for item in arguments.pop("var"):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not K=V", param_hint="--var")
        invocation.variables[name] = value
    invocation.variable_files += arguments.pop("var_file")
    invocation.json |= arguments.pop("json_")
    invocation.no_color |= arguments.pop("no_color")
    invocation.verbose += arguments.pop("verbose")


class AddressType(click.ParamType[Address]):
    """`source.orders` on the command line."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        try:
            return Address.parse(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


class DurationType(click.ParamType[float]):
    """`90s`, `5m`, `1h`, `500ms`: seconds as a float."""

    name = "duration"
    UNITS = (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        for unit, seconds in self.UNITS:
            number = str(value).removesuffix(unit)
            if str(value).endswith(unit) and number.isdecimal() and number.isascii():
                return int(number) * seconds
        raise click.BadParameter(f"{value!r} is not a duration: write 90s, 5m or 1h", ctx, param)


ADDRESS = AddressType()
DURATION = DurationType()


def command(*arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A click command with the global options, called with the Invocation first."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def called(**given: Any) -> Any:
            return function(click.get_current_context().ensure_object(Invocation), **given)

        made: click.Command = click.command(*arguments, **options)(global_options(called))
        return made

    return decorate
