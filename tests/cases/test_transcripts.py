"""Transcripts: what the command line prints for small projects.

A file in `transcripts/` first says what it shows, and has the files of a project. Each section, `=== TITLE`,
is a test that begins with these files in a new folder. In a section,

    ==> NAME <==             writes a file; the lines below are its text
    ==> NAME (edited) <==    replaces the lines that begin with - by the lines that begin with +
    $ mzplan ARGUMENTS       runs a command; the lines below are its output, then its errors and its exit code
    $ mzplan … > /dev/null   runs a command that must succeed, and hides its output
    $ cat NAME               prints a file
    $ rm NAME                removes a file
    $ declared ADDRESSES     prints the bodies of resources, all or some, as `load_configuration` returns them
    $ export NAME=VALUE      sets an environment variable

`python -m pytest tests/cases --update-golden` writes the output of all commands, for review.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from mzplan.config import load_configuration
from tests.unit.cli_runs import run

FOLDER = Path(__file__).parent / "transcripts"
MARK = re.compile(r"(?m)^(?===> .* <==$|\$ )")
TITLE = re.compile(r"(?m)^(?==== )")
SECTIONS = [
    pytest.param(path, number, id=f"{path.stem}: {section.splitlines()[0][4:]}")
    for path in sorted(FOLDER.glob("*.txt"))
    for number, section in enumerate(TITLE.split(path.read_text(encoding="utf-8")))
    if number
]
PROGRESS = re.compile(r"  … \d+ s: ")
VARYING = {
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"sha256:[0-9a-f]{64}": "sha256:DIGEST",
    r"\b[0-9a-f]{16}\b": "ID",
    r"after \d+\.\d+ s": "after N s",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)?": "TIME",
}


def edited(text: str, lines: list[str]) -> str:
    """Return the text with each run of lines that begin with `-` replaced by the `+` lines after it."""
    at = 0
    for hunk in re.findall(r"(?m)((?:^-.*\n)+)((?:^\+.*\n)*)", "".join(f"{line}\n" for line in lines)):
        old, new = ("".join(line[1:] for line in part.splitlines(keepends=True)) for part in hunk)
        at = text.index(old, at)
        text = text[:at] + new + text[at + len(old) :]
        at += len(new)
    return text


def declared(*arguments: str) -> str:
    """Return resources of the project in the working directory as YAML. `NAME=VALUE` sets a variable."""
    variables = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    addresses = [argument for argument in arguments if "=" not in argument]
    resources = load_configuration(".", variables).resources
    found = {str(a): dict(r.body) for a, r in resources.items() if not addresses or str(a) in addresses}
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=200)


def output_of(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run one command of a transcript in the working directory."""
    program, *arguments = shlex.split(command)
    if program == "mzplan":
        quiet = arguments[-2:] == [">", "/dev/null"]
        ran = run(*arguments[: -2 if quiet else None])
        if quiet:
            assert ran.code == 0, ran
            return ""
        return ran.out + ran.err + (f"\n(exit {ran.code})" if ran.code else "")
    if program == "declared":
        return declared(*arguments)
    if program == "cat":
        return Path(arguments[0]).read_text(encoding="utf-8")
    if program == "rm":
        Path(arguments[0]).unlink()
    else:
        assert program == "export", command
        monkeypatch.setenv(*arguments[0].split("=", 1))
    return ""


def stable(text: str) -> str:
    """Return the output without the parts that differ from run to run."""
    text = text.replace(str(Path.cwd()), "FOLDER")
    for pattern, word in VARYING.items():
        text = re.sub(pattern, word, text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip() and not PROGRESS.match(line))


def play(text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Carry out the steps of a transcript, and return it with the output of its commands."""
    title, *steps = MARK.split(text)
    played = [title]
    for step in steps:
        head, *lines = step.rstrip("\n").split("\n")
        gap = step[len(step.rstrip("\n")) :]
        if head.startswith("$ "):
            output = stable(output_of(head[2:], monkeypatch))
            played.append("\n".join([head, *([output] if output else [])]) + gap)
            continue
        path = Path(head[4:-4].removesuffix(" (edited)"))
        path.parent.mkdir(parents=True, exist_ok=True)
        body = "".join(f"{line}\n" for line in lines)
        path.write_text(edited(path.read_text(), lines) if head.endswith("(edited) <==") else body)
        played.append(step)
    return "".join(played)


@pytest.mark.parametrize(("path", "number"), SECTIONS)
def test_commands_print_what_their_transcript_shows(
    path: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    sections = TITLE.split(path.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    play(sections[0], monkeypatch)
    played = play(sections[number], monkeypatch)
    if pytestconfig.getoption("--update-golden"):
        sections[number] = played
        path.write_text("".join(sections), encoding="utf-8")
    assert sections[number] == played, f"{path}: see --update-golden"
