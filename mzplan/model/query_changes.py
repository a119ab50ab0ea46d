"""A changed query of a view: what becomes of the state that the former query has computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.stored import SPARSE

# kept: the state means the same. mixed: Spark would resume, but another rule computed the state. unknown: the
# analysis can't tell. lost: Spark can't resume.
StateEffect = Literal["kept", "mixed", "unknown", "lost"]
STATE_EFFECTS: tuple[StateEffect, ...] = ("kept", "mixed", "unknown", "lost")  # from the best to the worst


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """What a changed query can use of one operator's state, with the reason as a clause."""

    kind: str
    state: StateEffect
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column that the old and the new query compute differently.

    - `before`, `after`: its SQL, with the groups and conditions that have changed.
    - `since_step`: the first step that the new query computes, as the runner last reported; None if unknown
      or if the view is replaced.
    """

    name: str
    before: str
    after: str
    since_step: int | None = None


def column_text(column: ColumnChange, replaced: bool = False) -> str:
    """Return how a column changes: "`total`: sum(amount) until step 812, sum(tax) after it"."""
    if replaced:
        return f"`{column.name}`: {column.after} instead of {column.before}"
    if column.since_step is None:
        return f"`{column.name}`: {column.before} before the change, {column.after} after it"
    if column.since_step == 0:
        return f"`{column.name}`: {column.after} from the first step on"
    return f"`{column.name}`: {column.before} until step {column.since_step - 1}, {column.after} after it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCost:
    """What a new generation would read again. None: no runner has reported it.

    - `seconds`: at the rate of the view's last micro-batch.
    """

    steps: int | None = None
    rows: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryChange:
    """A changed query.

    - `diff`: a unified diff of its text, without file names.
    - `because`: the reason for the effect, as a clause.
    - `operators`: one for each stateful operator in Spark's order, if they correspond.
    - `columns`: the columns that are computed differently.
    - `cost`: of a replace, unless the state is kept.
    - `sinks`: sinks below that keep rows of the former query. Empty if the view is replaced.
    - `is_rewritten`: both queries keep state and mean the same.
    - `recomputes`: the view computes all rows again, and writes only the rows that differ. `cost` is then
      what that reads.
    """

    diff: str
    state: StateEffect
    because: str
    operators: tuple[OperatorChange, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    cost: ReplaceCost | None = None
    sinks: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    is_rewritten: bool = field(default=False, metadata=SPARSE)
    recomputes: bool = field(default=False, metadata=SPARSE)

    @property
    def has_state(self) -> bool:
        """Whether the former or the new query keeps state."""
        return bool(self.operators) or self.state != "kept"
