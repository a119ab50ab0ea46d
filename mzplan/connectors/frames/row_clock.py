"""A clock that orders the rows that one task reads.

A stream has no row numbers, and Spark refuses `monotonically_increasing_id` there.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

NAME = f"mzplan_clock_{secrets.token_hex(8)}"
"""The name of Spark's `reflect` in this process, which nobody can guess (see spark.unsafe_functions)."""


def row_clock() -> Expression:
    """Return the nanoseconds of a clock that never goes back."""
    return f.call_function(NAME, f.lit("java.lang.System"), f.lit("nanoTime")).cast("bigint")
