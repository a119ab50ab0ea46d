"""Checks a view that adopts the checkpoint of a hand-written query, until the view has first continued it.

Spark resumes any state whose types fit, by position. So here the names must also be equal: Spark names a key
after its column, and an aggregate after its function.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.views import Compute
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.spark import failures
from mzplan.spark.trials.state_trial import try_query
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import decoding
from mzplan.warehouse.stored_state import differences, stored_operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_unstarted(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint was adopted, and no runner has continued it yet. Raises OSError."""
    return checkpoint.adopted() is not None and checkpoint.collection() is None


def require_same_query(
    spark: SparkSession,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    position: str,
    tables: Sequence[str | None],
    compute: Compute | None,
) -> None:
    """Raise MzplanError MZ409 unless Spark reads and stores for the view what it did for the adopted query.

    `position`: the type of `_position`. `tables`: see tables_in_order. Raises OSError.
    """
    stored = stored_operators(checkpoint.spark)
    problems = [*_reading_problems(checkpoint, tables, has_state=bool(stored))]
    try:
        tried = try_query(spark, query, checkpoint, position, compute)
    except (MzplanError, OSError):
        raise
    except Exception as problem:
        problems.append(f"Spark could not try its query: {failures.of_exception(problem).text}")
    else:
        problems += [f"In Spark, {text}." for text in differences(stored, tried, with_names=True)]
    if problems:
        raise MzplanError(
            Diagnostic.of("MZ409.differs", address=query.address, reason=reason) for reason in problems
        )


def _reading_problems(
    checkpoint: Checkpoint, tables: Sequence[str | None], *, has_state: bool
) -> Iterator[str]:
    """Yield why the view doesn't read the same tables equally often and, if it has a state, in their order.

    Spark tells the sides of a join apart only by their order.
    """
    log = checkpoint.log
    with decoding(f"{checkpoint.spark}/offsets"):
        were = [table_of(json.loads(line)) for line in log.lines(log.newest())[2:]]
    if None in tables:
        yield "A collection that it reads has not begun yet: start that first."
    elif Counter(were) != Counter(tables):
        yield (
            f"It reads its collections {len(tables)} times in all, and the adopted query {len(were)} times."
        )
    elif has_state and were != list(tables):
        yield "It reads its collections in another order than the adopted query: name them in that order."
