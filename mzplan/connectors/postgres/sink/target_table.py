"""Compares a sink's table with its outputs, and makes the changes that a sink with `create: true` needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mzplan.connectors.api.outputs import target_outputs, unfit_time
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.postgres.definition import PUBLIC, column_sql, columns_sql, key_of
from mzplan.connectors.postgres.sink.writer import SETUP_LOCK
from mzplan.connectors.postgres.statements import table_sql
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.connectors.postgres.types import (
    TargetColumn,
    altered_type,
    describe_misfit,
    fit,
    shown,
    split_name,
)

# The first schema of the search path. mzplan's own schema counts as the last one.
_FIRST_SCHEMA = """
SELECT s FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (s, n) ORDER BY s = %(own)s, n LIMIT 1
"""


def find_target(connection: Connection, query: ResolvedQuery) -> Table | None:
    """Return the sink's table, or None.

    The staging schema may be in the search path, as `"$user"`. It is searched last, and mzplan's own tables
    in it are ignored.
    """
    return find_table(connection, query.body["table"], staging_schema=query.body["staging_schema"])


def missing_schema(connection: Connection, query: ResolvedQuery) -> str | None:
    """Return the schema in which to create the table, or None if its name has a schema."""
    if split_name(query.body["table"])[0]:
        return None
    row = connection.execute(_FIRST_SCHEMA, {"own": query.body["staging_schema"]}).fetchone()
    return str(row[0]) if row else PUBLIC


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifferences:
    """The differences between a table's columns and a sink's outputs, each with a description.

    `missing`: outputs without a column.
    `wrong`: outputs whose column accepts none of the values, or would change them.
    `narrow`: outputs whose column accepts only some of the values.
    `others`: other problems, each with the ALTER TABLE action that fixes it, or "" if there is none.
    """

    missing: Mapping[Output, str] = field(default_factory=dict)
    wrong: Mapping[Output, str] = field(default_factory=dict)
    narrow: Mapping[Output, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)


def compare_columns(query: ResolvedQuery, table: Table, outputs: Sequence[Output]) -> ColumnDifferences:
    missing: dict[Output, str] = {}
    wrong: dict[Output, str] = {}
    narrow: dict[Output, str] = {}
    others: dict[str, str] = {}
    written: set[str] = set()
    for output in target_outputs(query, outputs):
        target = table.column(output.name)
        if target is None:
            missing[output] = f"it has no column {output.name}" + (f" ({output.type})" if output.type else "")
            continue
        if target.name in written:
            others[f"two outputs go into its column {target.name}"] = ""
        written.add(target.name)
        if not target.writable:
            others[f"its column {target.name} is generated and can't be written"] = ""
        elif output.type is not None:
            _check_type(output, output.type, target, wrong, narrow)
    for column in table.columns:
        if column.required and column.writable and column.name not in written:
            wrong_of = (
                f"its column {column.name} is NOT NULL without a default, and the sink does not write it"
            )
            others[wrong_of] = "" if column.in_key else f"ALTER COLUMN {shown(column.name)} DROP NOT NULL"
    if unfit := unfit_time(query, outputs):
        others[unfit] = ""
    names = {output.name.lower() for output in outputs}
    for key in key_of(query):
        if key.lower() not in names:
            others[f"key column {key} is not among the sink's columns"] = ""
    return ColumnDifferences(missing=missing, wrong=wrong, narrow=narrow, others=others)


def _check_type(
    output: Output, type_: str, target: TargetColumn, wrong: dict[Output, str], narrow: dict[Output, str]
) -> None:
    fits = fit(type_, target)
    if fits == "no":
        wrong[output] = f"its column {target.name} is {target.shown}, which {describe_misfit(type_, target)}"
    elif fits == "narrow":
        narrow[output] = f"its column {target.name} is {target.shown}, and the sink writes {type_}"


def describe_fix(table: Table, outputs: Sequence[Output], others: Mapping[str, str]) -> str:
    """Return how to fix the columns of an existing table: an ALTER TABLE, or changes to the sink."""
    unknown = [output.name for output in outputs if output.type is None]
    typed = [(output.name, output.type) for output in outputs if output.type is not None]
    alterations = [_alter(name, type_, table.column(name)) for name, type_ in typed]
    actions = [*(action for action, _ in alterations), *filter(None, others.values())]
    select = "the sink's select"
    if unknown:
        names = ", ".join(unknown)
        select += f" (only Spark knows the type of {names}, so declare it: CAST(… AS …) AS {unknown[0]})"
    if not actions:
        return f"change {select}."
    conversion = "" if all(keeps_values for _, keeps_values in alterations) else " (this converts its values)"
    joined = "and" if unknown or not all(others.values()) else "or"
    name, listed = table_sql(table.schema, table.name), ",\n".join(f"  {line}" for line in actions)
    return f"change {select}, {joined} the table{conversion}:\nALTER TABLE {name}\n{listed};"


def _alter(name: str, type_: str, target: TargetColumn | None) -> tuple[str, bool]:
    """Return the ALTER TABLE action for an output, and whether existing values stay unchanged."""
    if target is None:
        return f"ADD COLUMN {column_sql(Output(name=name, type=type_))}", True
    new, keeps_values = altered_type(type_, target)
    column = shown(target.name)
    return f"ALTER COLUMN {column} TYPE {new}" + (
        "" if keeps_values else f" USING {column}::text::{new}"
    ), keeps_values


def creation_statements(
    query: ResolvedQuery, table: Table | None, outputs: Sequence[Output], schema: str | None
) -> tuple[str, ...]:
    """Return the statements that a sink with `create: true` runs before it starts.

    They create its table (in `schema`, if its name has none), or add or widen columns. `...` stands for a
    type that only Spark knows. Returns none if nothing is missing, or if the columns differ in other ways.
    """
    if not query.body["create"]:
        return ()
    schema_in_name, name = split_name(query.body["table"])
    if table is None:
        sql = table_sql(schema_in_name or schema, name)
        return (f"CREATE TABLE IF NOT EXISTS {sql} {columns_sql(query, outputs)};",)
    columns, sql = compare_columns(query, table, outputs), table_sql(table.schema, table.name)
    if columns.wrong or columns.others:
        return ()
    added = [f"ADD COLUMN IF NOT EXISTS {column_sql(output)}" for output in columns.missing]
    widened = [
        _alter(output.name, output.type, table.column(output.name))[0]
        for output in columns.narrow
        if output.type is not None
    ]
    return tuple(f"ALTER TABLE {sql} {action};" for action in (*added, *widened))


def create_missing(
    connection: Connection, query: ResolvedQuery, outputs: Sequence[Output]
) -> tuple[str, ...]:
    """Run the statements of `creation_statements`, and return them.

    They run in one transaction, under a lock that serializes such changes in the database. Does nothing if a
    type is unknown. A runner knows all types before the query starts. Raises psycopg.Error.
    """
    if any(output.type is None for output in outputs):
        return ()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        table = find_target(connection, query)
        schema = missing_schema(connection, query) if table is None else None
        statements = creation_statements(query, table, outputs, schema)
        for statement in statements:
            connection.execute(statement.encode())
    return statements
