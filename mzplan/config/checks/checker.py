"""Checks resources: each by itself, then together with the resources that it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast

from mzplan.config.checks.declared_columns import check_columns
from mzplan.config.checks.environment_copies import EnvironmentCopies
from mzplan.config.checks.expectations import check_expectations
from mzplan.config.checks.inlined_views import InlinedViews, is_inlined
from mzplan.config.checks.recorded_analyses import RecordedAnalyses, Records
from mzplan.config.checks.resource_references import (
    References,
    check_exclusive,
    check_lifecycle,
    check_reserved,
    check_side_by_side,
)
from mzplan.config.checks.schema_check import BodyCheck, SecretCheck
from mzplan.config.checks.sinks import check_sink
from mzplan.config.checks.sql_functions import SqlFunctions
from mzplan.config.defaults import Defaults
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.model.address import KINDS, MAX_NAME, Address, is_valid_name, natural
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import DEFAULT_INSTANCE, Instance, PropertyEdit, Resource, edited
from mzplan.model.words import did_you_mean, listed, shown
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.loading import is_type, types_of
from mzplan.schema.validators import is_valid


class TextFiles(Protocol):
    """Texts in files of their own, such as the SQL of views."""

    def fill_in(self, resources: Iterable[Declaration]) -> None:
        """Set the texts of resources that name a file. Without its text, a resource has no type."""


class Checker:
    """Checks declared resources, and turns valid ones into Resources.

    One mistake gives one error: checks that depend on a wrong part are skipped.
    """

    def __init__(
        self,
        declared: dict[Address, Declaration],
        instances: Mapping[str, Instance],
        findings: Findings,
        defaults: Defaults | None = None,
        texts: Sequence[TextFiles] = (),
        copies: EnvironmentCopies | None = None,
        records: Records = MappingProxyType({}),
        functions: SqlFunctions | None = None,
    ):
        """`texts`: what bodies have from files of their own. `records`: the records of the state; see
        RecordedAnalyses."""
        self.declared, self.instances, self.findings = declared, instances, findings
        self.defaults, self.texts = defaults, texts
        self.copies = copies
        self.functions = functions or SqlFunctions()
        self.references = References(declared, findings)
        self.analyses = RecordedAnalyses(declared, records)
        # The instance of a query that names none. The committed body names it.
        self.default_instance = next(iter(instances)) if len(instances) == 1 else DEFAULT_INSTANCE
        self.instance_names = sorted(instances)

    def resources(self) -> dict[Address, Resource]:
        """Check all resources, and return the valid ones. They are complete only if there are no findings."""
        # Find the types first, connections before sources and sinks, whose types follow from connections.
        for kind in KINDS:
            for address, resource in self.declared.items():
                if address.kind == kind:
                    self._type(resource)
        if self.defaults:
            self.defaults.fill_in(self.declared.values())
        for texts in self.texts:
            texts.fill_in(self.declared.values())
        if self.copies:
            self.copies.fill_in(self.declared)
            self.references.left_out = self.copies.left_out
        self.functions.fill_in(self.declared.values(), self.findings)
        inlined_in = self._derive_views()
        valid: list[Address] = []
        for address in sorted(self.declared, key=natural):
            resource = self.declared[address]
            self._name(resource)
            if resource.type is not None and self._body(resource):
                valid.append(address)
        inlined = InlinedViews(self.declared, self.findings)
        through = inlined.fill_in(valid) if len(valid) == len(self.declared) else {}
        for address in through:
            self.functions.refresh(self.declared[address])
        through |= inlined_in
        checked = {
            address: replace(self._resource(self.declared[address]), through=through.get(address, ()))
            for address in valid
            if not is_inlined(self.declared[address])
        }
        self.references.check_cycles()
        check_exclusive(checked, self.declared, self.findings)
        return checked

    def _derive_views(self) -> Mapping[Address, tuple[str, ...]]:
        """Fill in the views. Return, by relational view, the inlined views in its SQL."""
        if not any(address.is_view for address in self.declared):
            return {}
        from mzplan.config.checks.views import Views  # parses SQL

        views = Views(self.declared, self.findings, self.analyses, self.functions)
        views.derive()
        return views.through

    def _name(self, resource: Declaration) -> None:
        name = resource.address.name
        if is_valid_name(name):
            return
        self.findings.add(
            "MZ011.invalid-name",
            resource.location(),
            name=name,
            max_name=MAX_NAME,
            name_hint=_name_hint(name),
        )

    def _type(self, resource: Declaration) -> None:
        body, kind = resource.body, resource.address.kind
        if not isinstance(body, dict):
            self.findings.add(
                "MZ005.not-mapping", resource.location(), label=resource.label, kind_=kind, body=body
            )
        elif "type" in body:
            self._explicit_type(resource)
        elif kind == "connection":
            self._missing_type(resource)
        else:
            resource.type = self.references.type_from_connection(resource)

    def _missing_type(self, resource: Declaration) -> None:
        detail = f"{resource.label} needs a type: {listed(types_of('connection'))}."
        if self.references.report_misspelled(resource, ("type",), detail):
            return
        self.findings.add("MZ006.missing-key", resource.location(), why=detail)

    def _explicit_type(self, resource: Declaration) -> None:
        kind, type_ = resource.address.kind, resource.body["type"]
        try:
            if is_type(kind, type_):
                resource.type = type_
                return
        except MzplanError as broken:  # the plug-in that provides this type
            (why,) = broken.diagnostics
            self.findings.report(replace(why, address=resource.valid_address), resource.location(("type",)))
            return
        known = types_of(kind)
        self.findings.add(
            "MZ005.unknown-type",
            resource.location(("type",)),
            kind_=kind,
            type=type_,
            known=known,
            did_you_mean=did_you_mean(type_, known, shown),
        )

    def _body(self, resource: Declaration) -> bool:
        """Return whether the body conforms to its schema and passes the checks of a single resource."""
        before = self.findings.total
        name = f"{resource.address.kind}.{resource.type}"
        kind = resource_kind(resource.address.kind, cast(str, resource.type))
        wrong: set[Path] = set()
        if not is_valid(name, resource.body):
            check = BodyCheck(
                self.findings,
                resource.location,
                resource.label,
                kind.is_sensitive,
                partial(_other_type, resource, kind),
            )
            wrong = check.report(name, resource.body)
        self.references.check(resource, kind, wrong)
        SecretCheck(
            schema=kind.schema, owner=resource.label, locate=resource.location, findings=self.findings
        ).check(resource.body, wrong)
        check_reserved(resource, kind, self.findings)
        check_lifecycle(resource, self.declared, self.findings)
        self._instance(resource, wrong)
        check_columns(resource, kind, self.findings)
        if resource.address.writes_target and not wrong:
            check_sink(resource, self.declared, self.findings, self.functions)
        if resource.address.writes_collection and not wrong:
            check_expectations(resource, self.findings)
            check_side_by_side(resource, kind, self.findings)
        return self.findings.total == before

    def _instance(self, resource: Declaration, wrong: set[Path]) -> None:
        if resource.address.is_connection or ("instance",) in wrong:
            return
        name = resource.body.get("instance", self.default_instance)
        if name in self.instances:
            return
        explicit = "instance" in resource.body
        fault = f"runs on {shown(name)}, which isn't declared" if explicit else "names no instance"
        self.findings.add(
            "MZ012.unknown-instance" if explicit else "MZ012.no-instance",
            resource.location(("instance",) if explicit else ()),
            label=resource.label,
            fault=fault,
            instance_names=self.instance_names,
            fix=(self.findings.did_you_mean(name, self.instance_names) if explicit else "")
            or f"write `instance: {self.instance_names[0]}`, or add one under `instances:`.",
        )

    def _resource(self, resource: Declaration) -> Resource:
        kind = resource_kind(resource.address.kind, cast(str, resource.type))
        placed = {} if resource.address.is_connection else {"instance": self.default_instance}
        assumed = kind.assumed_values(resource.body)
        given = [PropertyEdit(path=path, value=value) for path, value in assumed.items()]
        return Resource(
            address=resource.address,
            type=kind.type,
            body=kind.normalise(edited({**placed, **resource.body}, given)),
            assumed=assumed,
            references={
                role: reference.address(name, self.declared)
                for role, reference, name in kind.references_in(resource.body)
            },
            path=resource.file.path,
            template=resource.template_name,
            analysis=self.analyses.digests.get(resource.address, ""),
        )


def _other_type(resource: Declaration, kind: ResourceKind, key: str) -> str:
    """Return the fix for a key that only another type of query on the same connection has; "" without one.

    A resource that sets its type has no such fix.
    """
    if "type" in resource.body:
        return ""
    used = {reference.property: reference.types for reference in kind.references}.get("connection")
    for other in types_of(kind.kind):
        properties = resource_kind(kind.kind, other).schema["properties"]
        if other != kind.type and key in properties:
            types = properties.get("connection", {}).get("x-reference-types", ())
            if set(types) & set(used or ()):
                return f"add `type: {other}`, which has this key (the default is {kind.type}); or remove it."
    return ""


def _name_hint(name: Any) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in str(name).lower()).strip("_")[
        :MAX_NAME
    ]
    return f"rename it, such as to {plain}." if is_valid_name(plain) else "rename it."
