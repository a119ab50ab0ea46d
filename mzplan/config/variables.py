"""The variables that mzplan.yaml declares, and their values from outside or by default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml
from yaml.events import DocumentStartEvent, ScalarEvent

from mzplan.config.documents import Document
from mzplan.config.findings import Findings, Location, Path, SourceFile
from mzplan.config.yaml.events import ScalarError, events, loses_digits, resolve
from mzplan.config.yaml.parser import load
from mzplan.model.diagnostics import error
from mzplan.model.words import listed, shown
from mzplan.schema.properties import value_at

VARIABLE = re.compile(r"\$\{var\.([a-z][a-z0-9_]*)\}")
_ENVIRONMENT = "MZPLAN_VAR_"
_NOTHING: Mapping[str, Any] = {}


@dataclass(slots=True)
class Variables:
    """The declared variables and their values, by name.

    - `defaults`: the values that apply unless others are given; see read_variables.
    - `outside`: the values from options, files, the process's environment or a saved plan (see
      read_variables).
    - `reported_missing`: variables whose missing value has been reported.
    - `names_text`: the declared names, for messages.
    - `used_names`: variables that were filled in somewhere.
    - `in_state`: variables in the `state:` settings.
    - `refused`: for variables with another value than in the saved plan, where that value comes from.
    - `filled_characters`: the characters made by filling in, so far.
    """

    document: Document
    declared: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    reported_missing: set[str] = field(default_factory=set)
    names_text: str = ""
    used_names: set[str] = field(default_factory=set)
    in_state: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    filled_characters: int = 0


def read_variables(
    document: Document,
    given: Mapping[str, str],
    files: Iterable[str | os.PathLike[str]],
    findings: Findings,
    saved_values: Mapping[str, Any] | None,
    own: Mapping[str, Any] = _NOTHING,
    state_at: Path = ("state",),
) -> Variables:
    """Return the variables that mzplan.yaml declares, with their values.

    By precedence, values come from `given` (--var), `files` (--var-file; a later file wins), the process's
    environment (`MZPLAN_VAR_NAME`), `own` (the chosen entry of `environments:`), and the default.
    `state_at`: the place of `state:` in the file.

    The values of a saved plan, `saved_values`, override all others. Variables that it doesn't name had their
    default. `refused` names given values that differ; see refuse_others.
    """
    section = document.data.get("variables") if isinstance(document.data, dict) else None
    # The schema check reports malformed declarations.
    declared = {
        name: body if isinstance(body, dict) else {}
        for name, body in (section.items() if isinstance(section, dict) else ())
    }
    variables = Variables(document, declared, defaults_of(declared, own))
    _find_uses(variables, state_at)
    origins: dict[str, str] = {}  # where each given value comes from
    for name in declared:
        if (value := _from_environment(name)) is not None:
            variables.values[name] = value
            origins[name] = f"{_ENVIRONMENT}{name.upper()}"
    for path in files:
        origins |= dict.fromkeys(_from_file(os.fspath(path), variables, findings), f"--var-file {path}")
    for name, text in given.items():
        if name in declared:
            variables.values[name] = scalar(text)
            origins[name] = "--var"
        else:
            report_undeclared(name, variables, findings)
    for name in declared:
        default = variables.defaults.get(name)
        planned = None if saved_values is None else saved_values.get(name, default)
        if planned is not None:
            if name in origins and variables.values[name] != planned:
                variables.refused[name] = origins[name]
            variables.values[name] = planned
        elif name not in origins and default is not None:
            variables.values[name] = default
        if name in origins or (planned is not None and planned != default):
            variables.outside[name] = variables.values[name]
    for name, value in list(variables.values.items()):
        if not _is_text(value):
            del variables.values[name]
            variables.reported_missing.add(name)
            findings.add("MZ015.value-variable", name=name, variable=name.upper())
    return variables


def _find_uses(variables: Variables, state_at: Path) -> None:
    """Find the variables that the `state:` settings use, before mzplan fills them in."""
    document = variables.document
    state = value_at(document.data, state_at)
    if not isinstance(state, dict) or "${var." not in str(state):
        return
    for container, key in document.references:
        if document.path_of(container, key)[: len(state_at)] == state_at:
            variables.in_state |= {match[1] for match in VARIABLE.finditer(str(container[key]))}


def _is_text(value: Any) -> bool:
    # Arguments and the environment are bytes; text that isn't UTF-8 could not be written to a file.
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def given_values(variables: Variables) -> dict[str, Any]:
    """Return the values that were filled in and aren't the default.

    With the same files, they give the same configuration. They contain no secrets, because secrets in
    files are references.
    """
    return {
        name: value
        for name, value in sorted(variables.values.items())
        if name in variables.used_names and value != variables.defaults.get(name)
    }


def refuse_others(variables: Variables) -> None:
    """Raise MzplanError MZ036 (exit 5) if a used variable has another value than in the saved plan."""
    changed = sorted(variables.refused.keys() & variables.used_names)
    if changed:
        raise error(
            "MZ036.plan-made",
            changed="; ".join(f"{name} has another value in {variables.refused[name]}" for name in changed),
        )


def scalar(text: str) -> Any:
    """Return text from outside as a YAML scalar: `5` is a number, `"5"` is text.

    `010` is also text, because a number would lose a digit. Text that isn't a scalar stays text.
    """
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        try:
            relevant = [
                event for event in events(stripped) if isinstance(event, ScalarEvent | DocumentStartEvent)
            ]
        except yaml.YAMLError:
            return text
        if len(relevant) == 2 and isinstance(relevant[1], ScalarEvent):
            return relevant[1].value
        return text
    try:
        value = resolve(stripped)
    except ScalarError:
        return text
    return text if value is None or isinstance(value, str) or loses_digits(value, stripped) else value


def _from_environment(name: str) -> Any:
    for spelling in (name.upper(), name):
        if (text := os.environ.get(_ENVIRONMENT + spelling)) is not None:
            return scalar(text)
    return None


def _from_file(path: str, variables: Variables, findings: Findings) -> list[str]:
    """Set the variables that a file names, and return their names."""
    names: list[str] = []
    # Shown as an absolute path: other paths in messages are relative to the project.
    document = load(SourceFile(path, str(FilePath(path).absolute()), private=True), findings)
    if document is None or document.data is None:
        return names
    if not isinstance(document.data, dict):
        findings.add("MZ015.variable-file", Location(document.file), data=document.data)
        return names
    for name, value in document.data.items():
        location = Location(document.file, (name,), at_key=True)
        if name not in variables.declared:
            report_undeclared(name, variables, findings, location, conceal=True)
        elif value is None or isinstance(value, dict | list):
            findings.add("MZ015.variable-needs", location, conceal=True, name=name, value=value)
        else:
            variables.values[name] = findings.original_texts.get((document.file.full_path, (name,)), value)
            names.append(name)
    return names


def defaults_of(declared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that apply unless others are given: an environment's `own`, or the default."""
    values = {name: own.get(name, body.get("default")) for name, body in declared.items()}
    return {name: value for name, value in values.items() if value is not None}


def require_values(variables: Variables, findings: Findings) -> None:
    """Report every declared variable that has no value."""
    for name in variables.declared:
        if name not in variables.values:
            report_missing(name, variables, findings)


def report_undeclared(
    name: str,
    variables: Variables,
    findings: Findings,
    location: Location | None = None,
    *,
    conceal: bool = False,
) -> None:
    """Report a variable that isn't declared. `location`: None for the option --var."""
    declared = "The project declares no variables."
    if variables.declared:
        variables.names_text = variables.names_text or f"Declared are: {listed(sorted(variables.declared))}."
        declared = variables.names_text
    findings.add(
        "MZ015.undeclared" if location is not None else "MZ015.undeclared-option",
        location,
        conceal=conceal,
        name=name,
        declared=declared,
        near=findings.did_you_mean(name, variables.declared),
    )


def report_missing(name: str, variables: Variables, findings: Findings) -> None:
    """Report, once, a declared variable that has no value."""
    if name in variables.reported_missing:
        return
    variables.reported_missing.add(name)
    word = shown(name, quote=False)
    findings.add(
        "MZ015.variable-no",
        Location(variables.document.file, ("variables", name), at_key=True),
        name=name,
        word=word,
        variable=word.upper(),
    )
