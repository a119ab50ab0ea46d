"""Guards: errors that forbid a plan, and warnings about replaces and guarantees."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
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
from mzplan.model.words import first_names
from mzplan.plan.effects.targets import effect_on_target
from mzplan.schema.kinds import EXACTLY_ONCE, resource_kind
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
    """Yield errors for changes that can't be applied.

    `renames`: queries that may be other queries under a new name.
    """
    for change in changes:
        if change.action in ("delete", "replace"):
            yield from _check_prevent_destroy(change)
        if change.action == "replace":
            yield from _check_repeated_rows(change, renames)
        if change.action != "create":
            yield from _check_forbidden(change)


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
    """Yield MZ045, a warning, for each query that moves to another instance while it is replaced.

    Also for queries that read each other and are replaced on two instances. Generations run beside each
    other, and take over together, only on one instance.
    """
    changes = tuple(changes)
    replaced = {
        change.address: change.after
        for change in changes
        if change.action == "replace" and change.after is not None and change.after.is_replaced_beside
    }
    for reader in replaced.values():
        for read in sorted({*reader.reads.values(), *reader.snapshots.values()} & replaced.keys()):
            if replaced[read].instance != reader.instance:
                yield Diagnostic.of(
                    "MZ045.take-over-apart", address=reader.address, read=read, generation=reader.generation
                )
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
