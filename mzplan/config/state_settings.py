"""Reads and checks `state:`, which a file outside the checkout can set."""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Any

from mzplan.config.checks.schema_check import BodyCheck
from mzplan.config.checks.secrets import SecretCheck
from mzplan.config.documents import Document
from mzplan.config.environments import SECTION, Environment, entries_of, fill_other_entries, variables_of
from mzplan.config.findings import Findings, Location, Path, SourceFile, listed, shown
from mzplan.config.references import fill
from mzplan.config.variables import read_variables
from mzplan.config.yaml.parser import load
from mzplan.schema.loading import load_schema
from mzplan.schema.validators import is_valid

_SCHEMA = "project"


def read_state_config(
    path: str, directory: str, findings: Findings, environment: str = ""
) -> dict[str, Any] | None:
    """Return the `state:` of a file outside the project: an mzplan.yaml, or a file with nothing else.

    If the file has `environments:`, return the `state:` of `environment`. The project's own files can't
    influence the result: the file must be outside the project, and the project's variables don't apply.
    Return None if the file can't be used, after reporting why.
    """
    file = SourceFile(path, path)
    project = FilePath(directory).resolve()
    if FilePath(os.path.realpath(path)).is_relative_to(project):
        findings.add(
            "MZ110",
            f"{shown(path)} is a file of the project",
            "The author of a checkout must not choose the server that gets the state's password.",
            f"name a file outside of {project}, or leave the option out.",
        )
        return None
    document = load(file, findings)
    if document is None:
        return None
    data = document.data
    entries = entries_of(data)
    if entries and environment not in entries:
        fault = (
            f"no environment {shown(environment)}" if environment else "environments; the project has none"
        )
        findings.add(
            "MZ110",
            f"The --state-config file has {fault}",
            f"It declares: {listed(entries)}. mzplan can't tell which state you mean.",
            "declare the same environments in both, or name a file that has only `state:`.",
            location=Location(file, (SECTION,), at_key=True),
        )
        return None
    own = "state" in entries.get(environment, {})
    if not own and (not isinstance(data, dict) or "state" not in data):
        findings.add(
            "MZ110",
            "The --state-config file has no `state:`",
            "The `state:` block in that file replaces the whole block in mzplan.yaml.",
            "write `state: {backend: …}` into it, or name an mzplan.yaml that has it.",
            location=Location(file),
        )
        return None
    chosen = Environment(name=environment, variables=variables_of(entries.get(environment, {})))
    variables = read_variables(document, {}, (), findings, {}, own=chosen.variables)
    if entries:
        fill_other_entries(document, chosen, variables, findings)
    fill(document, variables, findings, skip=data.keys() - {"state", SECTION})
    body: dict[str, Any] = {"version": 1, "project": "any"}
    state = data[SECTION][environment]["state"] if own else data["state"]
    body |= {SECTION: {environment: {"state": state}}} if own else {"state": state}
    check_state(document, body, findings)
    return state if isinstance(state, dict) else None


def check_state(document: Document, body: dict[str, Any], findings: Findings) -> None:
    """Check the settings of a file against their schema, and the secrets in them."""
    wrong: set[Path] = set()
    if not is_valid(_SCHEMA, body):
        check = BodyCheck(
            findings, lambda path, at_key: Location(document.file, path, at_key), document.file.path
        )
        wrong = check.report(_SCHEMA, body)
    # References in a variable, or in a default, are checked where it is used.
    SecretCheck(
        schema=load_schema(_SCHEMA),
        owner=document.file.path,
        locate=lambda path: Location(document.file, path),
        findings=findings,
        prefix="STATE_",
    ).check({key: value for key, value in body.items() if key not in ("variables", "defaults")}, wrong)
