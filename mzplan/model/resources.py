"""Configuration: what a person declared, typed and normalised; and edits of a resource's body."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.diagnostics import SourceRange
from mzplan.model.stored import KEY, InstanceName, Port, Positive, Seconds, Wait, stored

# JSON-like: str, int, float, bool, None, list, dict. Never mutated once a resource holds it.
Body = Mapping[str, Any]
InstanceType = Literal["embedded", "dry", "cluster"]
DEFAULT_INSTANCE = "local"

STATE_CONFIG_VARIABLE = "MZPLAN_STATE_CONFIG"  # the file that `state:` is taken from
ENVIRONMENT_VARIABLE = "MZPLAN_ENV"  # the environment that a command is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A Spark application that hosts streaming queries (the storage instance of seed 004)."""

    name: InstanceName = field(metadata=KEY)
    type: InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A declared connection, source, view or sink.

    `body` is normalised: variables filled in, values equal to their default left out, keys sorted;
    connections appear by name and secrets as references, exactly as they will stand in the state.
    `references` maps the property that refers (`"connection"`, `"from"`) to what it refers to. `assumed`: by
    path, what is in the body although the file says nothing of it (`x-assumed`). `template`: where
    the `for_each` is that makes it, as `sources.shop` ("": it is written out). `through`: the views by whose
    names its file says what it reads, and whose SQL is in its body (`materialize: false`).
    """

    address: Address
    type: str
    body: Body
    references: Mapping[str, Address] = field(default_factory=dict)
    path: str | None = None  # the file that declares it; the exact range is looked up when needed
    assumed: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    template: str = ""
    through: tuple[str, ...] = ()

    @property
    def instance(self) -> str:
        return str(self.body.get("instance", DEFAULT_INSTANCE))

    @property
    def paused(self) -> bool:
        return bool(self.body.get("paused", False))


def start_command(instance: Instance, environment: str = "") -> str:
    """Return the command that starts a runner of an instance: `mzplan --env prod run --instance big`."""
    which = f" --env {shlex.quote(environment)}" if environment else ""
    run = "up" if instance.type == "embedded" else f"run --instance {shlex.quote(instance.name)}"
    return f"mzplan{which} {run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How failed queries are tried again: after `first` seconds, doubled each time up to `last`; not any more
    after `budget` failures in a row (None: always)."""

    first: Wait = 1.0
    last: Wait = 60.0
    budget: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPlace:
    """Where a runner serves `/metrics` and `/healthz`."""

    port: Port
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEventSettings:
    """Which OpenLineage server a runner sends run events to; "" where only its environment may name one.
    `api_key` is a secret reference, or "". `timeout`: seconds for one answer; `interval`: seconds between two
    events of a run that goes on. `namespace`: that of the jobs, "" for the project's name."""

    url: str = ""
    api_key: str = ""
    timeout: Wait = 5.0
    interval: Wait = 300.0
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """What mzplan.yaml says of how runners work, which they do once it is committed.

    `retain_dropped`: seconds that unclaimed storage stays. `metrics`: by instance. Where the state itself is,
    is not part of it: a runner must know that before it can read what is committed.
    """

    retain_dropped: Seconds = 7 * 86_400.0
    retries: Retries = Retries()
    metrics: Mapping[InstanceName, MetricsPlace] = field(default_factory=dict)
    run_events: RunEventSettings = field(
        default=RunEventSettings(), metadata=stored("lineage", optional=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is wanted: the project's settings and its resources, by address.

    `warehouse` is the URI as written (a relative path is relative to the project's folder). `variables` are
    the values that resources were filled in with, defaults left out.
    """

    project: str
    warehouse: str
    instances: Mapping[str, Instance]
    resources: Mapping[Address, Resource]
    variables: Mapping[str, Any] = field(default_factory=dict)
    settings: RunnerSettings = field(default_factory=RunnerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """What mzplan.yaml says, before any resource is read: enough for commands that need only the store.

    `variables` are the values that it was filled in with, defaults (those of its environment, too) left out;
    `variant` tells the states apart that the project has by environments and variables ("": by none).
    `environment`: which of its `environments` this is; "" in a project that declares none. `runner`: what a
    runner does until a state says it.
    """

    directory: str
    project: str
    warehouse: str
    state: Mapping[str, Any]
    instances: Mapping[str, Instance]
    runner: RunnerSettings = field(default_factory=RunnerSettings)
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    variant: str = ""
    environment: str = ""
    environments: tuple[str, ...] = ()
    range: SourceRange | None = None
    state_config: str = (
        ""  # the absolute path of the file that `state` comes from, where it is not mzplan.yaml
    )

    @property
    def title(self) -> str:
        """What it is called where people look at it: `shop`, or `shop (prod)`."""
        return f"{self.project} ({self.environment})" if self.environment else self.project

    @property
    def state_directory(self) -> str:
        """What paths in `state`, and the files of its references, are relative to."""
        return str(Path(self.state_config).parent) if self.state_config else self.directory


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyEdit:
    """A property to set, or (`remove`) to take out, so that its default holds. The value may be what
    somebody took for a fit place for a secret: it is left out of the repr."""

    path: tuple[str, ...]
    remove: bool = False
    value: Any = field(default=None, repr=False)


def edited(body: Mapping[str, Any], edits: Iterable[PropertyEdit]) -> dict[str, Any]:
    """A copy of a body with the edits made; a mapping that a removal leaves empty goes as well."""
    result = dict(body)
    for edit in edits:
        result = _edited(result, edit.path, edit)
    return result


def _edited(body: Mapping[str, Any], path: tuple[str, ...], edit: PropertyEdit) -> dict[str, Any]:
    result, key, below = dict(body), path[0], path[1:]
    if not below:
        result.pop(key, None) if edit.remove else result.update({key: edit.value})
        return result
    if edit.remove and key not in result:
        return result
    inner = result.get(key)
    edited = _edited(inner if isinstance(inner, Mapping) else {}, below, edit)
    if edited or not edit.remove:
        result[key] = edited
    else:
        del result[key]
    return result
