"""schema and completion: completions for editors and shells.

`schema` prints a schema, or writes the schemas of whole files for editors. The first line of a file names its
schema. Git ignores the folder .mzplan/schemas, which `mzplan schema --editor` creates on each machine. A team
that commits its schemas writes them to another folder, with --out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from mzplan.cli.arguments import SCHEMA
from mzplan.cli.context import COMPLETE, Invocation, command
from mzplan.cli.streams import unwritable
from mzplan.config.project_files import TESTS_FOLDER
from mzplan.host.checkout import FOLDER, refuse_unused
from mzplan.host.files import make_private_folder
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.diagnostics import ExitCode
from mzplan.model.words import joined
from mzplan.schema.editor import PIPELINE, PROJECT, TESTS, editor_schemas, modeline, written_schema
from mzplan.schema.loading import schema_names

SCHEMAS = Path(FOLDER) / "schemas"
_PROJECT_FILE = "mzplan.yaml"
_INSTALL = {
    "bash": 'add this line to ~/.bashrc:  eval "$(mzplan completion bash)"',
    "zsh": 'add this line to ~/.zshrc, below compinit:  eval "$(mzplan completion zsh)"',
    "fish": "mzplan completion fish > ~/.config/fish/completions/mzplan.fish",
}


def write_editor_schemas(directory: Path, out: Path | None = None) -> list[Path]:
    """Write the schemas into the project's own folder, or into `out`. Return the written paths.

    Raises MzplanError MZ035 if that fails, MZ076 if .mzplan came with the checkout, MZ080 for a broken
    plug-in.
    """
    if out is None:
        refuse_unused(str(directory))
    folder = out if out is not None else directory / SCHEMAS
    files = {name: json.dumps(schema, indent=1) + "\n" for name, schema in editor_schemas().items()}
    written = [folder / name for name in files]
    guarded = GuardedFolder(out) if out is not None else GuardedFolder(directory, str(SCHEMAS))
    try:
        if out is None:
            make_private_folder(directory / FOLDER)
            files[".gitignore"] = "*\n"
        for name, text in files.items():
            with guarded.replacing(name, durable=False) as stream:
                stream.write(text.encode())
    except OSError as problem:
        raise unwritable(folder, problem) from None
    return written


def modelined(text: str, file: Path, directory: Path) -> str:
    """Prepend the line by which an editor finds the schema of a project's file."""
    return f"{_modeline(file, directory / SCHEMAS)}\n{text}"


def _modeline(file: Path, schemas: Path) -> str:
    name = PROJECT if file.name == _PROJECT_FILE else PIPELINE
    if file.parent.name == TESTS_FOLDER:
        name = TESTS
    return modeline(Path(os.path.relpath(schemas / name, file.parent)).as_posix())


@command("schema")
@click.argument("kind", required=False, type=SCHEMA)
@click.option(
    "--editor",
    is_flag=True,
    help="Write schemas into .mzplan/schemas, for completion and checks in editors.",
)
@click.option(
    "--out", metavar="FOLDER", type=click.Path(file_okay=False), help="With --editor: the folder to write to."
)
def command_schema(invocation: Invocation, kind: str | None, editor: bool, out: str | None) -> int:
    """Print a JSON Schema, list all schemas, or write them for editors.

    KIND is connection.kafka, sink.postgres, …, project (for mzplan.yaml) or test (for files in tests/).
    Without KIND, lists all schemas.
    """
    if editor:
        if kind is not None:
            raise click.UsageError("--editor writes the schemas of whole files: leave out KIND.")
        return _write_for_editors(invocation, out)
    if out is not None:
        raise click.UsageError("--out requires --editor.")
    names = (*schema_names(), "project", "test")
    if kind is None:
        invocation.result({"schemas": list(names)}, "\n".join(names))
        return ExitCode.OK
    if kind not in names:
        raise click.UsageError(f"There is no schema {kind!r}. The schemas are: {', '.join(names)}.")
    invocation.document(written_schema(kind))
    return ExitCode.OK


def _write_for_editors(invocation: Invocation, out: str | None) -> int:
    directory = Path(invocation.directory)
    written = write_editor_schemas(directory, Path(out) if out is not None else None)
    if invocation.json:
        invocation.document({"written": [str(path) for path in written]})
        return ExitCode.OK
    lines = [
        f"Wrote {joined(map(str, written), 'and')}.",
        "The first line of a file names its schema:",
    ]
    for file in (_PROJECT_FILE, "pipeline.yaml", f"{TESTS_FOLDER}/views.yaml"):
        lines.append(f"  {file}: {_modeline(directory / file, written[0].parent)}")
    invocation.out("\n".join(lines))
    return ExitCode.OK


@command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)), required=False)
def command_completion(invocation: Invocation, shell: str | None) -> None:
    """Print a completion script and how to install it.

    Without an argument, the script is for your login shell ($SHELL).
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _INSTALL:
        raise click.UsageError(f"Name a shell: mzplan completion {'|'.join(_INSTALL)}.")

    class_ = get_completion_class(shell)
    assert class_ is not None
    # Not `source()`, which starts bash to ask for its version.
    completion = class_(click.Group("mzplan"), {}, "mzplan", COMPLETE)
    script = (class_.source_template % completion.source_vars()).strip()
    invocation.result(
        {"shell": shell, "script": script, "install": _INSTALL[shell]},
        f"# To install: {_INSTALL[shell]}\n{script}",
    )
