"""Which types of a Delta table hold what a sink writes."""

from __future__ import annotations

import pytest

from mzplan.connectors.delta.column_types import holds


@pytest.mark.parametrize(
    ("there", "written"),
    [
        ("BIGINT", "INT"),
        ("DOUBLE", "INT"),
        ("STRING", "DECIMAL(10,2)"),
        ("STRING", "DATE"),
        ("TIMESTAMP", "DATE"),
        ("DECIMAL(12,2)", "DECIMAL(10,2)"),
        ("DECIMAL(20,1)", "BIGINT"),
        ("ARRAY<STRING>", "ARRAY<INT>"),
    ],
)
def test_what_holds_every_value(there: str, written: str) -> None:
    assert holds(there, written)


@pytest.mark.parametrize(
    ("there", "written"),
    [
        ("INT", "BIGINT"),
        ("FLOAT", "DOUBLE"),
        ("DOUBLE", "BIGINT"),  # from 2 to the power of 53 on
        ("FLOAT", "INT"),
        ("DOUBLE", "STRING"),
        ("DOUBLE", "DECIMAL(10,2)"),
        ("DECIMAL(10,2)", "DECIMAL(12,2)"),
        ("DECIMAL(10,2)", "DECIMAL(10,3)"),
        ("DECIMAL(10,2)", "INT"),
        ("DECIMAL(10,2)", "DOUBLE"),
        ("DATE", "TIMESTAMP"),
        ("BOOLEAN", "STRING"),
        ("STRING", "BINARY"),
    ],
)
def test_what_does_not(there: str, written: str) -> None:
    assert not holds(there, written)
