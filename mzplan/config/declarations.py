"""Resources as declared: collected from every file, before anything is known to be right."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from mzplan.config.files import PROJECT_FILE, SECTIONS, SourceFile
from mzplan.config.findings import HERE, Findings, Location, Path
from mzplan.config.text import kind_of, listed, shown
from mzplan.config.yaml.builder import Document
from mzplan.model.address import Address, is_valid_name
from mzplan.model.suggestions import did_you_mean

_BY_KIND = {kind: section for section, kind in SECTIONS.items()}


@dataclass(slots=True)
class Declared:
    """A resource with its body as written. `type` is None where it can't be known. `inside`: the path of a
    connection that is written inside its only user."""

    address: Address
    body: Any
    file: SourceFile
    type: str | None = None
    inside: Path = ()

    @property
    def label(self) -> str:
        """The address as messages show it, whatever the name is."""
        return f"{self.address.kind}.{shown(self.address.name, quote=False)}"

    @property
    def valid_address(self) -> Address | None:
        return self.address if is_valid_name(self.address.name) else None

    def location(
        self, path: Path = (), at_key: bool = False, offset: int | None = None, length: int = 1
    ) -> Location:
        whole = (*(self.inside or (_BY_KIND[self.address.kind], self.address.name)), *path)
        return Location(self.file, whole, at_key or not path, offset, length, self.valid_address)


def value_at(body: Any, path: Path) -> Any:
    """The value at a path of keys; None where there is none."""
    for key in path:
        if not isinstance(body, dict):
            return None
        body = body.get(key)
    return body


def collect(documents: Iterable[Document], findings: Findings) -> dict[Address, Declared]:
    """Every declared resource, by address. Reports what isn't a resource, and a name that is there
    twice."""
    declared: dict[Address, Declared] = {}
    for document in documents:
        for section, kind in SECTIONS.items():
            for name, body in _section(document, section, findings).items():
                address = Address(kind, name)
                resource = Declared(address, body, document.file)
                first = declared.setdefault(address, resource)
                if first is not resource:
                    findings.add(
                        "MZ003",
                        f"{resource.label} is declared twice",
                        f"It is also declared at {HERE}.",
                        "remove or rename one of them.",
                        location=resource.location(),
                        related=first.location(),
                    )
    for resource in [r for r in declared.values() if r.address.kind != "connection"]:
        _take_out_inline(resource, declared, findings)
    return declared


def _take_out_inline(resource: Declared, declared: dict[Address, Declared], findings: Findings) -> None:
    """A connection that is written inside a source or sink becomes one of its own, `source_orders`: so it is
    planned, validated and kept in the state like any other, and moving it out is no change of what runs."""
    inline = value_at(resource.body, ("connection",))
    if not isinstance(inline, dict) or resource.valid_address is None:
        return
    kind, name = resource.address
    address = Address("connection", f"{kind}_{name}")
    implied = Declared(address, inline, resource.file, inside=(_BY_KIND[kind], name, "connection"))
    first = declared.setdefault(address, implied)
    if first is not implied:
        findings.add(
            "MZ003",
            f"{implied.label} is declared twice",
            f"The connection written inside {resource.label} has this name, and it is also at {HERE}.",
            "rename the other one, or declare this one under `connections:` too.",
            address=address,
            location=implied.location(at_key=True),
            related=first.location(),
        )
    resource.body = {**resource.body, "connection": address.name}


def _section(document: Document, section: str, findings: Findings) -> dict[str, Any]:
    data = document.data
    if not isinstance(data, dict):
        return {}
    found = data.get(section)
    if found is None:
        return {}
    if isinstance(found, dict):
        return found
    findings.add(
        "MZ005",
        f"Wrong type for {shown(section)}",
        f"Expected a mapping from names to {section}, found {kind_of(found)}.",
        f"write the name of each of the {section}, then its keys, indented, below it.",
        location=Location(document.file, (section,), at_key=True),
    )
    return {}


def is_of_variables(document: Document, variables: Container[str]) -> bool:
    """Whether a file gives values of (declared) variables, and declares nothing."""
    data = document.data
    return isinstance(data, dict) and bool(data) and all(k in variables and k not in SECTIONS for k in data)


def check_top_level(document: Document, variables: Container[str], findings: Findings) -> None:
    """A file other than mzplan.yaml holds connections, sources and sinks, and nothing else. `variables`: the
    names of those that are declared."""
    data = document.data
    if data is None:
        return
    if not isinstance(data, dict):
        findings.add(
            "MZ005",
            "Not a configuration file",
            f"Every YAML file of a project holds {listed(SECTIONS)}; found {kind_of(data)}.",
            "correct it, or move it out of the project's folder.",
            location=Location(document.file),
        )
        return
    for key in data:
        if key not in SECTIONS:
            settings = key in ("version", "project", "warehouse", "instances", "state", "variables")
            hint = f"move it to {PROJECT_FILE}." if settings else did_you_mean(key, SECTIONS, shown)
            if key in variables:
                hint = "if this is a file of variables, name it *.vars.yaml, or in --var-file."
            findings.add(
                "MZ004",
                f"Unknown key {shown(key)}",
                f"Top-level keys are: {listed(SECTIONS)}.",
                hint or "put it under one of these, or move the file out of the project's folder.",
                location=Location(document.file, (key,), at_key=True),
                conceal=True,
            )
