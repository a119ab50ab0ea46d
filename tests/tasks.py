"""Tasks as commands request them, for tests of what does them."""

from __future__ import annotations

from typing import Any

from mzplan.model.tasks import Task


def backfill(serial: int, start: str, end: str) -> Task:
    """A backfill of a source's first generation."""
    return task("backfill", serial, f"backfill from {start} to {end}", **{"from": start, "to": end})


def replay(serial: int, *, first: int = 0, last: int | None = None, missing: bool = False) -> Task:
    """A replay of steps of a sink's first generation."""
    return task("replay", serial, "replay of steps", first=first, last=last, missing=missing)


def letters_replay(serial: int, where: str | None = None) -> Task:
    """A replay of the dead letters of a source's first generation."""
    return task("dead-letters", serial, "replay of its dead letters", where=where)


def recompute(serial: int, where: str) -> Task:
    """A recompute of a part of a view's first generation."""
    return task("recompute", serial, f"recompute of rows where {where}", where=where)


def task(kind: str, serial: int, title: str, **arguments: Any) -> Task:
    """A task of a query's first generation."""
    return Task(kind=kind, arguments=arguments, serial=serial, generation=1, title=title)
