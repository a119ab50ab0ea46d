"""What a statement requests of a project: a resource and its edits, or the mistakes in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from mzplan.model.address import Address, Kind
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.edits import PropertyEdit, edited
from mzplan.model.resources import Configuration, Resource
from mzplan.model.suggestions import did_you_mean
from mzplan.operations.key_pairs import key_reference, next_keys
from mzplan.schema.kinds import ResourceKind, resource_kind, types_of
from mzplan.sql.locations import point
from mzplan.sql.meaning import clear_locations, meaning_of, type_name
from mzplan.sql.statements import (
    AlterConnection,
    At,
    Name,
    RotateKeys,
    SetConnection,
    Statement,
    ValidateConnection,
)

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a statement requests: edits of one resource, each with its location in the text. `live`: whether
    they are validated live, as in `apply` (the statement's WITH, else the default of the connection's type).
    `rotates`: the edits name key files that are still to be made."""

    text: str
    address: Address
    edits: tuple[PropertyEdit, ...]
    locations: tuple[At, ...]
    name: Name
    shown: tuple[At, ...] = ()
    live: bool | None = None
    rotates: bool = False


def wanted_by(
    configuration: Configuration, statement: Statement, text: str, live: bool | None, directory: str
) -> Wanted | Diagnostic:
    """What the statement requests, or the notice that there is no such connection (IF EXISTS)."""
    match statement:
        case AlterConnection(name=name) | RotateKeys(name=name):
            if statement.if_exists and _address("connection", name) not in configuration.resources:
                return Diagnostic(
                    severity="notice",
                    code="MZ073",
                    summary=f"There is no connection {name.text}",
                    detail="The statement says IF EXISTS, so nothing is done.",
                )
            resource = find_named(configuration, text, "connection", name)
            kind = resource_kind("connection", resource.type)
            if isinstance(statement, RotateKeys):
                return _rotated(text, statement, resource, kind, live, directory)
            return _altered(text, statement, resource, kind, live)
        case SetConnection():
            return _repointed(configuration, text, statement, live)
        case ValidateConnection():
            raise AssertionError("it edits nothing")


def _altered(
    text: str, statement: AlterConnection, resource: Resource, kind: ResourceKind, live: bool | None
) -> Wanted:
    meaning = meaning_of(text, statement, resource.address, kind)
    if meaning.diagnostics:
        raise MzplanError(meaning.diagnostics)
    there = kind.normalise(resource.body)
    kept = [
        (edit, location)
        for edit, location in zip(meaning.edits, meaning.locations, strict=True)
        # Setting the same value, or a default, again is no edit.
        if edit.remove or kind.normalise(edited(resource.body, [edit])) != there
    ]
    return Wanted(
        text=text,
        address=resource.address,
        edits=tuple(edit for edit, _ in kept),
        locations=tuple(location for _, location in kept),
        name=statement.name,
        shown=clear_locations(statement, kind),
        live=_live(text, statement.validate, live, kind),
    )


def _rotated(
    text: str,
    statement: RotateKeys,
    resource: Resource,
    kind: ResourceKind,
    live: bool | None,
    directory: str,
) -> Wanted:
    """The secondary key becomes the primary one, and a new one the secondary. What is missing is made."""
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
    return Wanted(
        text=text,
        address=resource.address,
        edits=tuple(edits),
        locations=(statement.name.at,) * len(edits),
        name=statement.name,
        live=_live(text, None, live, kind),
        rotates=True,
    )


def _repointed(
    configuration: Configuration, text: str, statement: SetConnection, live: bool | None
) -> Wanted:
    resource = find_named(configuration, text, statement.kind, statement.name)
    kind = resource_kind(statement.kind, resource.type)
    path = next((o.path for name, o in kind.sql_options.items() if name == "CONNECTION"), None)
    if path is None:
        detail = f"A {statement.kind} of type {resource.type} has no connection."
        raise MzplanError(
            point(text, statement.name.at, "MZ073", f"{resource.address} has no connection", detail)
        )
    other = find_named(configuration, text, "connection", statement.connection)
    same = resource.body.get(path[0]) == other.address.name
    return Wanted(
        text=text,
        address=resource.address,
        edits=() if same else (PropertyEdit(path=path, value=other.address.name),),
        locations=() if same else (statement.connection.at,),
        name=statement.name,
        live=_live(text, statement.validate, live, resource_kind("connection", other.type)),
    )


def _live(text: str, given: bool | None, option: bool | None, kind: ResourceKind) -> bool | None:
    """As in `apply`: True reaches out even from here, None where a runner can, False not at all."""
    if given is not None and option is not None and given != option:
        hint = "leave one of the two out."
        raise MzplanError(misused(text, "WITH (VALIDATE …) and --live or --no-live contradict", hint))
    if given is not None or option is not None:
        return option if given is None else given
    return None if kind.validates_live else False


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


def find_named(configuration: Configuration, text: str, kind: str, name: Name) -> Resource:
    address = _address(kind, name)
    found = configuration.resources.get(address)
    if found is not None:
        return found
    names = sorted(a.name for a in configuration.resources if a.kind == kind)
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


def in_statement(
    diagnostic: Diagnostic,
    wanted: Wanted,
    edit: FileEdit,
    spans: Mapping[tuple[str, ...], tuple[tuple[int, int], tuple[int, int]]],
) -> Diagnostic:
    """A diagnostic of the edited file, moved to its location in the statement where it is about an edit.
    `spans`: by path of a property, where it begins and ends in the edited file."""
    where = diagnostic.range
    if diagnostic.address not in (wanted.address, None) or where is None or where.path != edit.path:
        return diagnostic
    edits = list(zip(wanted.edits, wanted.locations, strict=True))
    at = (where.line, where.column)
    location = next((p for e, p in edits if e.path in spans and _within(at, spans[e.path])), None)
    if location is None:
        if diagnostic.address is None:
            return diagnostic
        # A missing property has no location of its own: it is reported where it was removed, or is needed.
        location = next((p for e, p in edits if e.remove), edits[0][1])
    pointed = point(wanted.text, location, diagnostic.code, diagnostic.summary, shown=wanted.shown)
    hint = "set it in the same statement." if diagnostic.code == "MZ006" else diagnostic.hint
    return replace(diagnostic, range=pointed.range, excerpt=pointed.excerpt, hint=hint)


def _within(at: tuple[int, int], span: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    return span[0] <= at < span[1]
