"""The commands init and validate."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import EXAMPLE, policy_option, send_secrets_option
from mzplan.cli.context import Invocation, command
from mzplan.cli.editors import modelined, write_editor_schemas
from mzplan.cli.known_names import EXAMPLES, examples
from mzplan.cli.streams import unwritable
from mzplan.config import environment_names
from mzplan.host.checkout import refuse_unused
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.address import natural_item
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.words import count
from mzplan.operations.connections import no_connection_reached
from mzplan.operations.local_checks import check_files, validate_each
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.status_json import reach_to_json
from mzplan.store.backends.local import IGNORED

if TYPE_CHECKING:
    from mzplan.model.diagnostics import Diagnostic
    from mzplan.operations.connections import Reachability
    from mzplan.operations.project import Project

_PROJECT = """\
version: 1
project: {name}
warehouse: ./warehouse          # where collections and checkpoints live: a path or a URI
"""
_ABOUT_IGNORED = "# Files of this machine and of runners. The rest of the state's folder is committed."
# Files that a run of an example leaves in its folder.
_LEFTOVERS = ("state", "warehouse", "lake", "__pycache__")


@command("init")
@click.option("--from", "example", metavar="EXAMPLE", type=EXAMPLE, help="Start from a copy of an example.")
def command_init(invocation: Invocation, example: str | None) -> None:
    """Create a project, empty or from an example."""
    folder = Path(invocation.directory)
    refuse_unused(str(folder))  # before anything is written
    if example is not None:
        written = copy_example(example, folder)
        text = f"Copied example {example}: {count(len(written), 'file')} in {folder.resolve()}."
    else:
        written = [_begin(folder)]
        text = f"Wrote {written[0]}. Declare connections, sources, views and sinks beside it."
    written += [*write_editor_schemas(folder), *_write_gitignore(folder)]
    invocation.result({"written": [str(path) for path in written]}, f"{text} Then run `mzplan plan`.")


def _begin(folder: Path) -> Path:
    file = folder / "mzplan.yaml"
    if os.path.lexists(file):
        raise error("MZ070.already-exists", file=file)
    name = re.sub(r"[^a-z0-9_-]+", "_", folder.resolve().name.lower()).strip("_-") or "project"
    if not name[0].isalpha():
        name = f"p_{name}"
    _create(folder, "mzplan.yaml", modelined(_PROJECT.format(name=name[:60]), file, folder).encode())
    return file


def _create(folder: Path, name: str, data: bytes) -> None:
    """Create a file in the project's folder. Raises MzplanError MZ035."""
    try:
        GuardedFolder(folder).create(name, data)
    except OSError as problem:
        raise unwritable(folder / name, problem) from None


def _write_gitignore(folder: Path) -> list[Path]:
    """Add the paths that must not be committed to .gitignore. Return the written files.

    Keeps the existing content, and adds no line twice. Doesn't change a .gitignore that is a link.
    """
    files = GuardedFolder(folder)
    try:
        content = files.read(".gitignore") or b""
    except OSError:
        return []
    paths = (".mzplan/", "/warehouse/", *(f"/state/**/{line}" for line in IGNORED.splitlines()))
    missing = [line for line in paths if line.encode() not in content.splitlines()]
    if not missing:
        return []
    before = content if not content or content.endswith(b"\n") else content + b"\n"
    with files.replacing(".gitignore") as file:
        file.write(before + "\n".join([_ABOUT_IGNORED, *missing, ""]).encode())
    return [folder / ".gitignore"]


def example_folder(name: str) -> Path:
    """Return the folder of an example.

    Raises MzplanError MZ070 (usage), with all names, for an unknown example.
    """
    known = examples()
    if name in known:
        return EXAMPLES / name
    listed = "\n".join(f"{each}: {about}" if about else each for each, about in known.items())
    raise error("MZ070.no-example" if known else "MZ070.no-example-installation-no", name=name, listed=listed)


def copy_example(name: str, to: Path) -> list[Path]:
    """Copy an example's files, without the files left by running it. Return the written paths.

    YAML files get the line by which an editor finds their schema. The examples of a checkout share its folder
    `state`; a copy has its own. Overwrites nothing: raises MzplanError MZ070 before the first file if one of
    them exists.
    """
    folder = example_folder(name)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and _belongs(file, folder)]
    written = [to / file.relative_to(folder) for file in files]
    existing = [path for path in written if os.path.lexists(path)]
    if existing:
        raise error("MZ070.already-exists-init-not", first=existing[0], name=name)
    for file, path in zip(files, written, strict=True):
        data = file.read_bytes()
        if file.suffix == ".yaml":
            text = data.decode()
            if file == folder / "mzplan.yaml":
                text = text.replace(f"../../state/{name}", "state")
            data = modelined(text, path, to).encode()
        _create(to, file.relative_to(folder).as_posix(), data)
    return written


def _belongs(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return not any(part.startswith(".") or part in _LEFTOVERS for part in parts)


@command("validate")
@click.option(
    "--live",
    is_flag=True,
    help="Also contact the servers: check each connection through the queries that use it.",
)
@click.option("--sarif", is_flag=True, help="Print one SARIF 2.1.0 document on stdout, for code scanning.")
@policy_option
@send_secrets_option
def command_validate(
    invocation: Invocation, live: bool, sarif: bool, policy: str | None, send_secrets: bool
) -> int:
    """Check all files; with --live, also contact the servers.

    Without --env, mzplan checks the files for every environment. With --live, it contacts only the default
    environment's servers.
    """
    if send_secrets and not live:
        raise click.UsageError("--send-secrets requires --live.")
    if sarif and invocation.json:
        raise click.UsageError("--sarif and --json can't be combined: both write to stdout.")
    invocation.sarif = sarif
    if not live and not invocation.environment and (names := environment_names(invocation.folder)):
        return _validate_each(invocation, names)
    work = invocation.work(whole=True)
    if live:
        from mzplan.operations.planning import validate_live  # imports the planner

        configuration, reached, diagnostics = validate_live(work, invocation.guard(policy, send_secrets))
    else:
        configuration, reached, diagnostics = check_files(work.project, work.reporter), (), ()
    # A connection that wasn't reached isn't valid, because nothing checked it.
    if nothing := all(connection.reason for connection in reached) and any(
        connection.unreached for connection in reached
    ):
        diagnostics = (*diagnostics, no_connection_reached(reached))
    code = ExitCode.REFUSED if nothing else ExitCode.OK
    if sarif:
        invocation.show(diagnostics)
        return code
    if invocation.json:
        document: dict[str, object] = {"diagnostics": diagnostics_to_json(diagnostics)}
        if live:
            document["connections"] = [reach_to_json(r) for r in reached]
        invocation.document(document)
        return code
    _show_reached(invocation, reached, diagnostics)
    if not nothing:
        whole = (
            "Valid"
            if not any(connection.reason or connection.unreached for connection in reached)
            else "Valid, but not every connection was reached"
        )
        invocation.out(f"{whole}: {count(len(configuration.resources), 'resource')}.")
    return code


def _validate_each(invocation: Invocation, names: tuple[str, ...]) -> int:
    def opened(name: str) -> Project:
        invocation.environment = name
        return invocation.project(whole=True)

    configurations = validate_each(opened, names, invocation.progress)
    if invocation.sarif:
        invocation.show(())
        return ExitCode.OK
    if invocation.json:
        invocation.document({"diagnostics": [], "environments": [*configurations]})
        return ExitCode.OK
    shown = (f"{name} ({count(len(configurations[name].resources), 'resource')})" for name in names)
    invocation.out(f"Valid in each environment: {', '.join(shown)}.")
    return ExitCode.OK


def _show_reached(
    invocation: Invocation, reached: tuple[Reachability, ...], diagnostics: tuple[Diagnostic, ...]
) -> None:
    for connection in reached:
        if connection.queries:
            number = count(len(connection.queries), "query", "queries")
            invocation.out(f"Reached: {connection.address}, for {number}")
        elif connection.reason:
            invocation.out(f"Not reached: {connection.address}, {connection.reason}")
        else:
            invocation.out(f"Reached: {connection.address}, though nothing uses it")
        for query, why in sorted(connection.unreached.items(), key=natural_item):
            invocation.out(f"Not reached: {connection.address} for {query}: {why}")
    if diagnostics:
        invocation.show(diagnostics)
