"""The version of each snapshot that a view's step reads, recorded before its rows are written.

    <warehouse>/checkpoints/<id>/g<n>/snapshots/<step>.json

A step that runs again reads the same versions. The folder keeps the newest steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from mzplan.model.address import Place
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding, open_folder

FORMAT_VERSION = 1
RETAINED_STEPS = 1000


class SnapshotVersions:
    """The snapshot versions in one checkpoint. Only the leading runner writes.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, checkpoint: str):
        self._place = f"{checkpoint}/snapshots"
        self._folder = open_folder(self._place)

    def at(self, step: int) -> dict[str, int]:
        """Return the versions that a step reads, by collection (see `name_of`); empty if unrecorded."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return {}
        with decoding(f"{self._place}/{_file_of(step)}"):
            return {str(name): int(version) for name, version in json.loads(data)["snapshots"].items()}

    def record(self, step: int, versions: Mapping[str, int]) -> None:
        """Record durably the versions that a step reads, and forget the oldest step."""
        content = {"format_version": FORMAT_VERSION, "snapshots": dict(versions)}
        self._folder.write(_file_of(step), json.dumps(content, separators=(",", ":")).encode())
        if step >= RETAINED_STEPS:
            self._folder.delete(_file_of(step - RETAINED_STEPS))

    def forget(self, step: int) -> None:
        """Remove the versions of a step that has written nothing."""
        self._folder.delete(_file_of(step))

    def choose(self, step: int, collections: Mapping[Place, str]) -> dict[Place, int]:
        """Choose and record the version of each collection that a step reads. Return the versions by place.

        `collections`: the path of each collection, by place. A repeated step gets the versions that it has
        already read. For a collection that it hasn't read, or whose version is gone, it gets the newest
        version. That is safe: the step's rows are one commit, so none of them was written."""
        recorded, chosen = self.at(step), {}
        for place, path in collections.items():
            versions = CollectionLog(path).versions()
            version = recorded.get(name_of(place))
            if not versions:
                raise OSError(f"{path} has no Delta log")
            chosen[place] = version if version is not None and version in versions else versions[-1]
        by_name = {name_of(place): version for place, version in chosen.items()}
        if by_name != recorded:
            self.record(step, by_name)
        return chosen


def name_of(place: Place) -> str:
    """Return the collection's name in these files: its id and generation, which are unique."""
    return f"{place[0]}/g{place[1]}"


def _file_of(step: int) -> str:
    return f"{step:020}.json"
