"""What is recorded of a step, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Line = str | bytes
DigestOrigin = Literal["stream", "collection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A micro-batch. What is not known is None.

    `start` and `end` are Spark's entries in the offset log before and after it (`start` of the very first is
    None where the upstream has no beginning to name). `rows` are those that a source wrote, or a sink read.
    `time` is when it became durable (sinks: when it began), in seconds since the epoch. Of sources: `bytes`
    and `version` (of the collection's table), and the content hash `digest`, 16 hexadecimal digits; it was
    computed while the rows went by (`stream`), or later from what the collection held (`collection`). Of
    sinks: `sources`, the first and last step of its source that it covers, at least in part.
    """

    step: int
    start: Any = None
    end: Any = None
    rows: int | None = None
    bytes: int | None = None
    time: float | None = None
    committed: bool = True
    version: int | None = None
    digest: str | None = None
    digest_from: DigestOrigin | None = None
    sources: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, as `mzplan steps --json` shows it."""
        return {
            "step": self.step,
            "from": self.start,
            "to": self.end,
            "rows": self.rows,
            "bytes": self.bytes,
            "time": self.time,
            "committed": self.committed,
            "version": self.version,
            "hash": self.digest,
            "hash_from": self.digest_from,
            "sources": list(self.sources) if self.sources else None,
        }

    def line(self) -> str:
        """One line of the index: of a committed step, without what is not known."""
        known = {k: v for k, v in self.to_json().items() if v is not None and k != "committed"}
        return json.dumps(known, separators=(",", ":"))

    @classmethod
    def parse(cls, line: Line) -> StepRecord:
        """The inverse. Raises ValueError for anything else."""
        data = json.loads(line)
        if not isinstance(data, Mapping) or not isinstance(data.get("step"), int):
            raise ValueError(f"no step: {line!r}")
        sources = data.get("sources")
        return cls(
            step=data["step"],
            start=data.get("from"),
            end=data.get("to"),
            rows=data.get("rows"),
            bytes=data.get("bytes"),
            time=data.get("time"),
            version=data.get("version"),
            digest=data.get("hash"),
            digest_from=data.get("hash_from"),
            sources=(sources[0], sources[1]) if isinstance(sources, list) and len(sources) == 2 else None,
        )
