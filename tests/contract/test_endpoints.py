"""The endpoint contract over the local source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from mzplan.connectors.local.source import LocalFactory
from mzplan.connectors.local.steps import LocalSteps
from mzplan.endpoints.testing import InputSubject, batch_of, config_columns, input_contract


def local(folder: Path) -> InputSubject:
    storage = str(folder / "steps")
    fed = iter(range(1_000))

    def feed(rows: list[dict[str, Any]]) -> None:
        LocalSteps(storage).append(pa.Table.from_batches([batch_of(rows)]), f"append {next(fed)}")

    return InputSubject(
        factory=LocalFactory(), config={"storage": storage, "columns": config_columns()}, feed=feed
    )


TestLocalInput = input_contract(local)
