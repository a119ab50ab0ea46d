"""Configuration: the declared resources and settings, typed and normalised."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.diagnostics import SourceRange
from mzplan.model.stored import KEY, OPTIONAL, SPARSE, InstanceName, Port, Positive, Seconds, Wait, stored

# JSON-like: str, int, float, bool, None, list, dict. Never mutated once a resource holds it.
Body = Mapping[str, Any]
InstanceType = Literal["embedded", "dry", "cluster"]
DEFAULT_INSTANCE = "local"

STATE_CONFIG_VARIABLE = "MZPLAN_STATE_CONFIG"  # the file that `state:` is read from
ENVIRONMENT_VARIABLE = "MZPLAN_ENV"  # the environment that a command works on


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A Spark application that hosts streaming queries (the storage instance of seed 004)."""

    name: InstanceName = field(metadata=KEY)
    type: InstanceType


def is_dry(instances: Mapping[str, Instance], name: str) -> bool:
    """Whether an instance is dry: it only pretends to run its queries."""
    return name in instances and instances[name].type == "dry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A declared connection, source, view or sink.

    - `body`: normalised, exactly as the state will hold it. Variables are filled in, default values left out,
      keys sorted. Connections appear by name and secrets as references.
    - `references`: maps the property that refers (`"connection"`, `"from"`) to the resource it refers to.
    - `assumed`: by path, values in the body that the file doesn't mention (`x-assumed`).
    - `template`: the `for_each` that generates the resource, such as `sources.shop`; "" if it is written out.
    - `through`: the views that the file names as inputs and whose SQL is inlined (`materialize: false`).
    - `analysis`: see ResourceState.
    """

    address: Address
    type: str
    body: Body
    references: Mapping[str, Address] = field(default_factory=dict)
    path: str | None = None  # the file that declares it; the exact range is looked up when needed
    assumed: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    template: str = ""
    through: tuple[str, ...] = ()
    analysis: str = ""

    @property
    def instance(self) -> str:
        return str(self.body.get("instance", DEFAULT_INSTANCE))

    @property
    def paused(self) -> bool:
        return bool(self.body.get("paused", False))


def inlined_view(address: Address, resources: Mapping[Address, Resource]) -> tuple[str, str] | None:
    """Return detail and hint for the address of a view without a query; None for any other address.

    `resources`: the configuration's, which has no views with `materialize: false`.
    """
    readers = [str(a) for a, r in resources.items() if address.kind == "view" and address.name in r.through]
    if not readers or address in resources:
        return None
    detail = (
        f"It says materialize: false, so it has no query. Its SQL is part of {', '.join(sorted(readers))}."
    )
    return detail, "name a query that has its SQL."


def start_command(instance: Instance, environment: str = "") -> str:
    """Return the command that starts a runner, such as `mzplan --env prod run --instance big`."""
    which = f" --env {shlex.quote(environment)}" if environment else ""
    run = "up" if instance.type == "embedded" else f"run --instance {shlex.quote(instance.name)}"
    return f"mzplan{which} {run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How failed queries are retried.

    The backoff starts at `first` seconds and doubles up to `last`. After `budget` failures in a row, the
    runner stops retrying (None: never), until the query is changed or `mzplan restart` asks for it.
    """

    first: Wait = 1.0
    last: Wait = 60.0
    budget: Positive | None = None

    def wait(self, failures: int) -> float:
        """Return the seconds to wait after so many failures; infinity if the query is given up."""
        return math.inf if self.gives_up(failures) else self.delay(failures)

    def gives_up(self, failures: int) -> bool:
        """Whether these are too many failures in a row."""
        return self.budget is not None and failures >= self.budget

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures, whatever the budget.

        A query may return to its previous description even after its retries are used up.
        """
        return min(self.last, self.first * 2.0 ** max(0, min(failures, 16) - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPlace:
    """Where a runner serves `/metrics` and `/healthz`."""

    port: Port
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEventSettings:
    """The OpenLineage server that a runner sends run events to.

    - `url`: "" if only the runner's environment may name a server.
    - `api_key`: a secret reference, or "".
    - `timeout`: seconds to wait for an answer.
    - `interval`: seconds between two events of a run in progress.
    - `namespace`: of the jobs; "" for the project's name.
    """

    url: str = ""
    api_key: str = ""
    timeout: Wait = 5.0
    interval: Wait = 300.0
    namespace: str = ""


Topic = Literal["failed", "drift", "applied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook for notifications. `url`: a secret reference. `on`: the topics that it is told."""

    url: str
    on: tuple[Topic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """The settings in mzplan.yaml for runners, which take effect when they are committed.

    The location of the state isn't one of them: a runner must know it before it can read the state.

    - `retain_dropped`: for how many seconds dropped storage is kept.
    - `survive_store_outage`: for how many seconds queries continue while the store doesn't answer.
    - `metrics`: where each instance serves its metrics, by instance.
    """

    retain_dropped: Seconds = 7 * 86_400.0
    survive_store_outage: Seconds = field(default=3600.0, metadata=OPTIONAL)
    retries: Retries = Retries()
    metrics: Mapping[InstanceName, MetricsPlace] = field(default_factory=dict)
    run_events: RunEventSettings = field(
        default=RunEventSettings(), metadata=stored("lineage", optional=True)
    )
    notify: tuple[Webhook, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The desired state: the project's settings, and its resources by address.

    - `warehouse`: the URI as written. A relative path is relative to the project's folder.
    - `variables`: the values that resources were filled in with, without defaults.
    """

    project: str
    warehouse: str
    instances: Mapping[str, Instance]
    resources: Mapping[Address, Resource]
    variables: Mapping[str, Any] = field(default_factory=dict)
    settings: RunnerSettings = field(default_factory=RunnerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """The settings in mzplan.yaml. Commands that need only the store read no other file.

    - `runner`: a runner's settings until a state has them.
    - `variables`: the values that the file was filled in with, without defaults (also those of the
      environment).
    - `variant`: tells apart the project's states in different environments or with different variables; "" if
      there is one state.
    - `environment`: which of the `environments` is used; "" if the project declares none.
    - `state_config`: the absolute path of the file with the `state` settings, if it isn't mzplan.yaml; else
      "".
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
    state_config: str = ""  # the absolute path of the file with the `state` settings, if it isn't mzplan.yaml

    @property
    def title(self) -> str:
        """The project's name for people: `shop`, or `shop (prod)`."""
        return f"{self.project} ({self.environment})" if self.environment else self.project

    @property
    def state_directory(self) -> str:
        """The folder that paths and file references in `state` are relative to."""
        return str(Path(self.state_config).parent) if self.state_config else self.directory


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyEdit:
    """A property to set, or to remove (`remove`) so that its default applies.

    The repr leaves the value out, because somebody may have put a secret there.
    """

    path: tuple[str, ...]
    remove: bool = False
    value: Any = field(default=None, repr=False)


def edited(body: Mapping[str, Any], edits: Iterable[PropertyEdit]) -> dict[str, Any]:
    """Return an edited copy of a body. Also removes a mapping that a removal leaves empty."""
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
