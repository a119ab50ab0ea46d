"""The two ways in: a project's settings, or its whole configuration."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mzplan.config.checks.checker import Checker
from mzplan.config.declarations import check_top_level, collect
from mzplan.config.files import SECTIONS, SourceFile, find_files
from mzplan.config.findings import EnoughError, Findings
from mzplan.config.project import Settings, check_settings, excluded_folders, open_project
from mzplan.config.state_settings import read_state_config
from mzplan.config.variables import (
    Variables,
    fill,
    given_values,
    read_variables,
    refuse_others,
    require_values,
)
from mzplan.config.yaml.builder import Document
from mzplan.config.yaml.parser import load
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import Configuration, ProjectSettings

AnyPath = str | os.PathLike[str]
_NOTHING: Mapping[str, Any] = {}


def load_project(
    directory: AnyPath,
    variables: Mapping[str, str] | None = None,
    variable_files: Iterable[AnyPath] = (),
    remembered: Mapping[str, Any] | None = None,
    state_config: AnyPath = "",
) -> ProjectSettings:
    """What mzplan.yaml says, without reading any other file but those of variables. Raises MzplanError;
    MZ150 (exit 5) where variables are given that differ from those `remembered` of a plan.

    `state_config` is a file outside of it whose `state:` replaces the project's; paths in it are relative to
    its own folder.
    """
    folder = os.fspath(directory)
    findings = Findings(stops=True)
    given = str(Path(state_config).absolute()) if state_config else ""
    with suppress(EnoughError):
        document = open_project(folder, findings)
        if document is not None:
            values, settings = _settings(
                document, variables or {}, variable_files, findings, skip=SECTIONS, remembered=remembered
            )
            state = read_state_config(given, folder, findings) if given else None
    if findings:
        raise _failure(findings)
    refuse_others(values)
    return settings.to_project_settings(folder, values, state, given)


def load_configuration(
    directory: AnyPath,
    variables: Mapping[str, str] | None = None,
    variable_files: Iterable[AnyPath] = (),
    remembered: Mapping[str, Any] | None = None,
    edited: Mapping[str, bytes] = _NOTHING,
) -> Configuration:
    """Read, check and decode a project's files.

    `variables` are the texts of `--var`, `variable_files` the paths of `--var-file`, `remembered` the values
    of an earlier plan, which hold. `edited` are contents, by real path, that stand for what is
    on the disk. Raises MzplanError with a diagnostic for everything that is wrong in any file; MZ150 (exit 5)
    where what is given differs from what is remembered.
    """
    folder = os.fspath(directory)
    findings = Findings(stops=True)
    variable_files = tuple(variable_files)
    with _no_collection(), suppress(EnoughError):
        project = open_project(folder, findings, edited)
        if project is not None:
            values, settings = _settings(
                project, variables or {}, variable_files, findings, remembered=remembered
            )
            require_values(values, findings)
            files = find_files(folder, excluded_folders(folder, settings), findings, variable_files)
            others = _documents([file.as_edited(edited) for file in files], values, findings)
            declared = collect([project, *others], findings)
            resources = Checker(declared, settings.instances, findings).resources()
    if findings:
        raise _failure(findings)
    refuse_others(values)
    return Configuration(
        project=settings.project,
        warehouse=settings.warehouse,
        instances=settings.instances,
        resources=resources,
        variables=given_values(values),
    )


def _documents(files: Iterable[SourceFile], values: Variables, findings: Findings) -> Iterator[Document]:
    """Those that could be parsed, with their variables filled in."""
    for file in files:
        document = load(file, findings)
        if document is not None:
            check_top_level(document, values.declared, findings)
            fill(document, values, findings)
            yield document


def _settings(
    document: Document,
    variables: Mapping[str, str],
    variable_files: Iterable[AnyPath],
    findings: Findings,
    skip: Iterable[str] = (),
    remembered: Mapping[str, Any] | None = None,
) -> tuple[Variables, Settings]:
    values = read_variables(document, variables, variable_files, findings, remembered)
    fill(document, values, findings, skip)
    return values, check_settings(document, findings)


def _failure(findings: Findings) -> MzplanError:
    # Imported only now: a run without errors looks up no places.
    from mzplan.config.locations import failure

    return failure(findings)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cycle collector: it would walk through every parsed value again and again, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
