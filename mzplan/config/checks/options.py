"""Checks that a JSON Schema can't express: secrets, lifecycle, options that are mzplan's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.config.declarations import Declared
from mzplan.config.findings import Findings
from mzplan.config.text import LIKE_A_REFERENCE, shown
from mzplan.model.address import Address, is_valid_name
from mzplan.schema.kinds import ResourceKind
from mzplan.secrets.references import is_reference


def check_secrets(resource: Declared, kind: ResourceKind, findings: Findings) -> None:
    """A sensitive property holds a secret reference, never the secret."""
    if resource.address.kind != "connection":
        return
    for path, value in _leaves(resource.body):
        if not kind.is_sensitive(path) or is_reference(value):
            continue
        if not isinstance(value, str):
            continue  # the schema check reports its type
        if not LIKE_A_REFERENCE.fullmatch(value):
            findings.secrets.add(value)
        name = str(path[-1]).upper().replace(".", "_")
        findings.add(
            "MZ016",
            f"Secret written out in {shown(str(path[-1]))}",
            f"{resource.label}: files are shared and kept in history, so a secret in them is no secret.",
            f"write a reference, as ${{env:{name}}} or ${{file:PATH}}, "
            "and change the secret if this file was shared.",
            location=resource.location(path),
            conceal=True,
        )


def check_lifecycle(resource: Declared, declared: Mapping[Address, Declared], findings: Findings) -> None:
    """`moved_from` names what is no more."""
    lifecycle = resource.body.get("lifecycle")
    former = lifecycle.get("moved_from") if isinstance(lifecycle, dict) else None
    if not isinstance(former, str):
        return
    location = resource.location(("lifecycle", "moved_from"))
    if not is_valid_name(former):
        findings.add(
            "MZ011",
            f"Invalid name {shown(former)}",
            f"{resource.label}: moved_from is the former name, without its kind.",
            "write the name alone.",
            location=location,
        )
    elif Address(resource.address.kind, former) in declared:
        findings.add(
            "MZ020",
            "moved_from names a resource that is still declared",
            f"{resource.label} can't take over the checkpoint of {resource.address.kind}.{former}, "
            "which is declared itself.",
            "remove moved_from, or the resource that it names.",
            location=location,
        )


def check_reserved(resource: Declared, kind: ResourceKind, findings: Findings) -> None:
    """Options that are passed through as they are leave alone what mzplan sets itself (`x-reserved`)."""
    for name, schema in kind.schema["properties"].items():
        given = resource.body.get(name)
        for key in given if isinstance(given, dict) else ():
            reason = schema.get("x-reserved", {}).get(key)
            if reason is not None:
                findings.add(
                    "MZ020",
                    f"{shown(key)} can't be set here",
                    f"{resource.label}: {reason}.",
                    "remove it.",
                    location=resource.location((name, key), at_key=True),
                )


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value
