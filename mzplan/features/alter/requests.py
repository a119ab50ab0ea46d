"""The change that a statement requests of a project, or the mistakes in the statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mzplan.features.alter.key_pairs import key_reference, next_keys
from mzplan.features.alter.sql.meaning import clear_locations, meaning_of, type_name
from mzplan.features.alter.sql.statements import (
    Alter,
    At,
    Edit,
    Name,
    Rename,
    RotateKeys,
    SetConnection,
    point,
)
from mzplan.features.alter.wanted import Requested, Resources
from mzplan.model.address import Address, Kind, is_valid_name
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.resources import Body, PropertyEdit, Resource, edited
from mzplan.model.words import did_you_mean
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.statement_options import StatementOptions

if TYPE_CHECKING:
    pass


def wanted_by(
    resources: Resources, statement: Edit, text: str, live: bool | None, directory: str
) -> Requested | Diagnostic:
    """Return the requested change, or a notice if the resource doesn't exist (IF EXISTS)."""
    kind, name = statement.kind, statement.name
    if statement.if_exists and _address(kind, name) not in resources:
        return Diagnostic(
            severity="notice",
            code="MZ073",
            summary=f"There is no {kind} {name.text}",
            detail="The statement says IF EXISTS, so nothing is done.",
        )
    resource = find_named(resources, text, kind, name)
    match statement:
        case RotateKeys():
            return _rotated(text, statement, resource, resource_kind(kind, resource.type), live, directory)
        case Alter():
            return _altered(resources, text, statement, resource, live)
        case Rename():
            return _renamed(resources, text, statement, resource, live)
        case SetConnection():
            return _repointed(resources, text, statement, resource, live)


def _altered(
    resources: Resources, text: str, statement: Alter, resource: Resource, live: bool | None
) -> Requested:
    kind = resource_kind(statement.kind, resource.type)
    meaning = meaning_of(text, statement, resource.address, kind)
    if meaning.diagnostics:
        raise MzplanError(meaning.diagnostics)
    for edit, location in zip(meaning.edits, meaning.locations, strict=True):
        if isinstance(edit.value, str) and edit.path == ("connection",):
            _check_type(resources, text, resource, edit.path[0], Name(text=edit.value, at=location))
    after = edited(resource.body, meaning.edits)
    validated = kind if statement.kind == "connection" else _link_kind(resources, after)
    return Requested(
        text=text,
        address=resource.address,
        edits=meaning.edits,
        locations=meaning.locations,
        name=statement.name,
        shown=clear_locations(statement, kind),
        live=_live(text, statement.validate, live, validated),
    )


def _link_kind(resources: Resources, body: Body) -> ResourceKind | None:
    link = resources.get(Address("connection", str(body.get("connection"))))
    return resource_kind("connection", link.type) if link is not None else None


def _renamed(
    resources: Resources, text: str, statement: Rename, resource: Resource, live: bool | None
) -> Requested:
    new = statement.new.text
    if not is_valid_name(new):
        detail = "A name begins with a small letter and holds small letters, digits and _ only."
        raise MzplanError(
            point(text, statement.new.at, "MZ011", f"Invalid name {new}", detail, "choose another.")
        )
    if _address(statement.kind, statement.new) in resources and new != resource.address.name:
        summary = f"There is a {statement.kind} {new} already"
        raise MzplanError(point(text, statement.new.at, "MZ073", summary, "", "choose another name."))
    return Requested(
        text=text,
        address=resource.address,
        name=statement.name,
        renamed=new,
        live=_live(text, None, live, None),
    )


def _rotated(
    text: str,
    statement: RotateKeys,
    resource: Resource,
    kind: ResourceKind,
    live: bool | None,
    directory: str,
) -> Requested:
    """Make the secondary key the primary one, and add a new secondary key.

    Missing keys are created."""
    if kind.rotates_keys is None:
        raise MzplanError(_no_keys(text, statement, resource, kind))
    primary, secondary = kind.rotates_keys
    edits = []
    names = next_keys(directory, resource.address.name, resource.body)
    if secondary in resource.body:
        edits.append(PropertyEdit(path=(primary,), value=resource.body[secondary]))
    elif primary not in resource.body:
        edits.append(PropertyEdit(path=(primary,), value=key_reference(next(names))))
    edits.append(PropertyEdit(path=(secondary,), value=key_reference(next(names))))
    return Requested(
        text=text,
        address=resource.address,
        edits=tuple(edits),
        locations=(statement.name.at,) * len(edits),
        name=statement.name,
        live=_live(text, None, live, kind),
        rotates=True,
    )


def _repointed(
    resources: Resources, text: str, statement: SetConnection, resource: Resource, live: bool | None
) -> Requested:
    kind = resource_kind(statement.kind, resource.type)
    option = StatementOptions(kind).find("CONNECTION", None)
    if option is None:
        detail = f"A {statement.kind} of type {resource.type} has no connection."
        raise MzplanError(
            point(text, statement.name.at, "MZ073", f"{resource.address} has no connection", detail)
        )
    other = find_named(resources, text, "connection", statement.connection)
    _check_type(resources, text, resource, option.path[0], statement.connection)
    return Requested(
        text=text,
        address=resource.address,
        edits=(PropertyEdit(path=option.path, value=other.address.name),),
        locations=(statement.connection.at,),
        name=statement.name,
        live=_live(text, statement.validate, live, resource_kind("connection", other.type)),
    )


def _check_type(resources: Resources, text: str, resource: Resource, property_: str, name: Name) -> None:
    """Raise a single error for a connection of another type, not one for each missing property."""
    kind = resource_kind(resource.address.kind, resource.type)
    reference = next((r for r in kind.references if r.property == property_), None)
    if reference is None:
        return
    other = resources.get(_address(reference.kinds[0], name))
    if other is None or not reference.types or other.type in reference.types:
        return
    wanted = " or ".join(type_name(type_) for type_ in reference.types)
    able = [
        a.name
        for a, r in sorted(resources.items())
        if a.kind in reference.kinds and r.type in reference.types
    ]
    raise MzplanError(
        point(
            text,
            name.at,
            "MZ013",
            "Wrong type of connection",
            f"{resource.address} needs a {reference.words()} of type {wanted}; {other.address} is of type "
            f"{type_name(other.type)}.",
            f"use one of: {', '.join(able[:20])}."
            if able
            else f"declare a {reference.words()} of that type.",
            address=resource.address,
        )
    )


def _live(text: str, given: bool | None, option: bool | None, kind: ResourceKind | None) -> bool | None:
    """Return how to validate live, as in `apply`.

    True validates even from here, None only if a runner can, and False not at all."""
    if given is not None and option is not None and given != option:
        hint = "leave one of the two out."
        raise MzplanError(misused(text, "WITH (VALIDATE …) and --live or --no-live contradict", hint))
    if given is not None or option is not None:
        return option if given is None else given
    return None if kind is None or kind.validates_live else False


def _no_keys(text: str, statement: RotateKeys, resource: Resource, kind: ResourceKind) -> Diagnostic:
    able = [type_name(t) for t in types_of("connection") if resource_kind("connection", t).rotates_keys]
    return point(
        text,
        statement.name.at,
        "MZ073",
        f"{resource.address} has no keys to rotate",
        f"It is of type {type_name(kind.type)}.",
        f"ROTATE KEYS is for {', '.join(able)}." if able else "set the option that names its key instead.",
        address=resource.address,
    )


def _address(kind: str, name: Name) -> Address:
    return Address(cast(Kind, kind), name.text)


def find_named(resources: Resources, text: str, kind: str, name: Name) -> Resource:
    address = _address(kind, name)
    resource = resources.get(address)
    if resource is not None:
        return resource
    names = sorted(a.name for a in resources if a.kind == kind)
    listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    raise MzplanError(
        point(
            text,
            name.at,
            "MZ073",
            f"There is no {kind} {name.text}",
            f"The {kind}s of this project are: {listed}." if names else f"No file declares a {kind}.",
            did_you_mean(name.text, names) or "correct the name, or declare it.",
        )
    )


def misused(text: str, summary: str, hint: str) -> Diagnostic:
    first = text.split(maxsplit=1)[0] if text.split() else ""
    start = text.find(first)
    return point(text, At(start, start + len(first)), "MZ072", summary, "", hint, exit_code=ExitCode.USAGE)
