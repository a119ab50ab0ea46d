"""Which types of a Delta table hold every value that a sink writes."""

from __future__ import annotations

import pytest

from mzplan.connectors.delta.column_types import holds


@pytest.mark.parametrize(
    ("column", "written", "fits"),
    [
        ("BIGINT", "INT", True),
        ("INT", "BIGINT", False),
        ("DOUBLE", "INT", True),
        ("DOUBLE", "BIGINT", False),  # from 2 to the power of 53
        ("FLOAT", "INT", False),
        ("DOUBLE", "DECIMAL(10,2)", False),
        ("STRING", "DATE", True),
        ("STRING", "BINARY", False),
        ("BOOLEAN", "STRING", False),
        ("TIMESTAMP", "DATE", True),
        ("DATE", "TIMESTAMP", False),
        ("DECIMAL(12,2)", "DECIMAL(10,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(12,2)", False),
        ("DECIMAL(20,1)", "BIGINT", True),
        ("DECIMAL(10,2)", "INT", False),
        ("ARRAY<STRING>", "ARRAY<INT>", True),
    ],
)
def test_a_column_holds_every_written_value(column: str, written: str, fits: bool) -> None:
    assert holds(column, written) is fits
