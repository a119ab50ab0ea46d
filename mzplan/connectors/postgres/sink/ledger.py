"""Which steps are written, in SQL: the statements over mzplan's own tables that every step passes through.

This module is sent to the executors whole (see task_code).

In the schema `staging_schema`:
- `writers`: one row per sink and generation: who may write (epoch, query) and the last step written.
- `steps`: one row per step: how many rows were written when, their content hash, and the first and last step
  of the source that it covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mzplan.connectors.postgres.types import literal, quoted
from mzplan.endpoints.interface import Step, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One sink's generation, as one run writes it: who is newer, or is not this query, is not found."""

    schema: str
    sink: str
    generation: int
    epoch: int
    query_id: str

    @property
    def writers(self) -> str:
        return f"{quoted(self.schema)}.writers"

    @property
    def steps(self) -> str:
        return f"{quoted(self.schema)}.steps"

    def last(self) -> str:
        """The last step written; no row when somebody else writes."""
        return f"SELECT w.step FROM {self.writers} AS w WHERE {self._ours}"

    def written(self, step: Step) -> str:
        """Count and content hash of a step; no row when nothing is known of it."""
        return f"SELECT row_count, content_hash FROM {self.steps} WHERE {self._step(step)}"

    def lock(self) -> str:
        """In the transaction of a claim, and before it: wait for who begins a newer generation. A claim that
        waits itself does not see that generation's row: it goes on with what it has looked at before."""
        return (
            f"SELECT 1 FROM {self.writers} WHERE sink = {literal(self.sink)} "
            f"AND generation = {self.generation} FOR UPDATE"
        )

    def claim(self, step: Step, after: int, before: Written | None) -> str:
        """In the transaction that has written the rows: note that this step is the last one. It affects one
        row; none when we are fenced, or `after` is not the last step any more, or (of a step that was
        written) the step is longer than `before`."""
        length = ""
        if before is not None:
            known = f"SELECT 1 FROM {self.steps} WHERE {self._step(step)} AND row_count = {before.rows}"
            length = f" AND EXISTS ({known})"
        return (
            f"UPDATE {self.writers} AS w SET step = {step}, updated_at = now() "
            f"WHERE {self._ours} AND w.step = {after}{length}"
        )

    def note(self, step: Step, note: Written, sources: tuple[int, int] | None) -> str:
        """The statement that goes with `claim`: the step's own row."""
        hash_ = literal(note.digest) if note.digest is not None else "NULL"
        first, last = sources if sources is not None else ("NULL", "NULL")
        return (
            f"INSERT INTO {self.steps} AS s "
            "(sink, generation, step, row_count, epoch, content_hash, source_first, source_last) VALUES "
            f"({literal(self.sink)}, {self.generation}, {step}, {note.rows}, {self.epoch}, {hash_}, "
            f"{first}, {last}) ON CONFLICT (sink, generation, step) DO UPDATE SET row_count = "
            "EXCLUDED.row_count, epoch = EXCLUDED.epoch, content_hash = EXCLUDED.content_hash, "
            "source_first = EXCLUDED.source_first, source_last = EXCLUDED.source_last, written_at = now()"
        )

    def expire(self, step: Step) -> str:
        """Forget the steps before one, but never the last."""
        return (
            f"DELETE FROM {self.steps} AS s USING {self.writers} AS w WHERE {self._ours} "
            f"AND s.sink = w.sink AND s.generation = w.generation AND s.step < least({step}, w.step)"
        )

    @property
    def _ours(self) -> str:
        return (
            f"w.sink = {literal(self.sink)} AND w.generation = {self.generation} AND w.epoch = {self.epoch} "
            f"AND w.query_id = {literal(self.query_id)} AND NOT EXISTS (SELECT 1 FROM {self.writers} n "
            "WHERE n.sink = w.sink AND n.generation > w.generation)"
        )

    def _step(self, step: Step) -> str:
        return f"sink = {literal(self.sink)} AND generation = {self.generation} AND step = {step}"


def shape_of(oid: int) -> str:
    """A query for the names and types of a table's columns, as one text. COPY sends values as they are in
    memory: into a column whose type was changed meanwhile, they might become others."""
    return (
        "SELECT coalesce(string_agg(format('%I %s %s', attname, atttypid, atttypmod), ', ' ORDER BY attnum), "
        f"'') FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
    )
