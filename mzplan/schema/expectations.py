"""The expectations of a source or view (`expect`): what each row that it writes must be like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mzplan.schema.sql.column_replacement import quoted_name

EXPECT = "expect"  # the property

OnViolation = Literal["warn", "drop", "dead-letter", "fail"]
DEAD_LETTER: OnViolation = "dead-letter"
REMOVING: tuple[OnViolation, ...] = ("drop", DEAD_LETTER)
"""What removes a row from those that a step writes."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation.

    - `check`: the condition that rows must meet, as SQL. NULL counts as met. "" if it is about several rows.
    - `property`: the property that states it, for messages.
    - `unique`: the columns of which no two rows have the same values; empty for a condition.
    """

    name: str
    check: str
    property: str
    on_violation: OnViolation
    unique: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the condition, for people."""
        return self.check or f"unique: {', '.join(self.unique)}"


def expectations_of(body: Mapping[str, Any]) -> tuple[Expectation, ...]:
    """Return the expectations of a valid body, in the order of their names."""
    return tuple(_expectation(name, stated) for name, stated in sorted((body.get(EXPECT) or {}).items()))


def keeps_letters(body: Mapping[str, Any]) -> bool:
    """Return whether rows that violate an expectation become dead letters."""
    return any(expectation.on_violation == DEAD_LETTER for expectation in expectations_of(body))


def changed_expectations(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the expectations that a body states otherwise than the body before, in order."""
    former = before.get(EXPECT) or {}
    stated = sorted((after.get(EXPECT) or {}).items())
    return tuple(name for name, one in stated if former.get(name) != one)


def deciding_rows(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return row properties with only those expectations that decide which rows are written."""
    dropping = {e.name: e.check for e in expectations_of(properties) if e.on_violation in REMOVING}
    others = {name: value for name, value in properties.items() if name != EXPECT}
    return {**others, EXPECT: dropping} if dropping else others


def columns_named(stated: Mapping[str, Any], property_: str) -> tuple[str, ...]:
    """Return the columns of an expectation's `not_null` or `unique`."""
    named = stated.get(property_, ())
    return (named,) if isinstance(named, str) else tuple(named)


def _expectation(name: str, stated: Mapping[str, Any]) -> Expectation:
    on_violation = stated.get("on_violation", "warn")
    if "check" in stated:
        return Expectation(name, stated["check"], "check", on_violation)
    if "unique" in stated:
        return Expectation(name, "", "unique", on_violation, columns_named(stated, "unique"))
    conditions = (f"{quoted_name(column)} IS NOT NULL" for column in columns_named(stated, "not_null"))
    return Expectation(name, " AND ".join(conditions), "not_null", on_violation)
