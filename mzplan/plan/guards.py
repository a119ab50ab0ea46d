"""Guards: errors that forbid a plan, and notices to read before approving it."""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import urlsplit

from mzplan.host.network import is_loopback
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.losses import as_warning
from mzplan.model.observed import Status
from mzplan.model.plan import Change
from mzplan.model.resources import Configuration, Resource
from mzplan.model.state import ResourceState, State
from mzplan.model.words import first_names, scalar_text
from mzplan.plan.query_change import changed_readings, has_same_query
from mzplan.plan.targets import effect_on_target
from mzplan.schema.columns import Column
from mzplan.schema.kinds import EXACTLY_ONCE, resource_kind
from mzplan.schema.source_columns import columns_of
from mzplan.schema.target_writes import DIFFERENCE

_LAST_OBSERVED = "This is the runner's last observation; plan --live checks it again."

_MAX_NAMED = 5  # queries in one notice


def check_project(configuration: Configuration, state: State) -> Iterator[Diagnostic]:
    """Yield MZ044 if the project's name or its warehouse changed while resources exist.

    The paths of checkpoints and collections contain both.
    """
    if not state.resources:
        return
    if configuration.project != state.project:
        yield _project_changed("project", state.project, configuration.project)
    if not same_place(configuration.warehouse, state.warehouse):
        yield _project_changed("warehouse", state.warehouse, configuration.warehouse)


def same_place(one: str, other: str) -> bool:
    """Whether two warehouse URIs or paths are the same, as `./warehouse` and `warehouse` are."""
    return _place(one) == _place(other)


def _place(uri: str) -> str:
    return uri.rstrip("/") if "://" in uri or not uri else posixpath.normpath(uri)


def _project_changed(name: str, before: str, after: str) -> Diagnostic:
    return Diagnostic.of("MZ044.cannot-change", name=name, before=before, after=after)


def check_clear_text(resources: Iterable[Resource]) -> Iterator[Diagnostic]:
    """Yield MZ116 for a login that a connection sends in clear text (`x-clear-text`)."""
    for resource in resources:
        if resource.address.is_query:
            continue
        kind = resource_kind("connection", resource.type)
        rule = kind.schema.get("x-clear-text")
        if rule is None or rule["secret"] not in resource.body:
            continue
        url = urlsplit(str(resource.body.get(rule["url"])))
        accepted = rule["accepted"].items()
        if url.scheme != "http" or is_loopback(url.hostname or ""):
            continue
        if any(resource.body.get(name) == value for name, value in accepted):
            continue
        yield Diagnostic.of(
            "MZ116.sends-clear",
            address=resource.address,
            secret=rule["secret"],
            url=rule["url"],
            hostname=url.hostname,
            accepted=[f"{name}: {value}" for name, value in accepted],
        )


def check_replaceable(addresses: Iterable[Address]) -> None:
    """Raise MzplanError MZ070 (usage) for a connection, because it has no generation to replace."""
    for address in addresses:
        if address.is_connection:
            raise error("MZ070.cannot-replaced", address=address)


def check_changes(
    changes: Iterable[Change], renames: Mapping[Address, Address] = MappingProxyType({})
) -> Iterator[Diagnostic]:
    """Yield errors for changes that can't be applied, and notices about surprising effects.

    `renames`: queries that may be other queries under a new name.
    """
    changes = tuple(changes)
    refilled = {c.address for c in changes if c.action == "replace" and not c.migrates_rows}
    columns = {change.address: _new_columns(change) for change in changes}
    for change in changes:
        yield from _check_snapshots(change, refilled)
        if change.action in ("delete", "replace"):
            yield from _check_prevent_destroy(change)
        if change.action == "replace":
            yield from _check_repeated_rows(change, renames)
            yield from _waits_for_cut_over(change)
        if change.action != "create":
            yield from _check_forbidden(change)
        if change.action in ("create", "replace") or change.effect == "restart":
            yield from _announcements(change, columns)
        if change.action in ("update", "restart", "move"):
            yield from _notices(change)
            yield from _upstream_notices(change)


def _check_snapshots(change: Change, refilled: Container[Address]) -> Iterator[Diagnostic]:
    """Yield MZ045, a warning, for a running view whose snapshots begin a new, empty generation."""
    after = change.after
    if change.before is None or after is None or after.paused:
        return
    tables = sorted({str(address) for address in after.snapshots.values() if address in refilled})
    if tables:
        named = " and ".join(tables)
        yield Diagnostic.of("MZ045.reads-snapshots", address=change.address, named=named)


def _waits_for_cut_over(change: Change) -> Iterator[Diagnostic]:
    """Yield MZ045 for a view whose new generation comes into service by hand."""
    before, after = change.before, change.after
    if before is not None and after is not None and after.is_replaced_beside and after.waits_for_cut_over:
        yield Diagnostic.of(
            "MZ045.waits-for-cut-over",
            address=after.address,
            generation=after.generation,
            former=before.generation,
        )


def known_losses(changes: Iterable[Change], statuses: Mapping[str, Status]) -> Iterator[Diagnostic]:
    """Yield MZ292, a warning, for each replaced source that can't read all its records again.

    It relies on the runners' last observations. Validation checks again in any case.
    """
    for change in changes:
        if change.action != "replace" or change.before is None or not change.address.reads_upstream:
            continue
        if change.migrates_rows:
            continue
        seen = change.before.observed_in(statuses)
        if seen is not None and seen.loss is not None and seen.generation == change.before.generation:
            warning = as_warning(change.address, seen.loss)
            yield replace(warning, detail=f"{warning.detail} {_LAST_OBSERVED}")


def unready_generations(changes: Iterable[Change], statuses: Mapping[str, Status]) -> Iterator[Diagnostic]:
    """Yield MZ045, a warning, for each view that moves to another instance while it is replaced.

    Generations run beside each other only on one instance.
    """
    for change in changes:
        before, after = change.before, change.after
        if before is None or after is None or before.instance == after.instance:
            continue
        is_replaced = change.action == "replace" and after.is_replaced_beside
        former = before.generation if is_replaced else before.former_in_service(statuses)
        if former:
            yield Diagnostic.of(
                "MZ045.moves-while-replaced",
                address=after.address,
                generation=after.generation,
                former=former,
                instance=after.instance,
            )


def _check_prevent_destroy(change: Change) -> Iterator[Diagnostic]:
    # A delete has only the committed record. For a replace, the configuration's value counts.
    resource = change.after or change.before
    if resource is not None and resource.body.get("lifecycle", {}).get("prevent_destroy"):
        yield Diagnostic.of(
            "MZ041.must-not",
            address=change.address,
            verb="replaced" if change.after else "deleted",
            action=change.action,
            reason=change.reason,
        )


_ON_REPLACE = {
    "truncate": " (removes all rows from the target first)",
    "append": " (keeps the old rows and adds the new ones)",
}


def _check_repeated_rows(change: Change, renames: Mapping[Address, Address]) -> Iterator[Diagnostic]:
    """Yield MZ047 if a new generation would write rows of the old generation to its target again.

    A new generation reads its collection from the start. The schema can declare that safe (`x-replace`), or
    the sink can choose what to do.
    """
    if change.after is None:
        return
    kind = resource_kind(change.address.kind, change.after.type)
    rule = kind.schema.get("x-replace")
    if rule is None or effect_on_target(change.after) is not None:
        return
    renamed = ""
    for new in change.after.reads.values():
        if (old := renames.get(new)) is not None:
            renamed = (
                f"if {new} is {old} under another name, add lifecycle: {{moved_from: {old.name}}} there, "
            )
    choices = kind.schema["properties"][rule["property"]]["enum"]
    settings = " or ".join(
        f"`{rule['property']}: {choice}`{_ON_REPLACE.get(choice, '')}"
        for choice in choices
        if choice != DIFFERENCE  # needs a key
    )
    yield Diagnostic.of(
        "MZ047.replacing-write",
        address=change.address,
        reason=change.reason,
        renamed=renamed and renamed + "so that nothing is replaced; otherwise ",
        settings=settings,
    )


def _check_forbidden(change: Change) -> Iterator[Diagnostic]:
    for leaf in change.fields:
        if leaf.effect == "forbidden":
            yield Diagnostic.of("MZ042.cannot-change", address=change.address, path=leaf.path)


def _notices(change: Change) -> Iterator[Diagnostic]:
    """Yield the schema's notice for each changed property (`x-notice`), once for each property."""
    if change.after is None:
        return
    kind = resource_kind(change.address.kind, change.after.type)
    shown: set[str] = set()
    for leaf in change.fields:
        name = leaf.property_name
        schema = kind.schema["properties"].get(name, {})
        text = schema.get("x-notice")
        if schema.get("x-query") and has_same_query(change):
            continue
        if schema.get("x-rows") and change.query is not None and change.query.recomputes:
            continue  # the plan says so beside the query
        if text and name not in shown:
            shown.add(name)
            yield Diagnostic.of("MZ045.change", address=change.address, name=name, text=text)
    for input_, (before, now) in changed_readings(change).items():
        reads = f"the query reads {input_} {_times(now)} instead of {_times(before)}"
        effect = (
            "the added readings begin where the view is now"
            if before < now
            else "the view continues once its former readings are at the same position"
        )
        yield Diagnostic.of("MZ045.changed-reads", address=change.address, reads=reads, effect=effect)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _announcements(change: Change, columns: Mapping[Address, set[Column]]) -> Iterator[Diagnostic]:
    """Yield notices about other effects of a query's start (`x-announces`).

    A new query announces them, and a query that may need other tables or columns on its server than before.
    `columns`: by changed collection, its new columns.
    """
    if change.after is None or not _may_need_more(change, change.after, columns):
        return
    kind = resource_kind(change.address.kind, change.after.type)
    body = kind.with_defaults(change.after.body)
    for name, schema in kind.schema["properties"].items():
        texts = schema.get("x-announces")
        if texts is None or name not in body:
            continue
        value = scalar_text(body[name])
        if text := texts.get(value):
            yield Diagnostic.of("MZ045.has-effect", address=change.address, text=text, name=name, value=value)


def _may_need_more(change: Change, after: ResourceState, columns: Mapping[Address, set[Column]]) -> bool:
    """Return whether a query may need another table than before, or more columns."""
    if change.before is None:
        return True
    properties = resource_kind(change.address.kind, after.type).schema["properties"]
    for leaf in change.fields:
        schema = properties.get(leaf.property_name, {})
        if leaf.effect == "replace" or leaf.property_name == "select" or "x-reference" in schema:
            return True
    takes_new = any("*" in item for item in after.body.get("select", "*"))
    return takes_new and any(columns.get(read) for read in after.references.values())


def _new_columns(change: Change) -> set[Column]:
    """Return the columns that a collection gains, also those that get another type."""
    if change.before is None or change.after is None or not change.address.writes_collection:
        return set()
    before, after = (columns_of(r.type, r.body) for r in (change.before, change.after))
    return set(after) - set(before)


def _upstream_notices(change: Change) -> Iterator[Diagnostic]:
    """Yield how a query reacts if its connection now leads to another upstream (`x-upstream`)."""
    repointed = any(leaf.path == "connection" for leaf in change.fields)
    may_move = repointed or any(cause.is_connection for cause in change.triggered_by)
    if change.after is None or change.effect != "restart" or not may_move:
        return
    kind = resource_kind(change.address.kind, change.after.type)
    role = "target" if change.address.writes_target else "upstream"
    for name, schema in kind.schema["properties"].items():
        texts = schema.get("x-upstream")
        text = texts.get(change.after.body.get(name)) if texts else None
        if text:
            yield Diagnostic.of(
                "MZ045.if-connection",
                address=change.address,
                role=role,
                text=text,
                name=name,
                value=change.after.body[name],
            )


def check_overrides(resources: Iterable[ResourceState]) -> Iterator[Diagnostic]:
    """Yield MZ045, a notice, about the queries that are paused or resumed by hand."""
    overridden = [resource for resource in resources if resource.override is not None]
    for override, undo in (("paused", "resume"), ("resumed", "pause")):
        names = sorted((str(r.address) for r in overridden if r.override == override), key=natural)
        if not names:
            continue
        subject = f"{names[0]} was" if len(names) == 1 else f"{len(names)} queries were"
        yield Diagnostic.of(
            "MZ045.hand",
            address=Address.parse(names[0]) if len(names) == 1 else None,
            subject=subject,
            override=override,
            names=f"{first_names(names, _MAX_NAMED)}. " if len(names) > 1 else "",
            undo=undo,
            names_to_resume=" ".join(names[:_MAX_NAMED]),
        )


def check_delivery(
    changes: Iterable[Change], resources: Mapping[Address, ResourceState]
) -> Iterator[Diagnostic]:
    """Yield MZ085, a warning, for each changed sink that can't give the guarantee it asks for.

    The sink and its source decide which guarantee it gets. A source of another type replaces its sinks, so no
    other sink can be affected. `resources` are as they are after the plan.
    """
    for change in changes:
        resource = change.after
        if resource is None or not change.address.writes_target or change.action == "delete":
            continue
        kind = resource_kind("sink", resource.type)
        if kind.with_defaults(resource.body).get("delivery") != EXACTLY_ONCE:
            continue
        read = (resources[address] for address in resource.reads.values() if address in resources)
        weak = [resource for resource in (*read, resource) if not gives_exactly_once(resource)]
        if weak:
            yield _weaker(change.address, weak)


def gives_exactly_once(resource: ResourceState) -> bool:
    """Whether the schema of the resource's type offers exactly-once (`x-delivery`)."""
    offered = resource_kind(resource.address.kind, resource.type).schema.get("x-delivery", ())
    return EXACTLY_ONCE in offered


def _weaker(address: Address, weak: list[ResourceState]) -> Diagnostic:
    which = " and ".join(f"{resource.address} (type {resource.type})" for resource in weak)
    verb = "delivers" if len(weak) == 1 else "deliver"
    return Diagnostic.of(
        "MZ085.asks-gets", address=address, exactly_once=EXACTLY_ONCE, which=which, verb=verb
    )
