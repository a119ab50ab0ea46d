"""The SQL of a relational view: a query that does more than compute each row from one row.

It joins, aggregates, unites, reads snapshots or makes several rows of one. sqlglot reads it, without Spark,
and each part of its tree is on a list. Spark gets `sql_of(text)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.schema.sql_text import bare


def is_relational(body: Mapping[str, Any]) -> bool:
    """Whether this is the body of a view by SQL whose query is relational."""
    return "query" in body and "from" not in body


def sql_of(text: str) -> str:
    """Return what Spark is given of a view's SQL: its tokens without comments. Raises SqlTextError."""
    return bare(text.rstrip().removesuffix(";")).sql
