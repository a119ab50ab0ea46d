"""A statement's change of a resource, and the places of diagnostics in the statement."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mzplan.features.alter.sql.statements import At, Name, point
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import PropertyEdit, Resource, edited
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.view_query import referring_to

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit

Resources = Mapping[Address, Resource]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChange:
    """A statement's change of a resource: edits with their locations in the text, or a new name.

    - `live`: how to validate (see ApplyOptions). The statement's WITH decides, or else the default of the
      connection's type.
    - `rotates`: the edits name key files that don't exist yet.
    """

    text: str
    address: Address
    edits: tuple[PropertyEdit, ...] = ()
    locations: tuple[At, ...] = ()
    name: Name
    new_name: str | None = None
    clear_locations: tuple[At, ...] = ()
    live: bool | None = None
    rotates: bool = False

    @property
    def new_address(self) -> Address:
        """The resource's address after the change."""
        return self.address if self.new_name is None else Address(self.address.kind, self.new_name)


def strongest_live(changes: Iterable[RequestedChange]) -> bool | None:
    """Return the strongest `live` of several statements."""
    values = [requested.live for requested in changes]
    if True in values:
        return True
    return None if None in values or not values else False


def apply_change(resources: Resources, change: RequestedChange, *, moves: bool) -> dict[Address, Resource]:
    """Return the resources after a statement. `moves`: whether to record the old name in a rename."""
    result = dict(resources)
    resource = result[change.address]
    if change.edits:
        result[change.address] = _with_body(resource, edited(resource.body, change.edits), result)
    if change.new_address == change.address:
        return result
    old, new = change.address, change.new_address
    resource = result.pop(old)
    body = edited(resource.body, [moved_from(old)]) if moves else resource.body
    result[new] = _with_body(replace(resource, address=new), body, result)
    for user, other in resources.items():
        names = {role: new.name for role, target in other.references.items() if target == old}
        if names:
            kind = resource_kind(user.kind, other.type)
            result[user] = _with_body(other, referring_to(kind, other.body, names), result)
    return result


def moved_from(old: Address) -> PropertyEdit:
    return PropertyEdit(path=("lifecycle", "moved_from"), value=old.name)


def _with_body(resource: Resource, body: Mapping[str, Any], known: Container[Address]) -> Resource:
    kind = resource_kind(resource.address.kind, resource.type)
    references = {role: reference.address(name, known) for role, reference, name in kind.references_in(body)}
    return replace(resource, body=kind.normalise(body), references=references)


def same_value(resource: Resource, edit: PropertyEdit) -> bool:
    """Whether the edit sets a value that is already set, or a default.

    An assumed value (`x-assumed`) doesn't count as set.
    """
    if edit.path in resource.assumed:
        return False
    kind = resource_kind(resource.address.kind, resource.type)
    body_before, body_after = kind.normalise(resource.body), kind.normalise(edited(resource.body, [edit]))
    return body_before == body_after and not edit.remove


def locate_in_statement(
    diagnostic: Diagnostic,
    change: RequestedChange,
    edit: FileEdit,
    spans: Mapping[tuple[str, ...], tuple[tuple[int, int], tuple[int, int]]],
) -> Diagnostic | None:
    """Move a diagnostic of the edited file to its location in the statement.

    Returns None if it isn't about this statement's edits. `spans`: where each property begins and ends in the
    edited file.
    """
    edited_range = diagnostic.range
    if (
        diagnostic.address not in (change.new_address, None)
        or edited_range is None
        or edited_range.path != edit.path
    ):
        return None
    at = (edited_range.line, edited_range.column)
    pairs = zip(change.edits, change.locations, strict=True)
    location = next((p for e, p in pairs if e.path in spans and _within(at, spans[e.path])), None)
    if location is None and diagnostic.address is None:
        return None
    return at_location(diagnostic, change, location)


def at_location(diagnostic: Diagnostic, change: RequestedChange, location: At | None) -> Diagnostic:
    """Return the diagnostic at a location in the statement.

    A missing property has no location (None). The diagnostic then points to the action that removes or needs
    the property.
    """
    if location is None:
        pairs = zip(change.edits, change.locations, strict=True)
        location = next((p for e, p in pairs if e.remove), (*change.locations, change.name.at)[0])
    located = point(change.text, location, diagnostic.code, diagnostic.summary, shown=change.clear_locations)
    hint = "set it in the same statement." if diagnostic.kind == "missing-property" else diagnostic.hint
    return replace(diagnostic, range=located.range, excerpt=located.excerpt, hint=hint)


def _within(at: tuple[int, int], span: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    return span[0] <= at < span[1]


def default_error(address: Address, path: Sequence[str]) -> Diagnostic:
    name = ".".join(path)
    return Diagnostic.of("MZ075.one-project", address=address, name=name)
