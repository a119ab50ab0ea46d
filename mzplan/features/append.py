"""The `append` command: add rows to a local source, durably, without Spark or a runner."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.connectors.local.appender import StaleStepError
from mzplan.connectors.local.row_files import FORMATS, BadFileError, format_of, read_rows
from mzplan.connectors.local.step_numbers import appenders
from mzplan.connectors.local.steps import RESERVED, LostStepsError
from mzplan.endpoints.arrow import arrow_schema, fit
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, SourceRange, error
from mzplan.model.state import ResourceState, State, unknown_address
from mzplan.model.words import count
from mzplan.operations.project import Project, Reporter
from mzplan.schema.columns import CHANGE, DELETE, UPSERT, Column, change_columns
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.secrets.policy import NO_SECRET_VALUES
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.paths import absolute

if TYPE_CHECKING:
    from pyarrow import Table

    from mzplan.connectors.local.appender import AppendedStep
    from mzplan.connectors.local.row_files import Format, Mistake

LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedFile:
    """A file of rows. `name` is for messages; `id` identifies this append.

    `deletes`: whether the file has the keys of rows to delete."""

    name: str
    data: bytes
    format: Format
    id: str
    deletes: bool = False


def append(
    project: Project, address: Address, rows: AppendedFile, reporter: Reporter, *, expect: int | None = None
) -> AppendedStep:
    """Append rows as the next step of a local source, unless an earlier append has this id and these rows.

    Raises MzplanError, and then writes nothing:
    - MZ070: the source isn't local.
    - MZ083: the rows don't fit its columns.
    - MZ084: the next step isn't `expect`.
    - MZ081: steps that a query has read are lost.
    - MZ133: an earlier append with this id had other rows, or the id is reserved for mzplan.
    - MZ035: the storage failed.
    """
    _ensure_free(address, rows.id)
    state = project.store.read_state()
    while True:
        resource = _local_source(address, state)
        with reporter.working(f"reading {rows.name}"):
            table = _fitting(resource, rows)
        reporter.detail(f"{rows.name}: {table.num_rows} rows fit the columns of {address}")
        appended = _write(project, state, resource, table, rows.id, expect)
        failpoint(Failpoint.APPEND_WRITTEN)
        # A replacement may have been committed meanwhile; its generation has its own columns and steps.
        state = project.store.read_state()
        now = state.resources.get(address)
        if now is not None and now.place == resource.place:
            if appended.digests is not None:
                raise _other_rows(address, rows, appended, *appended.digests)
            return appended


def _fitting(resource: ResourceState, rows: AppendedFile) -> Table:
    try:
        columns, keys = columns_of(resource.type, resource.body), keys_of(resource.type, resource.body)
        if rows.deletes and not keys:
            raise _without_key(resource.address)
        if not keys:
            return read_rows(rows.data, rows.format, columns)
        key_names = {key.lower() for key in keys}
        given_columns = [c for c in columns if c.name.lower() in key_names] if rows.deletes else columns
        return _changes(read_rows(rows.data, rows.format, given_columns), columns, keys, rows.deletes)
    except BadFileError as bad:
        raise _unfit(resource.address, rows, bad.mistakes, bad.more) from None


def _changes(rows: Table, columns: Sequence[Column], keys: Sequence[str], deletes: bool) -> Table:
    """Return the rows as changes of a keyed collection."""
    import pyarrow as pa

    change = pa.array([DELETE if deletes else UPSERT] * rows.num_rows, pa.string())
    columns_written = change_columns(columns, keys)
    batches = rows.append_column(CHANGE, change).combine_chunks().to_batches()
    return pa.Table.from_batches(
        [fit(batch, columns_written) for batch in batches], arrow_schema(columns_written)
    )


def _without_key(address: Address) -> MzplanError:
    return error("MZ083.rows-cannot", address=address)


def _write(
    project: Project, state: State, resource: ResourceState, table: Table, id_: str, expect: int | None
) -> AppendedStep:
    warehouse = absolute(project.settings.directory, state.warehouse)
    try:
        with appenders(warehouse, [resource.place], project.store.lock_for_append) as by_place:
            appender = by_place[resource.place]
            appended = appender.append([table], id_, expect)
            appender.write()
            return appended
    except StaleStepError as stale:
        raise error(
            "MZ084.next-step", address=resource.address, next_step=stale.next_step, expect=expect
        ) from None
    except LostStepsError as lost:
        raise error(
            "MZ081.steps-lost",
            address=resource.address,
            steps=Checkpoint.of(warehouse, *resource.place).steps,
            lost=lost,
        ) from None
    except OSError as problem:
        steps = Checkpoint.of(warehouse, *resource.place).steps
        raise error(
            "MZ035.cannot-write-step",
            address=resource.address,
            steps=steps,
            strerror=problem.strerror or problem,
        ) from None


def _ensure_free(address: Address, id_: str) -> None:
    if id_.startswith(RESERVED):
        raise error("MZ133.no-append", address=address, id=id_, reserved=RESERVED)


def _other_rows(
    address: Address, rows: AppendedFile, step: AppendedStep, recorded_digest: str, given_digest: str
) -> MzplanError:
    return error(
        "MZ133.earlier-append",
        address=address,
        id=rows.id,
        name=rows.name,
        step=step.step,
        rows=step.rows,
        recorded_digest=recorded_digest,
        given_digest=given_digest,
    )


def _local_source(address: Address, state: State) -> ResourceState:
    resource = state.resources.get(address)
    if resource is None:
        raise unknown_address(address, state)
    if (address.kind, resource.type) != ("source", LOCAL):
        description = f"of type {resource.type}" if address.reads_upstream else f"a {address.kind}"
        local = sorted(
            (str(a) for a, r in state.resources.items() if (a.kind, r.type) == ("source", LOCAL)), key=natural
        )
        raise error(
            "MZ070.cannot-appended" if local else "MZ070.cannot-appended-only-source",
            address=address,
            description=description,
            local=local,
        )
    return resource


def _unfit(address: Address, rows: AppendedFile, mistakes: tuple[Mistake, ...], more: int) -> MzplanError:
    unit = "row" if rows.format == "parquet" else "line"
    diagnostics = []
    for mistake in mistakes:
        where = f"{unit} {mistake.line}: " if mistake.line is not None else ""
        at = mistake.line or 1
        diagnostics.append(
            Diagnostic.of(
                "MZ083.not-fit",
                range=SourceRange(path=rows.name, line=at, column=1, end_line=at, end_column=1)
                if rows.format != "parquet" and mistake.line is not None
                else None,
                address=address,
                name=rows.name,
                where=where,
                text=mistake.text,
            )
        )
    if more:
        diagnostics.append(Diagnostic.of("MZ083.more-mistakes", address=address, more=more, name=rows.name))
    return MzplanError(diagnostics)


@command("append")
@click.argument("address", metavar="ADDRESS", type=QUERY)
@click.option(
    "--file", "file", metavar="FILE", required=True, help="The file that contains the rows (- for stdin)."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="The rows' format (default: from the file's name).",
)
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="An id for this append. Repeating an append with the same id has no effect.",
)
@click.option(
    "--expect-step",
    metavar="N",
    type=click.IntRange(min=0),
    help="Fail unless this is the next step's number.",
)
@click.option("--delete", "deletes", is_flag=True, help="Delete the rows with the keys in the file.")
def command_append(
    invocation: Invocation,
    address: Address,
    file: str,
    format_: str | None,
    id_: str | None,
    expect_step: int | None,
    deletes: bool,
) -> int:
    """Append rows to a local source, as one durable step.

    mzplan appends all rows of the file, or none if a row is wrong. This doesn't need a runner; a runner reads
    the rows later.
    """
    work = invocation.work()
    name, data = _read(file)
    format_found = _format(name, format_)
    rows = AppendedFile(
        name=name, data=data, format=format_found, id=id_ or str(uuid.uuid4()), deletes=deletes
    )
    appended = append(work.project, address, rows, work.reporter, expect=expect_step)
    for instance in work.project.settings.instances.values():
        work.runners.wake(instance, NO_SECRET_VALUES)
    if invocation.json:
        invocation.document(
            {
                "address": str(address),
                "step": appended.step,
                "rows": appended.rows,
                "id": rows.id,
                "repeated": appended.is_repeat,
                "differs": appended.differs,
            }
        )
    elif appended.is_repeat:
        text = f"{address}: id {rows.id} was appended before, as step {appended.step}: nothing was written."
        invocation.out(text)
    else:
        invocation.out(f"{address}: step {appended.step}, {count(appended.rows, 'row')} (id {rows.id}).")
    return ExitCode.OK


def _read(file: str) -> tuple[str, bytes]:
    if file == "-":
        return "stdin", sys.stdin.buffer.read()
    try:
        return file, Path(file).read_bytes()
    except OSError as problem:
        raise error("MZ083.cannot-read", file=file, strerror=problem.strerror) from None


def _format(name: str, requested: str | None) -> Format:
    chosen = next((format_ for format_ in FORMATS if format_ == requested), None) or format_of(name)
    if chosen is None and name == "stdin":
        return "jsonl"
    if chosen is None:
        raise click.UsageError(f"The format of {name!r} is unknown: give --format jsonl, csv or parquet.")
    return chosen
