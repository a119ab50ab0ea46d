"""A committed project on a dry instance, with stored steps of its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from mzplan.warehouse.content_hash import ContentHash
from tests.stored_steps import StoredSink, StoredSource, named
from tests.unit.cli_runs import Ran, apply, failed, mzplan, state, write


class StoredShop:
    """A project of one source with two sinks, and the source's storage."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None):
        self.folder = write(folder)
        apply(folder)
        self.ids = {address: record["id"] for address, record in state(folder)["resources"].items()}
        self.source = StoredSource(folder / "warehouse", self.ids["source.orders"], schema)
        self.hashes: list[ContentHash] = []

    def run(self, *arguments: str, code: int = 0) -> Ran:
        ran = mzplan(self.folder, *arguments)
        assert ran.code == code, ran
        return ran

    def json(self, *arguments: str, code: int = 0) -> Any:
        return self.run(*arguments, "--json", code=code).json()

    def error(self, *arguments: str, code: int) -> dict[str, Any]:
        return failed(self.folder, *arguments, code=code)

    def sink(self, name: str) -> StoredSink:
        return StoredSink(self.source, self.ids[f"sink.{name}"])

    def steps(self, count: int) -> None:
        """Record so many steps of two rows each."""
        first = len(self.hashes)
        fresh = [self.source.run(named(2 * i, 2 * i + 2)) for i in range(first, first + count)]
        self.source.record(*fresh)
        self.hashes += fresh
