"""Collects the resources that the files of a project declare, before they are checked.

A source or sink with `for_each` is written once and declared for each key of a list or a mapping.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from mzplan.config.defaults import Defaults
from mzplan.config.documents import MAX_NODES, Declaration, Document, texts_in
from mzplan.config.expansion import MAX_MADE, Expansion, Key, Limits, TooMuchError
from mzplan.config.findings import Findings, Location
from mzplan.config.project_files import PROJECT_FILE, SECTIONS
from mzplan.config.references import EACH, MAX_FILLED
from mzplan.model.address import Address
from mzplan.model.words import did_you_mean, kind_of, scalar_text, shown
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import value_at


class Templates:
    """Expands all `for_each` of a project, within its limits."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.limits = Limits(findings)

    def expand(self, template: Declaration) -> list[Declaration]:
        """Return the resources that a declaration with `for_each` creates, and report mistakes.

        A key with a mistake creates no resource. After a mistake, references to undeclared resources aren't
        reported, because the `for_each` may declare them.
        """
        keys = self._keys(template)
        if keys is None:
            self.findings.is_incomplete = True
            return []
        before = self.findings.total
        try:
            resources = Expansion(self.limits, template, keys).resources()
        except TooMuchError:
            self._too_much(template, len(keys))
            resources = []
        if self.findings.total != before:
            self.findings.is_incomplete = True
        return resources

    def check_written_out(self, resource: Declaration) -> None:
        """Report a `${each…}` in a resource without `for_each`."""
        for path, text in texts_in(resource.body):
            if EACH in text:
                self.limits.check(text, resource.location(path))

    def _too_much(self, template: Declaration, keys: int) -> None:
        self.findings.add(
            "MZ007.each-makes",
            template.location(("for_each",), at_key=True),
            label=template.label,
            keys=keys,
            max_made=MAX_MADE,
            max_filled=MAX_FILLED,
            max_nodes=MAX_NODES,
        )

    def _keys(self, template: Declaration) -> list[Key] | None:
        """Return the keys; None if there is a mistake in them."""
        given, at = template.body["for_each"], template.location(("for_each",))
        if self.findings.is_unusable_below(at):
            return None
        before = self.findings.total
        for path, text in texts_in(given, ("for_each",)):
            if EACH in text:
                self.limits.check(text, template.location(path))
        if isinstance(given, dict):
            keys = [Key(key, value, key) for key, value in given.items()]
        elif isinstance(given, list):
            keys = [Key(scalar_text(item), item, index) for index, item in enumerate(given)]
            for index, item in enumerate(given):
                if item is None or isinstance(item, dict | list):
                    self._not_simple(template, index, item)
        else:
            self._no_keys(template, given, at)
            return None
        return keys if self.findings.total == before else None

    def _no_keys(self, template: Declaration, given: Any, location: Location) -> None:
        actual = f"{kind_of(given)} ({shown(given)})" if isinstance(given, str) else kind_of(given)
        self.findings.add("MZ251.each-needs", location, label=template.label, actual=actual)

    def _not_simple(self, template: Declaration, index: int, item: Any) -> None:
        self.findings.add(
            "MZ251.item-each", template.location(("for_each", index)), item=item, label=template.label
        )


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
        "MZ003.declared-twice",
        resource.own_location(),
        related=first.location(),
        label=resource.label,
        origin=first.origin,
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
            "MZ003.declared-twice-connection-written",
            implied.location(at_key=True),
            address=address,
            related=first.location(),
            implied_label=implied.label,
            label=resource.label,
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
        "MZ005.wrong-type-expected-mapping",
        Location(document.file, (section,), at_key=True),
        section=section,
        entries=entries,
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
        findings.add("MZ005.not-configuration", Location(document.file), sections=SECTIONS, data=data)
        return
    for key in data:
        if key not in SECTIONS:
            is_setting = key in load_schema("project")["properties"]
            hint = f"move it to {PROJECT_FILE}." if is_setting else did_you_mean(key, SECTIONS, shown)
            if key in variables:
                hint = "if this file sets variables, name it *.vars.yaml, or pass it with --var-file."
            findings.add(
                "MZ004.unknown-key-top-level",
                Location(document.file, (key,), at_key=True),
                conceal=True,
                key=key,
                sections=SECTIONS,
                how=hint,
            )
