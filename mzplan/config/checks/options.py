"""Checks that a JSON Schema can't express: lifecycle, options that are mzplan's own."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.config.declared import Declared
from mzplan.config.findings import Findings, shown
from mzplan.model.address import Address, is_valid_name
from mzplan.model.words import did_you_mean
from mzplan.schema.kinds import ResourceKind


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
    """Options that are passed through as they are leave alone what mzplan sets itself (`x-reserved`), and are
    among those that can do no harm (`x-allowed`)."""
    for name, schema in kind.restricted:
        given = resource.body.get(name)
        allowed = schema.get("x-allowed")
        for key in given if isinstance(given, dict) else ():
            reason = schema.get("x-reserved", {}).get(key)
            if reason is None and allowed is not None and key not in allowed:
                findings.add(
                    "MZ113",
                    f"The option {shown(str(key))} is not let through",
                    f"{resource.label}: options of a client can load classes, read files and send what "
                    "they read to any server, so only those are passed on that are known to tune it.",
                    did_you_mean(key, allowed, shown)
                    or "remove it; the connectors' page lists what can be set.",
                    location=resource.location((name, key), at_key=True),
                )
            elif reason is not None:
                findings.add(
                    "MZ020",
                    f"{shown(key)} can't be set here",
                    f"{resource.label}: {reason}.",
                    "remove it.",
                    location=resource.location((name, key), at_key=True),
                )
