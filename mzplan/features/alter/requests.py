"""The change that a statement requests of a project, or the mistakes in the statement."""

from __future__ import annotations

from typing import cast

from mzplan.features.alter.key_pairs import key_reference, next_keys
from mzplan.features.alter.requested_change import RequestedChange, Resources
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
from mzplan.model.address import Address, Kind, is_valid_name
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.resources import Body, PropertyEdit, Resource, edited
from mzplan.model.words import did_you_mean
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.statement_options import StatementOptions


def requested_change(
    resources: Resources, statement: Edit, text: str, live: bool | None, directory: str
) -> RequestedChange | Diagnostic:
    """Return the requested change, or a notice if the resource doesn't exist (IF EXISTS)."""
    kind, name = statement.kind, statement.name
    if statement.if_exists and _address(kind, name) not in resources:
        return Diagnostic.of("MZ073.no-statement-says", kind_=kind, text=name.text)
    resource = find_named(resources, text, kind, name)
    match statement:
        case RotateKeys():
            return _key_rotation(
                text, statement, resource, resource_kind(kind, resource.type), live, directory
            )
        case Alter():
            return _option_change(resources, text, statement, resource, live)
        case Rename():
            return _rename(resources, text, statement, resource, live)
        case SetConnection():
            return _connection_change(resources, text, statement, resource, live)


def _option_change(
    resources: Resources, text: str, statement: Alter, resource: Resource, live: bool | None
) -> RequestedChange:
    kind = resource_kind(statement.kind, resource.type)
    meaning = meaning_of(text, statement, resource.address, kind)
    if meaning.diagnostics:
        raise MzplanError(meaning.diagnostics)
    for edit, location in zip(meaning.edits, meaning.locations, strict=True):
        if isinstance(edit.value, str) and edit.path == ("connection",):
            _check_type(resources, text, resource, edit.path[0], Name(text=edit.value, at=location))
    body = edited(resource.body, meaning.edits)
    validated = kind if statement.kind == "connection" else _link_kind(resources, body)
    return RequestedChange(
        text=text,
        address=resource.address,
        edits=meaning.edits,
        locations=meaning.locations,
        name=statement.name,
        clear_locations=clear_locations(statement, kind),
        live=_validation(text, statement.validate, live, validated),
    )


def _link_kind(resources: Resources, body: Body) -> ResourceKind | None:
    link = resources.get(Address("connection", str(body.get("connection"))))
    return resource_kind("connection", link.type) if link is not None else None


def _rename(
    resources: Resources, text: str, statement: Rename, resource: Resource, live: bool | None
) -> RequestedChange:
    new = statement.new.text
    if not is_valid_name(new):
        detail = "A name starts with a lowercase letter, then lowercase letters, digits or _."
        raise MzplanError(
            point(text, statement.new.at, "MZ011", f"Invalid name {new}", detail, "choose another.")
        )
    if _address(statement.kind, statement.new) in resources and new != resource.address.name:
        summary = f"There is a {statement.kind} {new} already"
        raise MzplanError(point(text, statement.new.at, "MZ073", summary, "", "choose another name."))
    return RequestedChange(
        text=text,
        address=resource.address,
        name=statement.name,
        new_name=new,
        live=_validation(text, None, live, None),
    )


def _key_rotation(
    text: str,
    statement: RotateKeys,
    resource: Resource,
    kind: ResourceKind,
    live: bool | None,
    directory: str,
) -> RequestedChange:
    """Return a change that makes the secondary key the primary one, and adds a secondary key.

    Without a secondary key, it adds the keys that are missing.
    """
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
    return RequestedChange(
        text=text,
        address=resource.address,
        edits=tuple(edits),
        locations=(statement.name.at,) * len(edits),
        name=statement.name,
        live=_validation(text, None, live, kind),
        rotates=True,
    )


def _connection_change(
    resources: Resources, text: str, statement: SetConnection, resource: Resource, live: bool | None
) -> RequestedChange:
    kind = resource_kind(statement.kind, resource.type)
    option = StatementOptions(kind).find("CONNECTION", None)
    if option is None:
        detail = f"A {statement.kind} of type {resource.type} has no connection."
        raise MzplanError(
            point(text, statement.name.at, "MZ073", f"{resource.address} has no connection", detail)
        )
    other = find_named(resources, text, "connection", statement.connection)
    _check_type(resources, text, resource, option.path[0], statement.connection)
    return RequestedChange(
        text=text,
        address=resource.address,
        edits=(PropertyEdit(path=option.path, value=other.address.name),),
        locations=(statement.connection.at,),
        name=statement.name,
        live=_validation(text, statement.validate, live, resource_kind("connection", other.type)),
    )


def _check_type(resources: Resources, text: str, resource: Resource, property_: str, name: Name) -> None:
    """Raise MzplanError MZ013 if a connection has the wrong type."""
    kind = resource_kind(resource.address.kind, resource.type)
    reference = next((r for r in kind.references if r.property == property_), None)
    if reference is None:
        return
    other = resources.get(_address(reference.kinds[0], name))
    if other is None or not reference.types or other.type in reference.types:
        return
    types = " or ".join(type_name(type_) for type_ in reference.types)
    valid = [
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
            f"{resource.address} needs a {reference.words()} of type {types}; {other.address} is of type "
            f"{type_name(other.type)}.",
            f"use one of: {', '.join(valid[:20])}."
            if valid
            else f"declare a {reference.words()} of that type.",
            address=resource.address,
        )
    )


def _validation(
    text: str, in_statement: bool | None, option: bool | None, kind: ResourceKind | None
) -> bool | None:
    """Return how to validate live, as in `apply`.

    True: by a runner or from here. None: only by a runner. False: not at all.
    """
    if in_statement is not None and option is not None and in_statement != option:
        hint = "leave one of the two out."
        raise MzplanError(usage_mistake(text, "WITH (VALIDATE …) and --live or --no-live contradict", hint))
    if in_statement is not None or option is not None:
        return option if in_statement is None else in_statement
    return None if kind is None or kind.validates_live else False


def _no_keys(text: str, statement: RotateKeys, resource: Resource, kind: ResourceKind) -> Diagnostic:
    types = [type_name(t) for t in types_of("connection") if resource_kind("connection", t).rotates_keys]
    return point(
        text,
        statement.name.at,
        "MZ073",
        f"{resource.address} has no keys to rotate",
        f"It is of type {type_name(kind.type)}.",
        f"ROTATE KEYS is for {', '.join(types)}." if types else "set the option that names its key instead.",
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
    names_text = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    raise MzplanError(
        point(
            text,
            name.at,
            "MZ073",
            f"There is no {kind} {name.text}",
            f"The {kind}s of this project are: {names_text}." if names else f"No file declares a {kind}.",
            did_you_mean(name.text, names) or "correct the name, or declare it.",
        )
    )


def usage_mistake(text: str, summary: str, hint: str) -> Diagnostic:
    first = text.split(maxsplit=1)[0] if text.split() else ""
    start = text.find(first)
    return point(text, At(start, start + len(first)), "MZ072", summary, "", hint, exit_code=ExitCode.USAGE)
