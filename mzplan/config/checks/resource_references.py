"""Checks that references between resources lead to resources of the right type and form no cycle.

Also checks that no two sources read an upstream that only one source can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from mzplan.config.documents import Declaration
from mzplan.config.findings import HERE, Findings, Path
from mzplan.model.address import COLLECTIONS, KINDS, Address, Kind, is_valid_name, natural
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Resource
from mzplan.model.state import runs_beside
from mzplan.model.words import did_you_mean, listed, nearest, shown
from mzplan.schema.kinds import Reference, ResourceKind, default_type, resource_kind
from mzplan.schema.loading import types_of

CONNECTION = Reference("connection", ("connection",), ())
FROM = Reference("from", COLLECTIONS, ())


class References:
    """The references of all declared resources."""

    def __init__(self, declared: Mapping[Address, Declaration], findings: Findings):
        self.declared, self.findings = declared, findings
        self.edges: dict[Address, list[tuple[Path, Address]]] = {}
        self.reported: set[tuple[Address, Path]] = set()  # referring resource and property
        self.suggested: dict[tuple[tuple[Kind, ...], str], str | None] = {}
        self.names: dict[tuple[Kind, ...], list[str]] = {}  # declared names by kinds, sorted
        self.candidates: dict[Reference, str] = {}  # names of resources with the right type, for messages
        self.left_out: Set[Address] = frozenset()  # declared, but not part of the chosen environment

    def type_from_connection(self, resource: Declaration) -> str | None:
        """Return the type of a source or sink that sets none; it follows from the connection.

        Returns None if the type isn't known, after reporting why.
        """
        kind, name = resource.address.kind, resource.body.get("connection")
        if "connection" not in resource.body:
            if (default := default_type(kind, resource.body)) is not None:
                return default
            detail = f"{resource.label} needs a connection, or a type that needs none."
            if self.report_misspelled(resource, ("connection", "type"), detail):
                return None
            others = [t for t in types_of(kind) if not _needs_connection(kind, t)]
            others = [t for t in others if resource_kind(kind, t).environment_property is None]
            also = f", or a type that needs none: {listed(others)}" if others else ""
            self.findings.add(
                "MZ006.missing-key-connection",
                resource.location(),
                label=resource.label,
                also=also,
                other_type=f", or `type: {others[0]}`." if others else ".",
            )
        elif not isinstance(name, str):
            self.findings.add("MZ005.no-connection", resource.location(("connection",)), name=name)
        connection = self._target(resource, CONNECTION)
        if connection is None or connection.type is None:
            self._target(resource, FROM)  # its other properties can't be checked without a type
            return None
        type_ = resource_kind("connection", connection.type).query_type(kind)
        if type_ is None:
            able = [t for t in types_of("connection") if resource_kind("connection", t).query_type(kind)]
            self.findings.add(
                "MZ013.cannot-use",
                resource.location(("connection",)),
                kind_=kind,
                name=name,
                type=connection.type,
                able=able,
            )
        return type_

    def report_misspelled(self, resource: Declaration, words: Iterable[str], detail: str) -> bool:
        """Report the first key that probably should be one of these words; return whether there is one."""
        kind = resource.address.kind
        known = {key for t in types_of(kind) for key in resource_kind(kind, t).schema["properties"]}
        for word in words:
            key = nearest(word, (key for key in resource.body if key not in known))
            if key is not None:
                self.findings.add(
                    "MZ004.unknown-key",
                    resource.location((key,), at_key=True),
                    key=key,
                    why=detail,
                    word=word,
                )
                return True
        return False

    def check(self, resource: Declaration, kind: ResourceKind, wrong: set[Path]) -> None:
        """Check the references that the resource's schema names."""
        for role, reference, name in kind.references_in(resource.body):
            path = path_of(role)
            if path[:1] in wrong:
                continue
            target = self._find(resource, reference, name, path)
            if target is None:
                continue
            self.edges.setdefault(resource.address, []).append((path, target.address))
            if reference.types and target.type is not None and target.type not in reference.types:
                self._report_type(resource, reference, target, path)

    def check_cycles(self) -> None:
        """Report every cycle once, at the first resource in it."""
        graph = DependencyGraph({a: [target for _, target in edges] for a, edges in self.edges.items()})
        for cycle in graph.cycles():
            first = self.declared[cycle[0]]
            path = next(path for path, target in self.edges[cycle[0]] if target == cycle[1 % len(cycle)])
            self.findings.add(
                "MZ014.resources-refer", first.location(path), cycle=" → ".join(map(str, [*cycle, cycle[0]]))
            )

    def _target(self, resource: Declaration, reference: Reference) -> Declaration | None:
        name, path = resource.body.get(reference.property), (reference.property,)
        return self._find(resource, reference, name, path) if isinstance(name, str) else None

    def _find(self, resource: Declaration, reference: Reference, name: str, path: Path) -> Declaration | None:
        target = self.declared.get(reference.address(name, self.declared))
        # A file that couldn't be read may declare the target.
        if (
            target is None
            and not self.findings.is_incomplete
            and (resource.address, path) not in self.reported
        ):
            self.reported.add((resource.address, path))
            self._report_unknown(resource, reference, name, path)
        return target

    def _report_unknown(self, resource: Declaration, reference: Reference, name: str, path: Path) -> None:
        near = self._nearest(reference.kinds, name)
        other = next((k for k in KINDS if Address(k, name) in self.declared), None)
        if any(Address(kind, name) in self.left_out for kind in reference.kinds):
            self.findings.add("MZ390.of-itself", resource.location(path), label=resource.label, name=name)
            return
        hint, related = f"declare it under {' or '.join(f'`{kind}s:`' for kind in reference.kinds)}.", None
        if near is not None:
            hint = f'did you mean "{near}" ({HERE})?'
            related = self.declared[reference.address(near, self.declared)].location()
        elif other is not None:
            hint = f"{other}.{name} is a {other} ({HERE}); name a {reference.words()}."
            related = self.declared[Address(other, name)].location()
        self.findings.add(
            "MZ012.unknown",
            resource.location(path),
            related=related,
            words=reference.words(),
            label=resource.label,
            name=name,
            how=hint,
        )

    def _nearest(self, kinds: tuple[Kind, ...], name: str) -> str | None:
        if (kinds, name) not in self.suggested:
            if kinds not in self.names:
                self.names[kinds] = sorted(a.name for a in self.declared if a.kind in kinds)
            self.suggested[kinds, name] = self.findings.nearest(name, self.names[kinds])
        return self.suggested[kinds, name]

    def _report_type(
        self, resource: Declaration, reference: Reference, found: Declaration, path: Path
    ) -> None:
        if reference not in self.candidates:
            self.candidates[reference] = listed(
                sorted(
                    (
                        address.name
                        for address, other in self.declared.items()
                        if address.kind in reference.kinds and other.type in reference.types
                    ),
                    key=natural,
                )
            )
        candidates = self.candidates[reference]
        self.findings.add(
            "MZ013.wrong-type" if candidates else "MZ013.wrong-type-type-needs",
            resource.location(path),
            words=reference.words(),
            label=resource.label,
            type=resource.type,
            types=reference.types,
            found_label=found.label,
            found_type=found.type,
            candidates=candidates,
        )


def path_of(role: str) -> Path:
    """Return the path of the property that holds a reference: `("reads", 0)` for the role `"reads[0]"`."""
    property_, _, index = role.removesuffix("]").partition("[")
    return (property_, int(index)) if index else (property_,)


def _needs_connection(kind: Kind, type_: str) -> bool:
    return "connection" in resource_kind(kind, type_).schema["properties"]


def check_exclusive(
    checked: Mapping[Address, Resource], declared: Mapping[Address, Declaration], findings: Findings
) -> None:
    """Report MZ020 for a source with the same exclusive upstream as another source (`x-exclusive`).

    An example is a replication slot: rows that one source has read are gone for the other. Connections with
    equal settings for the server lead to one server.
    """
    first: dict[Any, Address] = {}
    for address, resource in checked.items():
        link = checked.get(resource.references["connection"]) if "connection" in resource.references else None
        if not address.reads_upstream or link is None:
            continue
        for name, schema in resource_kind("source", resource.type).schema["properties"].items():
            value = resource.body.get(name)
            if value is None or "x-exclusive" not in schema:
                continue
            connection = resource_kind("connection", link.type).with_defaults(link.body)
            server = tuple(connection.get(property_) for property_ in schema["x-exclusive"])
            other = first.setdefault((link.type, *server, name, value), address)
            if other == address:
                continue
            findings.add(
                "MZ020.two-sources",
                declared[address].location((name,)),
                related=declared[other].location((name,)),
                name=name,
                value=value,
                other=other,
            )


def check_lifecycle(
    resource: Declaration, declared: Mapping[Address, Declaration], findings: Findings
) -> None:
    """Check that `moved_from` names an address that is no longer declared."""
    lifecycle = resource.body.get("lifecycle")
    former = lifecycle.get("moved_from") if isinstance(lifecycle, dict) else None
    if not isinstance(former, str):
        return
    location = resource.location(("lifecycle", "moved_from"))
    if not is_valid_name(former):
        findings.add("MZ011.invalid-name-moved-former", location, former=former, label=resource.label)
    elif Address(resource.address.kind, former) in declared:
        findings.add(
            "MZ020.moved-names", location, label=resource.label, kind_=resource.address.kind, former=former
        )


def check_side_by_side(resource: Declaration, kind: ResourceKind, findings: Findings) -> None:
    """Report MZ413 for a source whose generations would share an object of its upstream (`x-exclusive`)."""
    if not runs_beside(resource.address, resource.body):
        return
    for name, schema in kind.schema["properties"].items():
        if "x-exclusive" in schema and name in resource.body:
            location = resource.location((name,))
            value = resource.body[name]
            findings.add("MZ413.shared-object", location, label=resource.label, name=name, value=value)


def check_reserved(resource: Declaration, kind: ResourceKind, findings: Findings) -> None:
    """Check that passed-through options aren't set by mzplan itself (`x-reserved`), and are harmless
    (`x-allowed`)."""
    for name, key, reason in kind.refused_keys(resource.body):
        location = resource.location((name, key), at_key=True)
        if reason:
            findings.add("MZ020.reserved-option", location, key=key, label=resource.label, reason=reason)
        else:
            near = did_you_mean(key, kind.schema["properties"][name]["x-allowed"], shown)
            findings.add("MZ020.client-option", location, key=key, label=resource.label, near=near)
