"""Row migration: a source's new generation begins with the rows that its collection already has.

A migration is exact. It covers dropped or reordered columns, another key, and wider top-level numbers. After
any other change, the source rereads its upstream. The source's sinks continue after the migrated rows, unless
the key has changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Status
from mzplan.model.plan import Change
from mzplan.model.resources import Instance, PropertyEdit, edited, is_dry
from mzplan.model.state import Predecessor, ResourceState
from mzplan.plan.comparison import compare_bodies
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.migration import migration_problem
from mzplan.schema.properties import value_at
from mzplan.schema.source_columns import columns_of, keys_of

FROM_COLLECTION = "from-collection"
Statuses = Mapping[str, Status]
Instances = Mapping[str, Instance]


def predecessor_of(
    before: ResourceState, after: ResourceState, statuses: Statuses, instances: Instances
) -> Predecessor | None:
    """Return the generation whose rows a replaced source begins with; None if it rereads all rows."""
    if not _asks_for_migration(after):
        return None
    begun = has_begun(before, statuses, instances)
    earlier = None if begun else _begun_predecessors(before.predecessor, before, statuses)
    if _obstacle(before, after) is not None and not _is_reverted(before, after, earlier):
        return None
    return Predecessor(generation=before.generation, body=before.body, predecessor=earlier)


def has_begun(record: ResourceState, statuses: Statuses, instances: Instances) -> bool:
    """Whether a generation with migrated rows has begun, as far as its runner has reported."""
    if record.predecessor is None or is_dry(instances, record.instance):
        return True
    seen = record.observed_in(statuses)
    return seen is not None and seen.generation == record.generation and (bool(seen.digest) or seen.step >= 0)


def sinks_continue(change: Change) -> bool:
    """Whether the sinks of a replaced source continue after the migrated rows.

    The sinks have already written these rows. With another key, other rows are the latest rows of their keys,
    so the sinks read all rows again.
    """
    before, after = change.before, change.after
    if before is None or after is None or after.predecessor is None or after.place == before.place:
        return False
    return _keys(before) == _keys(after)


def check_migrations(
    changes: Iterable[Change], statuses: Statuses, instances: Instances
) -> Iterator[Diagnostic]:
    """Yield notices about sources that migrate rows, or could.

    Yields MZ275 for a source whose last migration hasn't run yet, and MZ294 for a source that can't migrate.
    """
    migrating = {}
    for change in changes:
        if change.action == "replace":
            yield from _check_open_tasks(change, statuses)
            yield from _check_replace(change, statuses, instances)
        if change.migrates_rows:
            migrating[change.address] = change
        reads = change.after.reads if change.after is not None else {}
        for source in [reads["from"]] if "from" in reads and change.action in ("update", "restart") else ():
            if source not in migrating or not sinks_continue(migrating[source]):
                continue
            yield Diagnostic.of("MZ045.continues-after", address=change.address, source=source)


def _check_replace(change: Change, statuses: Statuses, instances: Instances) -> Iterator[Diagnostic]:
    """Yield errors and notices about the replacement of a source."""
    before, after = change.before, change.after
    if before is None or after is None:
        return
    if not has_begun(before, statuses, instances):
        assert before.predecessor is not None
        earlier = _begun_predecessors(before.predecessor, before, statuses)
        if not (after.predecessor is not None and _is_reverted(before, after, earlier)):
            yield _second_migration(change, before, earlier or before.predecessor)
            return
    if change.migrates_rows:
        yield _migration(change, after)
        return
    own = [field for field in change.fields if field.effect == "replace"]
    obstacle = _obstacle(before, after)
    if _asks_for_migration(after) and own and obstacle is not None:
        yield _impossible(change, obstacle)
    keeps_references = not any(field.path in after.references for field in own)
    is_chosen = "replace" in after.body.get("lifecycle", {})
    if own and keeps_references and not is_chosen and obstacle is None:
        yield _proposal(change)


def _check_open_tasks(change: Change, statuses: Statuses) -> Iterator[Diagnostic]:
    """Yield MZ045 for each unfinished task of a replaced query, because the replace cancels it."""
    before = change.before
    if before is None:
        return
    seen = before.observed_in(statuses)
    for task in before.own_tasks:
        if before.has_done(task, seen) is not True:
            yield Diagnostic.of(
                "MZ045.cancels",
                address=change.address,
                task=task,
                generation=before.generation,
                command=task.command,
            )


def _migration(change: Change, after: ResourceState) -> Diagnostic:
    assert change.before is not None and after.predecessor is not None
    former = _oldest(after.predecessor).generation
    others = "" if sinks_continue(change) else " Its key changes, so its sinks read all of these rows."
    return Diagnostic.of("MZ045.new-generation", address=change.address, former=former, others=others)


def _second_migration(change: Change, before: ResourceState, former: Predecessor) -> Diagnostic:
    base = _oldest(former).generation
    return Diagnostic.of("MZ275.not-begun", address=change.address, base=base, generation=before.generation)


def _impossible(change: Change, why: str) -> Diagnostic:
    return Diagnostic.of("MZ294.cannot-reuse", address=change.address, why=why)


def _proposal(change: Change) -> Diagnostic:
    return Diagnostic.of("MZ045.reread-everything", address=change.address)


def _obstacle(before: ResourceState, after: ResourceState) -> str | None:
    """Return why the new generation can't begin with the former generation's rows; None if it can."""
    kind = resource_kind(after.address.kind, after.type)
    if before.type != after.type:
        return "its type changes"
    if not _supports_migration(kind):
        return f"a source of type {after.type} offers no migration"
    if bool(_keys(before)) != bool(_keys(after)):
        return "adding or removing a key changes how the source reads its upstream"
    if before.instance != after.instance and kind.holds_upstream:
        return "it moves to another instance, and the old one releases its position in the upstream"
    paths = (*kind.column_paths, *([kind.key_path] if kind.key_path is not None else []))
    values = {path: value_at(after.body, path) for path in paths}
    edits = [PropertyEdit(path=path, value=value, remove=not value) for path, value in values.items()]
    for field in compare_bodies(kind, edited(before.body, edits), after.body):
        if field.effect not in ("in-place", "restart"):
            return f"{field.path} changes which records it reads, or how"
    return migration_problem(after.type, before.body, after.body)


def _is_reverted(before: ResourceState, after: ResourceState, earlier: Predecessor | None) -> bool:
    """Whether a source gets back the columns and the key of the rows that it still has."""
    if earlier is None:
        return False
    base = dataclasses.replace(before, body=_oldest(earlier).body)
    same = columns_of(base.type, base.body) == columns_of(after.type, after.body)
    return _obstacle(base, after) is None and same and _keys(base) == _keys(after)


def _begun_predecessors(
    predecessor: Predecessor | None, record: ResourceState, statuses: Statuses
) -> Predecessor | None:
    """Return the predecessors up to the newest generation that has run, according to the statuses."""
    seen = record.observed_in(statuses)
    if predecessor is None or predecessor.predecessor is None:
        return predecessor
    if seen is not None and seen.generation == predecessor.generation and seen.digest:
        return dataclasses.replace(predecessor, predecessor=None)
    return dataclasses.replace(
        predecessor, predecessor=_begun_predecessors(predecessor.predecessor, record, statuses)
    )


def _oldest(predecessor: Predecessor) -> Predecessor:
    while predecessor.predecessor is not None:
        predecessor = predecessor.predecessor
    return predecessor


def _asks_for_migration(resource: ResourceState) -> bool:
    return bool(resource.body.get("lifecycle", {}).get("replace") == FROM_COLLECTION)


def _supports_migration(kind: ResourceKind) -> bool:
    lifecycle = kind.schema["properties"]["lifecycle"].get("properties", {})
    return FROM_COLLECTION in lifecycle.get("replace", {}).get("enum", ())


def _keys(resource: ResourceState) -> set[str]:
    return {key.lower() for key in keys_of(resource.type, resource.body)}
