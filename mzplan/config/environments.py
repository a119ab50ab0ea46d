"""`environments:`: one configuration that runs in several places. Each command works on one of them.

An entry's `state`, `warehouse` and `instances` replace the project's. mzplan reads the chosen entry like
any other setting. It only checks the other entries, each with its own values of variables; a missing value
isn't an error there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.config.documents import Declaration, Document, containers_below, texts_in
from mzplan.config.findings import Findings, Location, Path
from mzplan.config.places import StorageLocation, places_of
from mzplan.config.references import substitute
from mzplan.config.variables import Variables, defaults_of, report_undeclared
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.words import did_you_mean, shown
from mzplan.schema.kinds import default_type, resource_kind

SECTION = "environments"
OWN = ("warehouse", "instances", "state")  # settings of an entry that replace the project's
MAX_ENVIRONMENTS = 100  # as the schema says
Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment that a command works on.

    - `name`: "" in a project without environments. `names`: the names of all entries.
    - `state_at`: the path in mzplan.yaml of the state's location.
    """

    name: str = ""
    names: tuple[str, ...] = ()
    variables: Body = field(default_factory=dict)
    state_at: Path = ("state",)


NONE = Environment()


@dataclass(frozen=True, slots=True)
class OtherEnvironments:
    """The environments that weren't chosen: by name, the state and warehouse of each.

    If variables have values from outside, there are two readings: with these values, and without.
    """

    readings: tuple[Mapping[str, Body], ...] = ()


def choose(document: Document, named: str, findings: Findings) -> Environment:
    """Return the entry of this name, or the default entry. Raises MzplanError MZ245 (usage) if there is
    none."""
    entries = entries_of(document.data)
    if not entries:
        if named and not (isinstance(document.data, dict) and SECTION in document.data):
            raise error("MZ245.none-declared", name=named)
        return NONE
    defaults = [name for name, body in entries.items() if body.get("default") is True]
    for name in defaults[1:]:
        findings.add(
            "MZ245.two-environments",
            Location(document.file, (SECTION, name, "default")),
            related=Location(document.file, (SECTION, defaults[0], "default")),
            other_default=defaults[0],
            name=name,
        )
    chosen = named or next(iter(defaults), "")
    if chosen not in entries:
        example = shlex.quote(next(iter(entries)))
        if not named:
            raise error("MZ245.none-chosen", entries=entries, example=example)
        near = did_you_mean(named, entries, shown)
        raise error(
            "MZ245.near" if near else "MZ245.unknown", name=named, entries=entries, near=near, example=example
        )
    own = "state" in entries[chosen]
    return Environment(
        name=chosen,
        names=tuple(entries),
        variables=variables_of(entries[chosen]),
        state_at=(SECTION, chosen, "state") if own else ("state",),
    )


def entries_of(data: Any) -> dict[str, dict[str, Any]]:
    """Return the well-formed entries of a file."""
    section = data.get(SECTION) if isinstance(data, dict) else None
    if not isinstance(section, dict) or len(section) > MAX_ENVIRONMENTS:
        return {}
    return {str(name): body if isinstance(body, dict) else {} for name, body in section.items()}


def variables_of(entry: Body) -> dict[str, Any]:
    """Return the values that an entry gives to variables."""
    given = entry.get("variables")
    named_values = given.items() if isinstance(given, dict) else ()
    return {name: value for name, value in named_values if isinstance(value, str | int | float)}


def settings_in(body: Body, name: str) -> dict[str, Any]:
    """Return the settings of an environment; "" for a project without environments."""
    entry = entries_of(body).get(name, {})
    return {**body, **{key: entry[key] for key in OWN if key in entry}}


def fill_other_entries(
    document: Document, chosen: Environment, variables: Variables, findings: Findings
) -> OtherEnvironments:
    """Replace the entries that weren't chosen by copies with their own variables filled in.

    Otherwise they would get the chosen entry's values. Report values for undeclared variables.
    """
    data, entries = document.data, entries_of(document.data)
    if not chosen.name:
        return OtherEnvironments()
    for name, entry in entries.items():
        for variable in variables_of(entry).keys() - variables.declared.keys():
            location = Location(document.file, (SECTION, name, "variables", variable), at_key=True)
            report_undeclared(variable, variables, findings, location, conceal=True)
    outside = variables.outside
    readings = tuple(
        {
            name: _substitute(
                {key: entry.get(key, data.get(key)) for key in ("state", "warehouse")},
                defaults_of(variables.declared, variables_of(entry)) | given,
            )
            for name, entry in entries.items()
            if name != chosen.name
        }
        for given in ([outside, {}] if outside else [{}])
    )
    copies = {
        name: _without_unknown(entry, defaults_of(variables.declared, variables_of(entry)) | outside)
        for name, entry in entries.items()
        if name != chosen.name and isinstance(data[SECTION][name], dict)
    }
    own = {key: value for key, value in entries[chosen.name].items() if key != "variables"}
    used_elsewhere = containers_below([own, *(value for key, value in data.items() if key != SECTION)])
    only_in_others = containers_below([data[SECTION]]) - used_elsewhere - {id(entries[chosen.name])}
    document.references = [
        reference for reference in document.references if id(reference[0]) not in only_in_others
    ]
    data[SECTION] = {**data[SECTION], **copies}  # the schema check reports anything but a mapping
    return OtherEnvironments(readings)


def copy_sources(
    document: Document, chosen: str, declared: dict[Address, Declaration], findings: Findings
) -> None:
    """Let each source that the chosen environment lists read another environment's collection.

    Its keys for an upstream go: the connection, the format and others that the new type doesn't have. A
    connection that only such sources use isn't part of this environment.
    """
    sources = entries_of(document.data).get(chosen, {}).get("sources")
    named: set[str] = set()
    for name, entry in sources.items() if isinstance(sources, dict) else ():
        place = (SECTION, chosen, "sources", name)
        resource = declared.get(Address("source", name))
        if resource is None:
            names = sorted(address.name for address in declared if address.kind == "source")
            findings.add(
                "MZ390.declares-none",
                Location(document.file, place, at_key=True),
                name=name,
                environment=chosen,
                near=findings.did_you_mean(name, names),
            )
        elif isinstance(entry, dict) and isinstance(resource.body, dict):
            named |= _names_in(resource.body)
            property_ = _copy_source(resource, document, place, entry)
            if property_ and entry.get(property_) == chosen:
                location = Location(document.file, (*place, property_))
                findings.add("MZ390.own", location, label=resource.label, name=chosen)
    _leave_out(named, declared)


def _copy_source(resource: Declaration, document: Document, place: Path, entry: Body) -> str | None:
    """Replace a source's keys by those of an entry. Return the property that names the other environment."""
    type_ = default_type(resource.address.kind, entry)
    kind = resource_kind(resource.address.kind, type_) if type_ else None
    known = kind.schema["properties"] if kind else {}
    kept = {
        key: value
        for key, value in resource.body.items()
        if key in known and key not in ("type", *entry) and not known[key].get("x-derived")
    }
    resource.own = kept
    resource.body = {**kept, **entry}
    resource.given = (*resource.given, (document.file, place, entry))
    return kind.environment_property if kind else None


def _leave_out(names: set[str], declared: dict[Address, Declaration]) -> None:
    """Remove the connections with these names, and those that they use, unless another resource uses them."""
    while names:
        used = set[str]().union(*(_names_in(resource.body) for resource in declared.values()))
        unused = [Address("connection", name) for name in names - used]
        removed = [declared.pop(address) for address in unused if address in declared]
        names = set[str]().union(*(_names_in(resource.body) for resource in removed))


def _names_in(body: Any) -> set[str]:
    """Return the texts in a body, as far as they can be the name of a connection."""
    values = [value for key, value in body.items() if key != "type"] if isinstance(body, dict) else []
    return {text for value in values for _, text in texts_in(value)}


def _without_unknown(entry: Body, values: Body) -> dict[str, Any]:
    """Return a copy of an entry without the settings whose variables have no value."""
    filled = {key: _substitute(entry[key], values) for key in OWN if key in entry}
    return {
        key: filled.get(key, value)
        for key, value in entry.items()
        if not any("${var." in text for _, text in texts_in(filled.get(key)))
    }


def _substitute(value: Any, values: Body, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy with each variable filled in that has a value.

    A value that aliases repeat is copied once.
    """
    memo = {} if memo is None else memo
    if isinstance(value, str):
        return substitute(value, values) if "${" in value else value
    if not isinstance(value, dict | list):
        return value
    if id(value) not in memo:
        memo[id(value)] = (
            {key: _substitute(inner, values, memo) for key, inner in value.items()}
            if isinstance(value, dict)
            else [_substitute(inner, values, memo) for inner in value]
        )
    return memo[id(value)]


def check_overlaps(
    document: Document,
    chosen: str,
    own: Iterable[StorageLocation],
    others: OtherEnvironments,
    directory: str,
    findings: Findings,
) -> None:
    """Report each pair of environments that share a state or a warehouse, or where one contains the other.

    - `own`: the places of the chosen environment.
    - `directory`: the folder that relative paths of the others start from.
    """
    reported: set[tuple[str, str]] = set()
    for reading in others.readings:
        places = {chosen: tuple(own)}
        places |= {name: places_of(body, directory) for name, body in reading.items()}
        names = [name for name in entries_of(document.data) if name in places]
        for number, second in enumerate(names):
            for first in names[:number]:
                if (first, second) not in reported and (overlap := _overlap(places[first], places[second])):
                    reported.add((first, second))
                    _report(document, (first, overlap[0]), (second, overlap[1]), findings)


def _overlap(
    first: Iterable[StorageLocation], second: Iterable[StorageLocation]
) -> tuple[StorageLocation, StorageLocation] | None:
    second = tuple(second)
    return next(((a, b) for a in first for b in second if a.overlaps(b)), None)


def _report(
    document: Document,
    first: tuple[str, StorageLocation],
    second: tuple[str, StorageLocation],
    findings: Findings,
) -> None:
    (name, a), (other, b) = first, second
    inner, outer = (a, b) if len(a.path) > len(b.path) else (b, a)
    findings.add(
        "MZ246.shared" if a.equals(b) else "MZ246.inside",
        _location(document, other, b),
        related=_location(document, name, a),
        shared=a.setting if a.setting == b.setting else "place",
        inner=inner.setting,
        outer=outer.setting,
        name=name,
        written=a.written,
        other=other,
        other_written=b.written,
        setting=b.setting,
    )


def _location(document: Document, name: str, place: StorageLocation) -> Location:
    own = place.setting in entries_of(document.data).get(name, {})
    path: Path = (SECTION, name, place.setting) if own else (SECTION, name)
    return Location(document.file, path, at_key=True)
