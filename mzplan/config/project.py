"""mzplan.yaml: a project's settings. A file outside the checkout can set `state:`."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from mzplan.config.checks.schema_check import BodyCheck, SecretCheck
from mzplan.config.documents import Document
from mzplan.config.environments import (
    NONE,
    SECTION,
    Environment,
    entries_of,
    fill_other_entries,
    settings_in,
    variables_of,
)
from mzplan.config.findings import Findings, Location, Path, SourceFile
from mzplan.config.project_files import PROJECT_FILE, SECTIONS, find_files, project_file
from mzplan.config.references import fill
from mzplan.config.variables import Variables, given_values, read_variables
from mzplan.config.yaml.parser import load
from mzplan.model.diagnostics import error
from mzplan.model.resources import (
    DEFAULT_INSTANCE,
    Instance,
    MetricsPlace,
    ProjectSettings,
    Retries,
    RunEventSettings,
    RunnerSettings,
    Webhook,
)
from mzplan.model.times import seconds
from mzplan.model.words import shown
from mzplan.schema.kinds import with_defaults
from mzplan.schema.loading import load_schema
from mzplan.schema.validators import is_valid

_SCHEMA = "project"
_PLACE = ("backend", "path", "host", "port", "database", "schema", "url")  # of a state


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in mzplan.yaml, as far as they are valid."""

    project: str
    warehouse: str
    state: dict[str, Any]
    instances: dict[str, Instance]
    runner: RunnerSettings
    folders: tuple[str, ...] = ()  # the warehouses and state paths of all environments, as written
    environment: Environment = NONE

    def to_project_settings(
        self,
        directory: str,
        variables: Variables,
        state: dict[str, Any] | None = None,
        state_config: str = "",
    ) -> ProjectSettings:
        """Return the settings for commands. `state` from the file `state_config` replaces their own."""
        return ProjectSettings(
            directory=directory,
            project=self.project,
            warehouse=self.warehouse,
            state=self.state if state is None else _with_default_backend(state),
            state_config=state_config,
            instances=self.instances,
            runner=self.runner,
            variables=given_values(variables),
            variant=self._variant(variables),
            environment=self.environment.name,
            environments=self.environment.names,
        )

    def _variant(self, variables: Variables) -> str:
        """Return a name that tells this state apart from other states of the project.

        It consists of the environment's name, if the project has environments, and 8 hex digits of the
        state's place, if variables from outside decide the place.
        """
        parts = [self.environment.name] if self.environment.name else []
        if given_values(variables).keys() & variables.in_state:
            place = {name: self.state.get(name) for name in _PLACE}
            parts.append(hashlib.sha256(json.dumps(place, sort_keys=True).encode()).hexdigest()[:8])
        return ".".join(parts)


def open_project(
    directory: str, findings: Findings, edited: Mapping[str, bytes] = MappingProxyType({})
) -> Document | None:
    """Return the parsed mzplan.yaml. Raises MzplanError MZ010 if the folder has none."""
    file = project_file(directory).as_edited(edited)
    if not os.path.lexists(file.full_path):
        raise error(
            "MZ010.no-project-folder",
            project_file=PROJECT_FILE,
            absolute=FilePath(directory).absolute(),
            parent_project_hint=_parent_project_hint(directory),
        )
    return load(file, findings)


def check_settings(document: Document, findings: Findings, environment: Environment) -> Settings:
    """Check and return the settings of an environment, from a document whose variables are filled in."""
    data = document.data if document.data is not None else {}
    if not isinstance(data, dict):
        findings.add("MZ005.not-mapping-found", Location(document.file), project_file=PROJECT_FILE, data=data)
        data = {"version": 1, "project": "unknown"}
    body = {key: value for key, value in data.items() if key not in SECTIONS}
    check_state(document, body, findings)
    return _settings(body, environment)


def project_files(directory: str) -> list[SourceFile]:
    """Return the files that may declare a resource, mzplan.yaml first, for look-ups.

    Doesn't report mistakes, and doesn't fill in variables.
    """
    file = project_file(directory)
    document = load(file, Findings())
    data = document.data if document is not None else None
    settings = _settings(data if isinstance(data, dict) else {})
    return [file, *find_files(directory, excluded_folders(directory, settings), Findings())]


def _settings(body: dict[str, Any], environment: Environment = NONE) -> Settings:
    is_right = is_valid(_SCHEMA, body)
    folders = [*_folders(body), *chain.from_iterable(map(_folders, entries_of(body).values()))]
    body = settings_in(body, environment.name)
    properties = load_schema(_SCHEMA)["properties"]

    def setting(name: str) -> Any:
        value, default = body.get(name), properties[name].get("default")
        return value if isinstance(value, type(default)) and value else default

    instances = {
        str(name): Instance(name=str(name), type=inner["type"])
        for name, inner in setting("instances").items()
        if isinstance(inner, dict) and isinstance(inner.get("type"), str)
    }
    return Settings(
        project=str(body.get("project", "")),
        warehouse=setting("warehouse"),
        state=_with_default_backend(setting("state")),
        runner=_runner_settings(body) if is_right else RunnerSettings(),
        folders=tuple(folders),
        environment=environment,
        instances=instances or {DEFAULT_INSTANCE: Instance(name=DEFAULT_INSTANCE, type="embedded")},
    )


def _folders(body: Mapping[str, Any]) -> list[Any]:
    """Return the warehouse and the local state's path of an environment or a project."""
    state = body.get("state")
    folders = [body.get("warehouse"), state.get("path") if isinstance(state, dict) else None]
    return [path for path in folders if isinstance(path, str)]


def _with_default_backend(state: dict[str, Any]) -> dict[str, Any]:
    return {**load_schema(_SCHEMA)["properties"]["state"]["default"], **state}


def _runner_settings(body: dict[str, Any]) -> RunnerSettings:
    """Return a runner's settings from a body that conforms to the schema."""
    body = with_defaults(load_schema(_SCHEMA), body)
    retries, lineage = body["retries"], body["lineage"]
    metrics = {name: inner["metrics"] for name, inner in body["instances"].items() if "metrics" in inner}
    return RunnerSettings(
        retain_dropped=seconds(body["retain_dropped"]),
        survive_store_outage=seconds(body["runner"]["survive_store_outage"]),
        retries=Retries(
            first=seconds(retries["first"]),
            last=seconds(retries["last"]),
            budget=int(retries["budget"]) if "budget" in retries else None,
        ),
        metrics={
            name: MetricsPlace(**{**place, "port": int(place["port"])}) for name, place in metrics.items()
        },
        run_events=RunEventSettings(
            url=lineage.get("url", ""),
            api_key=lineage.get("api_key", ""),
            timeout=seconds(lineage["timeout"]),
            interval=seconds(lineage["interval"]),
            namespace=lineage.get("namespace", ""),
        ),
        notify=tuple(_webhook(hook) for hook in body["notify"]),
    )


def _webhook(body: dict[str, Any]) -> Webhook:
    body = with_defaults(load_schema(_SCHEMA)["properties"]["notify"]["items"], body)
    return Webhook(url=body["url"], on=tuple(body["on"]))


def excluded_folders(directory: str, settings: Settings) -> list[str]:
    """Return the local folders of state and warehouse, which contain no configuration."""
    paths = [settings.warehouse, settings.state.get("path"), *settings.folders]
    return [
        str(FilePath(directory) / path.removeprefix("file://"))
        for path in dict.fromkeys(path for path in paths if isinstance(path, str))
        if ("://" not in path or path.startswith("file://")) and "\0" not in path
    ]


def _parent_project_hint(directory: str) -> str:
    start = FilePath(directory).absolute()
    for folder in start.parents:
        if (folder / PROJECT_FILE).is_file():
            # An absolute path, because -C may have named another folder than the current one.
            return f"the project may be the folder above: mzplan -C {shlex.quote(str(folder))} …"
    for name in ("mzplan.yml", "mzplan.json"):
        if (start / name).is_file():
            return f"rename {name} to {PROJECT_FILE}."
    return "run `mzplan init`, or name the project's folder with -C."


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
        findings.add("MZ110.file-project", path=path, project=project)
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
            "MZ110.state-config", Location(file, (SECTION,), at_key=True), fault=fault, entries=entries
        )
        return None
    own = "state" in entries.get(environment, {})
    if not own and (not isinstance(data, dict) or "state" not in data):
        findings.add("MZ110.state-config-file", Location(file))
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
