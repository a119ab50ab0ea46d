"""Loads a project's settings or its whole configuration, and checks bodies that aren't in a file."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from mzplan.config.checks.checker import Checker
from mzplan.config.checks.environment_copies import EnvironmentCopies, ReadEnvironment
from mzplan.config.checks.function_code import FunctionCode
from mzplan.config.checks.proto_files import ProtoFiles
from mzplan.config.checks.query_files import QueryFiles
from mzplan.config.checks.recorded_analyses import Records
from mzplan.config.checks.sql_functions import read_functions
from mzplan.config.declarations import Templates, check_top_level, collect, has_only_variables
from mzplan.config.defaults import Defaults
from mzplan.config.documents import Declaration, Document
from mzplan.config.environments import (
    OtherEnvironments,
    check_overlaps,
    choose,
    copy_sources,
    entries_of,
    fill_other_entries,
)
from mzplan.config.findings import EnoughError, Findings, Path, SourceFile
from mzplan.config.places import places_of
from mzplan.config.project import Settings, check_settings, excluded_folders, open_project, read_state_config
from mzplan.config.project_files import SECTIONS, find_files, project_file
from mzplan.config.references import fill
from mzplan.config.variables import Variables, given_values, read_variables, refuse_others, require_values
from mzplan.config.yaml.parser import load
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import Configuration, Instance, ProjectSettings, Resource

AnyPath = str | os.PathLike[str]
Mistake = tuple[Diagnostic, Path]
_NOTHING: Mapping[str, Any] = {}
_OF_RESOURCES = (*SECTIONS, "defaults")  # keys of mzplan.yaml that aren't settings


def load_project(
    directory: AnyPath,
    variables: Mapping[str, str] | None = None,
    variable_files: Iterable[AnyPath] = (),
    saved_values: Mapping[str, Any] | None = None,
    state_config: AnyPath = "",
    environment: str = "",
) -> ProjectSettings:
    """Read mzplan.yaml, without any other file except files of variables.

    - `environment`: the chosen entry of its `environments:`; "" for the default one, if there are any.
    - `saved_values`: the values of variables in a saved plan.
    - `state_config`: a file outside the project whose `state:` replaces the project's. Paths in it are
      relative to its own folder.

    Raises MzplanError, which is MZ036 (exit 5) if given variables differ from `saved_values`.
    """
    folder = os.fspath(directory)
    findings = Findings(stops=True)
    given = str(FilePath(state_config).absolute()) if state_config else ""
    with suppress(EnoughError):
        document = open_project(folder, findings)
        if document is not None:
            values, settings, others = _settings(
                document,
                variables or {},
                variable_files,
                findings,
                skip=_OF_RESOURCES,
                saved_values=saved_values,
                environment=environment,
                directory=folder,
            )
            chosen = settings.environment.name
            state = read_state_config(given, folder, findings, chosen) if given else None
            if state is not None and chosen:
                body = {"state": state, "warehouse": settings.warehouse}
                own = places_of(body, folder, str(FilePath(given).parent))
                check_overlaps(document, chosen, own, others, folder, findings)
    if findings:
        raise MzplanError(_diagnose(findings))
    refuse_others(values)
    return settings.to_project_settings(folder, values, state, given)


def environment_names(directory: AnyPath) -> tuple[str, ...]:
    """Return the environments that mzplan.yaml declares, in order; () if it has none or can't be read."""
    document = load(project_file(os.fspath(directory)), Findings())
    return tuple(entries_of(document.data)) if document is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRead:
    """The result of reading a project's files.

    - `configuration`: the whole configuration; None if there are `mistakes`.
    - `resources`: the resources without a mistake of their own.
    - `mistaken`: the addresses of resources with a mistake.
    - `is_whole`: every file could be read, so no other resources are declared.
    """

    configuration: Configuration | None
    mistakes: tuple[Diagnostic, ...] = ()
    resources: Mapping[Address, Resource] = field(default_factory=dict)
    mistaken: frozenset[Address] = frozenset()
    is_whole: bool = True


def load_configuration(
    directory: AnyPath,
    variables: Mapping[str, str] | None = None,
    variable_files: Iterable[AnyPath] = (),
    saved_values: Mapping[str, Any] | None = None,
    edited: Mapping[str, bytes] = _NOTHING,
    environment: str = "",
) -> Configuration:
    """Return the configuration of a project. For the parameters, see `read_files`.

    Raises MzplanError with a diagnostic for each mistake in any file, or MZ036 (exit 5) if given variables
    differ from `saved_values`.
    """
    files = read_files(directory, variables, variable_files, saved_values, edited, environment)
    if files.configuration is None:
        raise MzplanError(files.mistakes)
    return files.configuration


def read_files(
    directory: AnyPath,
    variables: Mapping[str, str] | None = None,
    variable_files: Iterable[AnyPath] = (),
    saved_values: Mapping[str, Any] | None = None,
    edited: Mapping[str, bytes] = _NOTHING,
    environment: str = "",
    records: Records = MappingProxyType({}),
    read_environment: ReadEnvironment | None = None,
) -> FilesRead:
    """Read, check and decode a project's files for one of its environments, as far as possible.

    - `variables`: the values of `--var`. `variable_files`: the paths of `--var-file`.
    - `saved_values`: the values of variables in a saved plan. They override all others.
    - `edited`: by real path, contents that replace the contents on the disk.
    - `records`: the records of the state. If a record has the analysis of a query, its SQL isn't parsed.
    - `read_environment`: reads another environment, for sources that copy its collections.

    Raises MzplanError MZ036 (exit 5) if given variables differ from `saved_values`.
    """
    paths = tuple(variable_files)
    read = read_environment
    files = _read_files(directory, variables, paths, saved_values, edited, environment, records, read)
    if records and files.configuration is None:  # parse all SQL, to find the positions of mistakes
        files = _read_files(directory, variables, paths, saved_values, edited, environment, {}, read)
    return files


def _read_files(
    directory: AnyPath,
    variables: Mapping[str, str] | None,
    variable_files: Sequence[AnyPath],
    saved_values: Mapping[str, Any] | None,
    edited: Mapping[str, bytes],
    environment: str,
    records: Records,
    read_environment: ReadEnvironment | None,
) -> FilesRead:
    folder = os.fspath(directory)
    findings = Findings(stops=True)
    declared: dict[Address, Declaration] = {}
    resources: dict[Address, Resource] | None = None
    with _no_garbage_collection(), suppress(EnoughError):
        project = open_project(folder, findings, edited)
        if project is not None:
            values, settings, _ = _settings(
                project,
                variables or {},
                variable_files,
                findings,
                saved_values=saved_values,
                environment=environment,
                directory=folder,
            )
            require_values(values, findings)
            files = find_files(folder, excluded_folders(folder, settings), findings, variable_files)
            others = _documents(
                [file.as_edited(edited) for file in files], values, findings, saved_values is not None
            )
            defaults = Defaults(project, findings)
            declared = collect([project, *others], findings, Templates(findings), defaults)
            chosen = settings.environment
            copy_sources(project, chosen.name, declared, findings)
            code = FunctionCode(folder, findings)
            texts = QueryFiles(folder, values, findings), code, ProtoFiles(folder, findings)
            functions = read_functions(project, code, findings, records)
            copies = None
            if read_environment is not None:
                copies = EnvironmentCopies(chosen.name, chosen.names, read_environment, findings)
            checker = Checker(
                declared, settings.instances, findings, defaults, texts, copies, records, functions
            )
            resources = checker.resources()
    if findings or resources is None:
        return _partial_result(declared, resources, findings)
    refuse_others(values)
    configuration = Configuration(
        project=settings.project,
        warehouse=settings.warehouse,
        instances=settings.instances,
        resources=resources,
        variables=given_values(values),
        settings=settings.runner,
    )
    return FilesRead(configuration=configuration, resources=resources)


def check_bodies(
    bodies: Mapping[Address, Mapping[str, Any]], instances: Mapping[str, Instance]
) -> tuple[dict[Address, Resource], list[Mistake]]:
    """Check bodies that aren't in a file, such as edited committed ones, exactly like declared bodies.

    Returns the resources and the mistakes. A mistake is a diagnostic without a range, and a path in the body
    of its address. The resources are complete only if there are no mistakes.
    """
    nowhere = SourceFile("", "")
    declared = {address: Declaration(address, dict(body), nowhere) for address, body in bodies.items()}
    findings = Findings()
    resources = Checker(declared, instances, findings).resources()
    mistakes = []
    for finding in findings.items:
        single = Findings()
        single.secrets = findings.secrets
        single.items.append(replace(finding, location=None, related=None))
        path = finding.location.path[2:] if finding.location is not None else ()
        mistakes += [(diagnostic, path) for diagnostic in _diagnose(single)]
    return {a: replace(r, path=None, analysis="") for a, r in resources.items()}, mistakes


def _partial_result(
    declared: Mapping[Address, Declaration], resources: Mapping[Address, Resource] | None, findings: Findings
) -> FilesRead:
    right = {
        address: resource
        for address, resource in (resources or {}).items()
        if not findings.is_unusable_below(declared[address].location())
    }
    return FilesRead(
        configuration=None,
        mistakes=tuple(_diagnose(findings)),
        resources=right,
        mistaken=frozenset(a for declaration in declared.values() if (a := declaration.valid_address))
        - right.keys(),
        is_whole=resources is not None and not findings.is_incomplete,
    )


def _documents(
    files: Iterable[SourceFile], values: Variables, findings: Findings, is_saved: bool
) -> Iterator[Document]:
    """Yield the files that can be parsed, with their variables filled in.

    `is_saved`: the values come from a saved plan, so `--var-file` needn't name the variable files again.
    """
    for file in files:
        document = load(file, findings)
        if document is not None and not (is_saved and has_only_variables(document, values.declared)):
            check_top_level(document, values.declared, findings)
            fill(document, values, findings)
            yield document


def _settings(
    document: Document,
    variables: Mapping[str, str],
    variable_files: Iterable[AnyPath],
    findings: Findings,
    skip: Iterable[str] = (),
    saved_values: Mapping[str, Any] | None = None,
    *,
    environment: str,
    directory: str,
) -> tuple[Variables, Settings, OtherEnvironments]:
    chosen = choose(document, environment, findings)
    values = read_variables(
        document, variables, variable_files, findings, saved_values, chosen.variables, chosen.state_at
    )
    others = fill_other_entries(document, chosen, values, findings)
    fill(document, values, findings, skip)
    settings = check_settings(document, findings, chosen)
    if chosen.name:
        own = places_of({"state": settings.state, "warehouse": settings.warehouse}, directory)
        check_overlaps(document, chosen.name, own, others, directory, findings)
    return values, settings, others


def _diagnose(findings: Findings) -> list[Diagnostic]:
    # Imported only now: a run without errors looks up no places.
    from mzplan.config.locations import diagnose

    return diagnose(findings)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable the cycle collector, which would walk through every parsed value again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
