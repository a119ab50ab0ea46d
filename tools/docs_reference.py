"""Generate the reference from the schemas, the commands' `--help` and the tables of messages.

`make reference` writes it into docs, where a Git host shows it. A test checks that it is current.

This module is also a hook of mkdocs: on the site, it replaces links to the repository's files by their names.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mzplan.cli.main import COMMANDS, cli
from mzplan.model.diagnostics import ExitCode
from mzplan.model.messages import read_section, section_files
from mzplan.schema.dialect import words
from mzplan.schema.loading import load_schema, schema_names

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

FOLDER = Path(__file__).parent.parent / "docs"
WIDTH = 100
_MEANINGS = {
    ExitCode.OK: "success, or no changes",
    ExitCode.ERROR: "an error, such as a failed validation; the state is unchanged",
    ExitCode.CHANGES: "with `--detailed-exitcode`: changes are pending",
    ExitCode.DRIFT: "with `--detailed-exitcode`: there is drift",
    ExitCode.CHANGES_AND_DRIFT: "with `--detailed-exitcode`: changes and drift",
    ExitCode.STALE: "the plan is stale",
    ExitCode.LOCKED: "the state is locked",
    ExitCode.REFUSED: "refused: a replacement without `--allow-replace`, `prevent_destroy`, a changed "
    "upstream",
    ExitCode.NOT_CONVERGED: "committed, but something hasn't converged: no runner is alive, or a query was "
    "rejected or failed",
    ExitCode.USAGE: "a usage error",
}
_IN_A_FILE = (
    "You write these in a file. mzplan fills them in before it compares anything, so the state has none of "
    "them ([repeat yourself less](../how-to/repeat-yourself-less.md))."
)
_ABOUT_ERRORS = (
    "# Errors",
    "Every mzplan message has a code. This page lists the cause and the fix for each code. A command reports "
    "all errors at once, and changes nothing if there is an error. The exit code is 1 unless the fix names "
    "another one.",
)
_MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<path>\.\./[^)\s#]*)(?:#[^)\s]*)?\)")


def pages() -> dict[str, str]:
    """Return the text of every page, by its path in docs."""
    made = {"commands": commands(), "project": project(), "connectors": connectors(), "dialect": dialect()}
    return {f"reference/{name}.md": text for name, text in made.items()} | {"errors.md": errors()}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files of the repository by their names, and Mermaid blocks by pictures.

    The site has neither these files nor Mermaid, which a page would have to fetch.
    """
    folder = Path(page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        place = posixpath.normpath(folder / link["path"])
        if not place.startswith("../"):
            return link[0]
        name = place.removeprefix("../")
        return link["text"] if link["text"].strip("`") == name else f"{link['text']} (`{name}`)"

    picture = f"![{page.title}](images/{Path(page.file.src_uri).stem}.svg)"
    return _MERMAID.sub(picture, _LINK.sub(named, markdown))


def commands() -> str:
    """Return the page of the commands, with the `--help` of each."""
    intro = (
        "With `--json`, a command prints one JSON document on stdout. [Errors](../errors.md) explains the "
        "codes of errors and warnings."
    )
    parts = ["# Commands", intro, "## Exit codes", _exit_codes()]
    context = click.Context(cli, info_name="mzplan", max_content_width=WIDTH, terminal_width=WIDTH)
    for name in COMMANDS:
        found = cli.get_command(context, name)
        assert found is not None
        parts += _command(found, f"mzplan {name}", "##")
    return "\n\n".join(parts) + "\n"


def _exit_codes() -> str:
    rows = [f"| {code.value} | {_MEANINGS[code]} |" for code in ExitCode]
    return "\n".join(["| exit code | |", "|---|---|", *rows])


def _command(command: click.Command, name: str, level: str) -> Iterator[str]:
    inner = click.Context(command, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)
    yield f"{level} {name}"
    yield f"```text\n{command.get_help(inner)}\n```"
    if isinstance(command, click.Group):
        for sub in command.list_commands(inner):
            found = command.get_command(inner, sub)
            if found is not None:
                yield from _command(found, f"{name} {sub}", level + "#")


def project() -> str:
    """Return the page of mzplan.yaml."""
    return f"# mzplan.yaml\n\n{_table(load_schema('project'), effects=False)}\n"


def connectors() -> str:
    """Return the page of the types of connections, sources and sinks."""
    intro = (
        "The last column shows the effect of a changed option: *in-place* doesn't restart queries, *restart* "
        "keeps the checkpoint, and *replace* starts a new generation that rereads everything."
    )
    parts = ["# Connections, sources, sinks", intro, "## In a file", _IN_A_FILE]
    for name in ("for_each", "defaults", "query_file"):
        schema = load_schema(name)
        parts += [f"{schema['title']}:", _table(schema, effects=False)]
    for name in schema_names():
        schema = load_schema(name)
        parts += [f"## {name}", schema.get("title", ""), _table(schema, effects=True)]
    return "\n\n".join(part for part in parts if part) + "\n"


def dialect() -> str:
    """Return the page of the words that mzplan adds to JSON Schema."""
    intro = (
        "A connector's schemas are JSON Schema (draft 2020-12) with these words of mzplan's. Each property "
        "says `x-change`, `x-sensitive` and `x-sql`; a word with `x-` that is not among these is an error."
    )
    rows = ["| word | what it says |", "|---|---|"]
    rows += [f"| `{word}` | {_cell(said)} |" for word, said in words().items()]
    return "\n".join(["# The words of a schema", "", intro, "", *rows, ""])


def _table(schema: dict[str, Any], *, effects: bool) -> str:
    head = "| option | type | default | what it is |" + (" a change |" if effects else "")
    rows = [head, "|---|---|---|---|" + ("---|" if effects else "")]
    for path, inner, required in _properties(schema, ""):
        name = f"`{path}`" + (" *" if required else "")
        shown = [name, _type(inner), _default(inner), _cell(inner.get("description", ""))]
        if inner.get("x-sensitive"):
            shown[3] += " A secret reference."
        if effects:
            shown.append(_effect(inner.get("x-change")))
        rows.append(f"| {' | '.join(shown)} |")
    return "\n".join([*rows, "", r"\* required"])


def _properties(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        yield f"{prefix}{name}", inner, name in required
        yield from _properties(inner, f"{prefix}{name}.")
        if isinstance(inner.get("additionalProperties"), dict) and not inner.get("x-derived"):
            yield from _properties(inner["additionalProperties"], f"{prefix}{name}.NAME.")


def _type(inner: dict[str, Any]) -> str:
    if "enum" in inner:
        return " \\| ".join(f"`{_yaml(choice)}`" for choice in inner["enum"])
    if "anyOf" in inner:
        return " \\| ".join(choice.get("description") or _type(choice) for choice in inner["anyOf"])
    if "const" in inner:
        return f"`{_yaml(inner['const'])}`"
    found = inner.get("type", "any")
    return " or ".join(found) if isinstance(found, list) else str(found)


def _default(inner: dict[str, Any]) -> str:
    found = inner.get("default")
    if found in (None, {}, []):
        return ""
    return f"`{_yaml(found)}`" if found != "" else "empty"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _effect(change: Any) -> str:
    if isinstance(change, dict):
        return ", ".join(f"{edit}: {effect}" for edit, effect in change.items())
    return str(change or "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def errors() -> str:
    """Return the page of the error codes."""
    rows, parts = [], []
    for section in map(read_section, section_files()):
        name, codes = section["section"], [code for code in section if code != "section"]
        about = name if name.startswith("PostgreSQL") else name[0].lower() + name[1:]
        first_to_last = codes[0] if len(codes) == 1 else f"{codes[0]} – {codes[-1]}"
        rows.append(f"| {first_to_last} | [{about}](#{_anchor(name)}) |")
        parts.append(f"## {name}")
        for code in codes:
            row = section[code]
            parts += [
                f"### {code}: {row['title']}",
                _wrapped(f"**Cause.** {row['cause']}"),
                _wrapped(f"**Fix.** {row['fix']}"),
            ]
    return (
        "\n\n".join(
            [*map(_wrapped, _ABOUT_ERRORS), "\n".join(["| codes | about |", "|---|---|", *rows]), *parts]
        )
        + "\n"
    )


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "", name.lower().replace(" ", "-"))


def _wrapped(text: str) -> str:
    """Return paragraphs in lines of up to 140 characters."""
    return "\n\n".join(
        textwrap.fill(part, 140, break_long_words=False, break_on_hyphens=False)
        for part in text.split("\n\n")
    )


if __name__ == "__main__":
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    (to / "reference").mkdir(exist_ok=True)
    for name, text in pages().items():
        (to / name).write_text(text, encoding="utf-8")
