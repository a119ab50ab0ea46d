"""What of mzplan.yaml changes for runners: they do what is committed, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.model.durations import shortest
from mzplan.model.plan import FieldChange
from mzplan.model.resources import Instance, RunnerSettings
from mzplan.model.state import State

Instances = Mapping[str, Instance]
_SECRET = "lineage.api_key"


def settings_changes(
    state: State, settings: RunnerSettings | None, instances: Instances
) -> tuple[FieldChange, ...]:
    """The leaves in which these differ from the state's, by their places in mzplan.yaml, sorted. `settings`:
    None for those of the state. Instances count only once some are committed."""
    now = state.settings or RunnerSettings()
    before = _leaves(now, state.instances if state.serial else {})
    after = _leaves(settings or now, instances if state.serial else {})
    return tuple(
        FieldChange(
            path=path,
            before=None if path == _SECRET else before.get(path),
            after=None if path == _SECRET else after.get(path),
            sensitive=path == _SECRET,
            effect="in-place",
        )
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _leaves(settings: RunnerSettings, instances: Instances) -> dict[str, Any]:
    retries, events = settings.retries, settings.run_events
    found: dict[str, Any] = {
        "retain_dropped": shortest(settings.retain_dropped),
        "retries.first": shortest(retries.first),
        "retries.last": shortest(retries.last),
        "retries.budget": retries.budget,
        "lineage.url": events.url or None,
        _SECRET: events.api_key or None,
        "lineage.timeout": shortest(events.timeout),
        "lineage.interval": shortest(events.interval),
        "lineage.namespace": events.namespace or None,
    }
    for name, instance in instances.items():
        found[f"instances.{name}.type"] = instance.type
    for name, place in settings.metrics.items():
        found[f"instances.{name}.metrics.host"] = place.host
        found[f"instances.{name}.metrics.port"] = place.port
    return found
