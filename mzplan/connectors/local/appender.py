"""The appends to a local source by one writer, while it holds the lock.

A step is an Arrow file: its name, its rows and, as metadata, the append's id, row count and digest. Arrow
doesn't check a file's offsets and NULL counts, so rows are validated before anything uses them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.endpoints.interface import Step
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

    from mzplan.connectors.local.steps import FolderView, LocalSteps

_BATCH_ROWS = 20_000
_DIGITS = 20


class DamagedStepError(Exception):
    """Raised for a file that isn't as an append wrote it. The message says why."""


class StepFile:
    """A step's file. The constructor reads only the schema. Raises DamagedStepError."""

    def __init__(self, data: bytes | memoryview):
        import pyarrow as pa

        self._data = pa.py_buffer(data)
        with _decoding():
            self._metadata = pa.ipc.open_file(self._data).schema.metadata

    def summary(self) -> tuple[int, str]:
        """Return the number of rows and their digest, as the append recorded them. Raises
        DamagedStepError."""
        try:
            return int(self._metadata[b"mzplan.rows"]), self._metadata[b"mzplan.digest"].decode()
        except (KeyError, TypeError, ValueError):
            raise DamagedStepError("it doesn't record the number or the digest of its rows") from None

    def rows(self) -> list[RecordBatch]:
        """Return all rows, after checking that they are the appended ones. Raises DamagedStepError."""
        import pyarrow as pa

        rows, digest = self.summary()
        with _decoding():
            file = pa.ipc.open_file(self._data)
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
            plain = [batch.replace_schema_metadata(None) for batch in batches]
            difference = digest_difference(rows, digest, content_hash(plain))
        if difference is not None:
            raise DamagedStepError(
                f"its rows have the digest {difference[1]}, but the appended rows had {difference[0]}"
            )
        return plain


def encode_step(rows: Table, id_: str) -> memoryview:
    """Return the content of a step's file."""
    import pyarrow as pa

    digest = str(content_hash([rows]))
    metadata = {"mzplan.id": id_, "mzplan.rows": str(rows.num_rows), "mzplan.digest": digest}
    described = rows.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, described.schema, options=options) as writer:
        writer.write_table(described, max_chunksize=_BATCH_ROWS)
    return memoryview(sink.getvalue())


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise errors of Arrow and of the row hash as DamagedStepError, because no append wrote such a file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError) as problem:
        raise DamagedStepError(str(problem)) from None


def digest_difference(rows: int, digest: str, other: ContentHash) -> tuple[str, str] | None:
    """Return the recorded digest and the digest of the `other` rows, or None if the rows are the same. A
    digest of an unknown kind matches no rows."""
    if ContentHash.parse(rows, digest) == other:
        return None
    return digest, str(other)


def hash_of(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()[:32]


def file_name(step: Step, key: str, index: int | None = None) -> str:
    """Return the name of a step's file. `index` is the step's number within an append of separate steps."""
    return f"{step:0{_DIGITS}}-{key}{f'+{index}' if index is not None else ''}.arrow"


def step_of(name: str) -> Step | None:
    digits, _, rest = name.partition("-")
    is_step = len(digits) == _DIGITS and digits.isdecimal() and rest.endswith(".arrow")
    return int(digits) if is_step else None


def key_of(name: str) -> str:
    return name.partition("-")[2].removesuffix(".arrow").partition("+")[0]


def is_separate(name: str) -> bool:
    return "+" in name


def index_of(name: str) -> int:
    digits = name.removesuffix(".arrow").partition("+")[2]
    return int(digits) if digits.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedStep:
    """The result of an append.

    - `is_repeat`: whether an append with this id already existed, from `step` on. Then nothing was written.
    - `digests`: the recorded digest and the digest of the new rows, if a repeated append has other rows.
    - `differing_step`: the step whose rows differ.
    """

    step: Step
    rows: int
    is_repeat: bool = False
    digests: tuple[str, str] | None = None
    differing_step: Step | None = None

    @property
    def differs(self) -> bool:
        return self.digests is not None


class StaleStepError(Exception):
    """Raised if the next step isn't the expected one. Nothing was written."""

    def __init__(self, expected: Step, next_step: Step):
        super().__init__(f"the next step is {next_step}, not {expected}")
        self.next_step = next_step


class Appender:
    """Writes appends while it holds the lock. `view` is the folder's content when it got the lock."""

    def __init__(self, steps: LocalSteps, view: FolderView):
        self._steps = steps
        self.view = view
        self._planned: dict[str, tuple[str, Table]] = {}  # by the name of the file

    @property
    def stop(self) -> Step:
        """The step after the existing steps and the planned ones."""
        return self.view.stop + len(self._planned)

    def append(
        self, steps: Sequence[Table], id_: str, expect: Step | None = None, *, separate: bool = False
    ) -> AppendedStep:
        """Plan rows as the next steps, unless an append with this id already exists. `separate`: each step
        becomes a micro-batch of its own. Raises StaleStepError."""
        earlier = self._steps.find(self.view, hash_of(id_))
        if earlier is not None:
            repeat = AppendedStep(step=earlier.step, rows=earlier.rows, is_repeat=True)
            for step, rows in enumerate(steps, earlier.step):
                recorded = self._steps.recorded(self.view, step)
                if recorded is None:
                    continue
                digests = digest_difference(recorded.rows, recorded.digest, content_hash([rows]))
                if digests is not None:
                    return replace(repeat, digests=digests, differing_step=step)
            return repeat
        first = self.stop
        if expect is not None and expect != first:
            raise StaleStepError(expect, first)
        for index, rows in enumerate(steps):
            own_id = id_ if index == 0 else f"{id_}+{index}"
            name = file_name(first + index, hash_of(own_id), *([index] if separate else []))
            self._planned[name] = (own_id, rows)
        return AppendedStep(step=first, rows=sum(rows.num_rows for rows in steps))

    def plans(self, id_: str) -> bool:
        """Whether an append with this id is planned."""
        return any(own_id == id_ for own_id, _ in self._planned.values())

    def known(self, id_: str) -> Step | None:
        """Return the first step of the append with this id, or None."""
        append = self._steps.find(self.view, hash_of(id_))
        return append.step if append is not None else None

    def write(self) -> None:
        """Write all planned steps or none. Call it once."""
        for name, (id_, rows) in reversed(self._planned.items()):
            self._steps.folder.write(name, encode_step(rows, id_))
