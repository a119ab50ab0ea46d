"""The ledger of written steps: SQL statements over mzplan's own tables, in which every step is recorded.

In the schema `staging_schema`:

- `writers`: one row per sink and generation, with the allowed writer (epoch, query) and the last step.
- `steps`: one row per step, with the time, the row count, the content hash, and the first and last step of
  the source that it covers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mzplan.connectors.postgres.types import literal, quoted
from mzplan.endpoints.interface import Step, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The statements of one run for one generation of a sink.

    They find no row if another query, a newer epoch or a newer generation writes now.
    """

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

    @property
    def place(self) -> tuple[str, int]:
        return self.sink, self.generation

    def last(self) -> str:
        """Return the query for the last written step. It has no row if another run writes."""
        return f"SELECT w.step FROM {self.writers} AS w WHERE {self._own_row}"

    def written(self, step: Step) -> str:
        """Return the query for a step's row count and content hash. It has no row for an unknown step."""
        return f"SELECT row_count, content_hash FROM {self.steps} WHERE {self._step(step)}"

    def lock(self) -> str:
        """Return the statement that waits for a transaction that begins a newer generation.

        Run it before `claim`, in the same transaction. If `claim` waited itself, it would continue with the
        rows that it has read before, and not see the newer generation's row.
        """
        return (
            f"SELECT 1 FROM {self.writers} WHERE sink = {literal(self.sink)} "
            f"AND generation = {self.generation} FOR UPDATE"
        )

    def claim(self, step: Step, after: int, before: Written | None) -> str:
        """Return the statement that records this step as the last one.

        Run it in the transaction that wrote the rows. It affects one row. It affects none if this run is
        fenced, if `after` is no longer the last step, or if the step's row count differs from `before`.
        """
        length = ""
        if before is not None:
            unchanged = f"SELECT 1 FROM {self.steps} WHERE {self._step(step)} AND row_count = {before.rows}"
            length = f" AND EXISTS ({unchanged})"
        return (
            f"UPDATE {self.writers} AS w SET step = {step}, updated_at = now() "
            f"WHERE {self._own_row} AND w.step = {after}{length}"
        )

    def note(self, step: Step, note: Written, sources: tuple[int, int] | None) -> str:
        """Return the statement that writes the step's own row. Run it in the transaction of `claim`."""
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
        """Return the statement that deletes the records of earlier steps, but never of the last step."""
        return (
            f"DELETE FROM {self.steps} AS s USING {self.writers} AS w WHERE {self._own_row} "
            f"AND s.sink = w.sink AND s.generation = w.generation AND s.step < least({step}, w.step)"
        )

    @property
    def _own_row(self) -> str:
        return (
            f"w.sink = {literal(self.sink)} AND w.generation = {self.generation} AND w.epoch = {self.epoch} "
            f"AND w.query_id = {literal(self.query_id)} AND NOT EXISTS (SELECT 1 FROM {self.writers} n "
            "WHERE n.sink = w.sink AND n.generation > w.generation)"
        )

    def _step(self, step: Step) -> str:
        return f"sink = {literal(self.sink)} AND generation = {self.generation} AND step = {step}"


def shape_of(oid: int) -> str:
    """Return a query that gives the names and types of a table's columns, as one text.

    Compare its result before and after a COPY. The COPY is binary, so if somebody alters a column's type
    meanwhile, the server would read other values from the same bytes.
    """
    return (
        "SELECT coalesce(string_agg(format('%I %s %s', attname, atttypid, atttypmod), ', ' ORDER BY attnum), "
        f"'') FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
    )
