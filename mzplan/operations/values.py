"""Values of `${env:NAME}` references that a command has, for the runners of its own machine."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mzplan.model.state import State
from mzplan.schema.description import Description, references_of
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.handed import Handed
from mzplan.secrets.references import REFERENCE


def values_here(state: State) -> Handed:
    """What this process knows of the environment variables that a state refers to."""
    names = {
        match["name"]
        for address, resource in state.resources.items()
        for reference in resource_kind(address.kind, resource.type).secret_references(resource.body)
        if (match := REFERENCE.fullmatch(reference)) and match["provider"] == "env"
    }
    return Handed(values={name: os.environ[name] for name in sorted(names) if name in os.environ})


def whose_values(descriptions: Iterable[Description], handed: Handed) -> str:
    """With whose values a runner validates that was handed these: `, with PG_PASSWORD from here`."""
    references = {reference for description in descriptions for reference in references_of(description)}
    ours = [name for name in handed.values if f"${{env:{name}}}" in references]
    parts = [f"{', '.join(ours)} from here"] if ours else []
    if len(ours) < len(references):
        parts.append("its runner's values of the others" if ours else "its runner's values of secrets")
    return f", with {' and '.join(parts)}" if parts else ""
