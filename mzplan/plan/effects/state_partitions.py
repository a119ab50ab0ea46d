"""A changed number of partitions of a view's state: some Sparks change it in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mzplan.model.observed import Status
from mzplan.model.plan import FieldChange
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import resource_kind


def with_partition_effects(
    fields: tuple[FieldChange, ...],
    before: ResourceState,
    after: ResourceState,
    statuses: Mapping[str, Status],
) -> tuple[FieldChange, ...]:
    """Return the field changes; other `partitions` restart a view whose state can be repartitioned.

    The Spark of the instance's runner decides, as the runner has last reported it (`x-repartitions`). A view
    that moves to another instance is replaced.
    """
    properties = resource_kind(after.address.kind, after.type).schema["properties"]
    names = {name for name, schema in properties.items() if "x-repartitions" in schema}
    if names.isdisjoint(field.path for field in fields) or before.instance != after.instance:
        return fields
    status = statuses.get(after.instance)
    if status is None or status.versions is None:
        return fields

    from mzplan.host.spark_lines import repartitions_state  # its importlib.metadata starts slowly

    if not repartitions_state(status.versions.spark):
        return fields
    return tuple(replace(field, effect="restart") if field.path in names else field for field in fields)
