"""The check of bodies that no file holds: what is committed, with an edit of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mzplan.config.checks.checker import Checker
from mzplan.config.declared import Declared
from mzplan.config.findings import Findings, Path, SourceFile
from mzplan.config.locations import diagnose
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import Instance, Resource

Mistake = tuple[Diagnostic, Path]


def check_bodies(
    bodies: Mapping[Address, Mapping[str, Any]], instances: Mapping[str, Instance]
) -> tuple[dict[Address, Resource], list[Mistake]]:
    """The resources of these bodies, checked exactly as declared ones are, and every mistake: a diagnostic
    without a range, and the path in the body of its address. The resources are complete only without
    mistakes."""
    nowhere = SourceFile("", "")
    declared = {address: Declared(address, dict(body), nowhere) for address, body in bodies.items()}
    findings = Findings()
    resources = Checker(declared, instances, findings).resources()
    mistakes = []
    for finding in findings.found:
        one = Findings()
        one.secrets = findings.secrets
        one.found.append(dataclasses.replace(finding, location=None, related=None))
        path = finding.location.path[2:] if finding.location is not None else ()
        mistakes += [(diagnostic, path) for diagnostic in diagnose(one)]
    return {a: dataclasses.replace(r, path=None) for a, r in resources.items()}, mistakes
