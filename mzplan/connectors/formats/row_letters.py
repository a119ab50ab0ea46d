"""Dead letters of views: stores the rows that violate an expectation with `on_violation: dead-letter`.

A step stores them before it writes its other rows to the collection. If the runner is killed in between, the
step runs again, perhaps with other rows, and its letters replace the letters of the first attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.dead_letters import ensure_table
from mzplan.connectors.formats.letter_folder import folder_of
from mzplan.connectors.formats.written import row_to_json
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import append, replace_rows
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.schema.columns import CHANGE, POSITION
from mzplan.schema.expectations import keeps_letters

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

# `query` is the id of the view's query: a rename keeps it. `row` is an object of JSON.
COLUMNS = (
    "query STRING, source STRING, generation INT, step BIGINT, reason STRING, row STRING, kept_at TIMESTAMP"
)


@dataclass(frozen=True, slots=True)
class RowLetters:
    """The dead letters of one view, in a table that other queries may use, too."""

    query: ResolvedQuery
    folder: str

    def store(self, rows: DataFrame, reason: Expression, step: int, *, may_repeat: bool) -> None:
        """Store the rows of a step that have a reason, in one commit that names the step.

        The table accepts no second one, so a frozen runner stores nothing twice. `may_repeat`: whether an
        earlier attempt may have stored letters of the step, which these replace.
        """
        description, session = self.query.description, rows.sparkSession
        names = [name for name in rows.columns if name not in (POSITION, CHANGE)]
        letters = rows.where(reason.isNotNull()).select(
            f.lit(description.id).alias("query"),
            f.lit(str(description.address)).alias("source"),
            f.lit(description.generation).cast("int").alias("generation"),
            f.lit(step).cast("bigint").alias("step"),
            reason.alias("reason"),
            row_to_json(rows, names).alias("row"),
            f.current_timestamp().alias("kept_at"),
        )
        table = ensure_table(session, self.folder, COLUMNS)
        id_, generation = description.place
        of_step = f"query = '{id_}' AND generation = {generation} AND step = {step}"

        def are_stored() -> bool:
            return not session.table(table).where(of_step).isEmpty()

        if may_repeat and are_stored():
            replace_rows(letters, self.folder, of_step)
        elif not (may_repeat and letters.isEmpty()):
            append(letters, step, self.folder)
            if may_repeat and not are_stored():  # the second attempt has replaced the letters by none
                replace_rows(letters, self.folder, of_step)
        failpoint(Failpoint.LETTERS_STORED)


def row_letters_of(query: ResolvedQuery) -> RowLetters | None:
    """Return the dead letters of a view; None for a view that keeps none, and for a source."""
    folder = folder_of(query) if query.description.reads and keeps_letters(query.body) else None
    return RowLetters(query, folder) if folder is not None else None
