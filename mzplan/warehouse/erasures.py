"""The conditions of erasures: which rows to erase from a source's collection, and from what follows from it.

A condition has a personal value, and the State and its history are kept for ever. So the State only has the
name of a file in the source's checkpoint, and the task removes this file once the rows are erased.
"""

from __future__ import annotations

import json
import secrets

from mzplan.warehouse.folder import decoding, open_folder

FORMAT_VERSION = 1
MARK = "mzplan erases rows"
"""The text in the log of a table that marks a commit as an erasure. It names no value."""


class EraseConditions:
    """The conditions of one checkpoint's erasures that aren't done yet, by name.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, checkpoint: str):
        """`checkpoint`: the checkpoint's folder."""
        self._place = f"{checkpoint}/erasures"
        self._folder = open_folder(self._place)

    def write(self, name: str, condition: str) -> None:
        """Write a condition durably."""
        data = {"format_version": FORMAT_VERSION, "where": condition}
        self._folder.write(f"{name}.json", json.dumps(data).encode())

    def read(self, name: str) -> str | None:
        """Return a condition; None if it is missing, for example because its rows are erased."""
        data = self._folder.read(f"{name}.json")
        if data is None:
            return None
        with decoding(f"{self._place}/{name}.json"):
            return str(json.loads(data)["where"])

    def remove(self, name: str) -> None:
        """Remove a condition if it exists."""
        self._folder.delete(f"{name}.json")

    def names(self) -> list[str]:
        """Return the names of all conditions."""
        return [name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json")]


def new_name() -> str:
    """Return a name for a condition, which says nothing about it."""
    return secrets.token_hex(8)
