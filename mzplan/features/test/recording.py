"""Records a test: the rows that a view read in some of its steps, and what its definition gives for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mzplan.config.project_files import TESTS_FOLDER
from mzplan.endpoints.arrow import arrow_schema, build_array
from mzplan.features.test.case_files import descriptions
from mzplan.features.test.cases import Step
from mzplan.features.test.comparison import rows_of
from mzplan.features.test.runs import run_once
from mzplan.features.test.written_rows import DELETE, OPERATION
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.resources import Configuration
from mzplan.model.state import State, committed_record
from mzplan.model.trials import GivenRow
from mzplan.operations.connections import require_here
from mzplan.operations.project import Workbench, read_state, unreadable
from mzplan.render.row_files import json_values
from mzplan.schema.columns import CHANGE, POSITION, Column
from mzplan.schema.columns import DELETE as DELETED
from mzplan.schema.description import CollectionRead, Description, describe
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog, versions_between
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.rows.late_rows import offsets_of_step
from mzplan.warehouse.rows.replay import collection_batches
from mzplan.warehouse.rows.snapshot import SnapshotVersions, TableSnapshot, name_of
from mzplan.warehouse.step_history import StepHistory

_MOST_ROWS = 1000
_MASKED = ("STRING", "BIGINT", "INT", "SMALLINT")


def record(
    work: Workbench,
    configuration: Configuration,
    address: Address,
    steps: tuple[int, int | None],
    masked: Sequence[str],
    starting: Callable[[], None],
) -> Path:
    """Write a test of a view from steps that it has read, and return the file. Raises MzplanError.

    `masked`: columns whose values are replaced; equal values stay equal.
    """
    if address.kind != "view":
        raise error("MZ354.no-view", address=address)
    state = read_state(work.store, work.reporter)
    view = describe(committed_record(state, address), state.resources)
    require_here(work.project, state, [state.resources[read.address] for read in view.inputs.values()])
    mask = _Mask(_maskable(view, masked))
    read = _Reading(work, state, view)
    try:
        numbers = read.numbers(steps)
        given = [mask.step(step) for step in read.steps(numbers)]
    except GoneError as gone:
        raise error("MZ091.collection-no", address=address, gone=gone) from None
    except OSError as problem:
        raise unreadable(f"The steps of {address} can't be read", problem, address) from None
    edited = descriptions(configuration.resources)[address]
    columns = [column.name for column in columns_of(edited.type, edited.body)]
    expected = rows_of(run_once(edited, given, work.directory, starting), columns)
    name = f"{address.name} in steps {numbers[0]} to {numbers[-1]}"
    file = f"{address.name}_{numbers[0]}_{numbers[-1]}.yaml"
    text = _text(name, edited, given, expected)
    try:
        GuardedFolder(Path(work.directory), TESTS_FOLDER).create(file, text.encode())
    except FileExistsError:
        raise error("MZ354.exists", path=f"{TESTS_FOLDER}/{file}") from None
    return Path(TESTS_FOLDER, file)


class _Reading:
    """Reads what a committed view has read. Raises GoneError, OSError."""

    def __init__(self, work: Workbench, state: State, view: Description):
        self._view = view
        self._warehouse = absolute(work.directory, state.warehouse or work.project.settings.warehouse)
        self._checkpoint = Checkpoint.of(self._warehouse, *view.place)
        self._rows = 0
        self._tables: dict[str, tuple[int, tuple[GivenRow, ...]]] = {}  # the snapshots so far

    def numbers(self, wanted: tuple[int, int | None]) -> list[int]:
        """Return the committed steps in a range. Raises MzplanError MZ354 if there are none."""
        history = StepHistory(self._warehouse, self._view.place)
        numbers = [record.step for record in history.committed(*wanted)]
        if not numbers:
            steps = history.read(1)
            last = max(steps.upper - 1, 0)
            raise error("MZ354.no-steps", address=self._view.address, since=steps.since, last=last)
        return numbers

    def steps(self, numbers: Sequence[int]) -> Iterator[Step]:
        """Yield the rows that each step read, by input, with the changes of the view's snapshots."""
        for number in numbers:
            step = dict(self._snapshots(number))
            offsets = self._checkpoint.log.lines(number)
            if not offsets or (number > 0 and not self._checkpoint.log.lines(number - 1)):
                raise error("MZ354.gone", address=self._view.address, step=number)
            for name, start, end in offsets_of_step(
                self._warehouse, self._view, self._checkpoint.log, number
            ):
                if name is not None:
                    step[name] = (*step.get(name, ()), *self._changes(self._view.reads[name], start, end))
            yield step

    def _changes(self, read: CollectionRead, start: Any, end: Any) -> Iterator[GivenRow]:
        history = StepHistory(self._warehouse, read.place)
        versions = versions_between(start, end, history.collection)
        if versions is None:
            return
        for record in history.committed(0, None):
            if record.version is not None and versions[0] <= record.version <= versions[1]:
                for batch in collection_batches(history.collection, record):
                    yield from self._counted(_given(read, batch.to_pylist()))

    def _snapshots(self, number: int) -> Iterator[tuple[str, tuple[GivenRow, ...]]]:
        chosen = SnapshotVersions(self._checkpoint.folder).at(number)
        for name, read in self._view.snapshots.items():
            path = collection_path(self._warehouse, *read.place)
            version = chosen.get(name_of(read.place), CollectionLog(path).versions()[-1])
            former, before = self._tables.get(name, (None, ()))
            if version == former:
                continue
            _, batches = TableSnapshot(path, version).rows()
            rows = (row for batch in batches for row in batch.to_pylist())
            now = tuple(islice(_given(read, rows), _MOST_ROWS + 1))
            if len(now) > _MOST_ROWS:
                raise error("MZ354.too-many", address=self._view.address, most=_MOST_ROWS)
            self._tables[name] = (version, now)
            yield name, tuple(self._counted(_changed_rows(before, now, keys_of(read.type, read.body))))

    def _counted(self, rows: Iterable[GivenRow]) -> Iterator[GivenRow]:
        for row in rows:
            self._rows += 1
            if self._rows > _MOST_ROWS:
                raise error("MZ354.too-many", address=self._view.address, most=_MOST_ROWS)
            yield row


def _given(read: CollectionRead, rows: Iterable[Mapping[str, Any]]) -> Iterator[GivenRow]:
    columns, keys = columns_of(read.type, read.body), keys_of(read.type, read.body)
    for row in rows:
        is_deleted = row.get(CHANGE) == DELETED
        names = keys if is_deleted else [column.name for column in columns]
        values = {name: value for name, value in row.items() if name not in (CHANGE, POSITION)}
        yield GivenRow({name: values.get(name) for name in names}, is_deleted)


def _changed_rows(
    before: Sequence[GivenRow], now: Sequence[GivenRow], keys: Sequence[str]
) -> Iterator[GivenRow]:
    """Yield the rows that a table has instead of its former ones: without a key, only additional rows."""
    gone = list(before)
    for row in now:
        if row in gone:
            gone.remove(row)
        else:
            yield row
    held = [[row.values[key] for key in keys] for row in now]
    for row in gone if keys else ():
        if [row.values[key] for key in keys] not in held:
            yield GivenRow({key: row.values[key] for key in keys}, is_deleted=True)


def _maskable(view: Description, masked: Sequence[str]) -> Mapping[str, Column]:
    """Return the columns of the inputs to mask, by name. Raises MzplanError MZ354 for an unknown one."""
    columns = {
        column.name: column
        for read in view.inputs.values()
        for column in columns_of(read.type, read.body)
        if column.type in _MASKED
    }
    for name in masked:
        if name not in columns:
            raise error("MZ354.mask", address=view.address, column=name, columns=sorted(columns))
    return {name: columns[name] for name in masked}


@dataclass(slots=True)
class _Mask:
    """Replaces values of columns. Equal values stay equal, in all columns, so joins still match."""

    columns: Mapping[str, Column]
    _numbers: dict[Any, int] = field(default_factory=dict)

    def step(self, step: Step) -> Step:
        return {name: tuple(map(self._row, rows)) for name, rows in step.items()}

    def _row(self, row: GivenRow) -> GivenRow:
        values = {name: self._value(name, value) for name, value in row.values.items()}
        return GivenRow(values, row.is_deleted)

    def _value(self, name: str, value: Any) -> Any:
        if name not in self.columns or value is None:
            return value
        number = self._numbers.setdefault(value, len(self._numbers) + 1)
        return f"masked {number}" if isinstance(value, str) else number


def _text(name: str, view: Description, given: Sequence[Step], expected: Sequence[Mapping[str, Any]]) -> str:
    """Return the file. Each row is on its own line, as JSON, which YAML includes."""
    lines = ["tests:", f"  {json.dumps(name)}:", f"    view: {view.address.name}", "    given:"]
    for input_, read in view.inputs.items():
        lines.append(f"      {input_}:")
        for step in given:
            lines.append("        -" if step.get(input_) else "        - []")
            lines += [f"          - {row}" for row in _json_rows(read, step.get(input_, ()))]
    lines += ["    expect:", "      rows:" if expected else "      rows: []"]
    lines += [f"        - {json.dumps(row, ensure_ascii=False)}" for row in expected]
    return "\n".join(lines) + "\n"


def _json_rows(read: CollectionRead, rows: Sequence[GivenRow]) -> Iterator[str]:
    columns = columns_of(read.type, read.body)
    schema = arrow_schema(columns)
    values = [json_values(build_array([row.values.get(f.name) for row in rows], f.type)) for f in schema]
    for row, cells in zip(rows, zip(*values, strict=True), strict=True):
        written = {c.name: cell for c, cell in zip(columns, cells, strict=True) if cell is not None}
        deleted = {OPERATION: DELETE} if row.is_deleted else {}
        yield json.dumps({**written, **deleted}, ensure_ascii=False)
