"""Collects the resources that the files of a project declare, before they are checked."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from mzplan.config.defaults import Defaults
from mzplan.config.documents import Declaration, Document
from mzplan.config.findings import HERE, Findings, Location, kind_of, listed, shown
from mzplan.config.project_files import PROJECT_FILE, SECTIONS
from mzplan.config.templates import Templates
from mzplan.model.address import Address
from mzplan.model.words import did_you_mean
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import value_at


def collect(
    documents: Iterable[Document], findings: Findings, templates: Templates, defaults: Defaults
) -> dict[Address, Declaration]:
    """Return every declared resource, by address. Report malformed sections and duplicate names."""
    declared: dict[Address, Declaration] = {}
    for document in documents:
        for section, kind in SECTIONS.items():
            for name, body in _section(document, section, findings).items():
                resource = Declaration(Address(kind, name), body, document.file)
                if kind != "connection" and isinstance(body, dict) and "for_each" in body:
                    for expanded in templates.expand(resource):
                        _declare(expanded, declared, findings)
                    continue
                if document.repeats:
                    templates.check_written_out(resource)
                _declare(resource, declared, findings)
    defaults.fill_connections(declared.values())
    for resource in [r for r in declared.values() if r.address.is_query]:
        _extract_connection(resource, declared, findings)
    for resource in declared.values():
        if resource.address.is_connection and isinstance(resource.body, dict) and "defaults" in resource.body:
            defaults.extract(resource)
    defaults.fill_types(declared.values())
    return declared


def _declare(resource: Declaration, declared: dict[Address, Declaration], findings: Findings) -> None:
    first = declared.setdefault(resource.address, resource)
    if first is resource:
        return
    findings.add(
        "MZ003",
        f"{resource.label} is declared twice",
        f"It is also {first.origin} {HERE}.",
        "remove or rename one of them.",
        location=resource.own_location(),
        related=first.location(),
    )


def _extract_connection(
    resource: Declaration, declared: dict[Address, Declaration], findings: Findings
) -> None:
    """Turn a connection written inside a source or sink into a resource, such as `source_orders`.

    mzplan then plans, validates and records it like any other connection. Moving it to `connections:` later
    restarts nothing.
    """
    inline = value_at(resource.body, ("connection",))
    if not isinstance(inline, dict) or resource.valid_address is None:
        return
    kind, name = resource.address
    address = Address("connection", f"{kind}_{name}")
    location = resource.location(("connection",))
    implied = Declaration(address, inline, location.file, at=location.path)
    if location.path[:2] == resource.place[:2]:  # not from defaults
        implied.key, implied.template = resource.key, value_at(resource.template, ("connection",))
    first = declared.setdefault(address, implied)
    if first is not implied:
        findings.add(
            "MZ003",
            f"{implied.label} is declared twice",
            f"The connection written inside {resource.label} gets this name, which {HERE} also declares.",
            "rename the declared connection, or move the inner one to `connections:` under another name.",
            address=address,
            location=implied.location(at_key=True),
            related=first.location(),
        )
    resource.body = {**resource.body, "connection": address.name}


def _section(document: Document, section: str, findings: Findings) -> dict[str, Any]:
    data = document.data
    if not isinstance(data, dict):
        return {}
    entries = data.get(section)
    if entries is None:
        return {}
    if isinstance(entries, dict):
        return entries
    findings.add(
        "MZ005",
        f"Wrong type for {shown(section)}",
        f"Expected a mapping from names to {section}, found {kind_of(entries)}.",
        f"write a name under `{section}:`, and its keys indented below the name.",
        location=Location(document.file, (section,), at_key=True),
    )
    return {}


def has_only_variables(document: Document, variables: Container[str]) -> bool:
    """Return whether a file only has values of declared variables."""
    data = document.data
    return isinstance(data, dict) and bool(data) and all(k in variables and k not in SECTIONS for k in data)


def check_top_level(document: Document, variables: Container[str], findings: Findings) -> None:
    """Report each top-level key that isn't a section of resources, in a file other than mzplan.yaml.

    `variables`: the names of the declared variables.
    """
    data = document.data
    if data is None:
        return
    if not isinstance(data, dict):
        findings.add(
            "MZ005",
            "Not a configuration file",
            f"A YAML file in a project contains {listed(SECTIONS)}; found {kind_of(data)}.",
            "correct it, or move it out of the project's folder.",
            location=Location(document.file),
        )
        return
    for key in data:
        if key not in SECTIONS:
            is_setting = key in load_schema("project")["properties"]
            hint = f"move it to {PROJECT_FILE}." if is_setting else did_you_mean(key, SECTIONS, shown)
            if key in variables:
                hint = "if this file sets variables, name it *.vars.yaml, or pass it with --var-file."
            findings.add(
                "MZ004",
                f"Unknown key {shown(key)}",
                f"Top-level keys are: {listed(SECTIONS)}.",
                hint or "put it under one of these, or move the file out of the project's folder.",
                location=Location(document.file, (key,), at_key=True),
                conceal=True,
            )
