"""The places where a query reads a collection, each with the way to it from the outermost block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Block

Step = tuple[Literal["source", "arm", "subquery"], int]
Path = tuple[Step, ...]
"""The way to one use: the numbers of relations in FROM, arms of a UNION, and subqueries."""


def uses_of(block: Block) -> Iterator[tuple[str, Path]]:
    """Yield each use of a collection in a block, with its path. Names from WITH are followed at each use."""
    for number, arm in enumerate(block.arms):
        yield from _below(("arm", number), arm)
    for number, (_, relation) in enumerate(block.sources):
        yield from _of_relation(("source", number), relation)
    for number, (_, below) in enumerate(block.subqueries):
        yield from _below(("subquery", number), below)


def _of_relation(step: Step, relation: Relation) -> Iterator[tuple[str, Path]]:
    if isinstance(relation.of, str):
        yield relation.of, (step,)
    elif relation.of is not None:
        yield from _below(step, relation.of)


def _below(step: Step, block: Block) -> Iterator[tuple[str, Path]]:
    yield from ((name, (step, *path)) for name, path in uses_of(block))
