"""The `diff` command: compare the rows of two generations of a view or source."""

from __future__ import annotations

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.features.diff.generations import compare_generations
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.render.row_comparison import compared_to_json, table_of_both
from mzplan.render.text import Paint


@command("diff")
@click.argument("address", type=QUERY)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0, max=100_000),
    default=20,
    show_default=True,
    help="How many rows of each kind to show.",
)
@click.option(
    "--by",
    metavar="COLUMNS",
    help="The columns that identify a row, separated by commas (default: the key).",
)
def command_diff(invocation: Invocation, address: Address, limit: int, by: str | None) -> int:
    """Compare the rows of a replaced view or source with those of its former generation.

    Compares the newest rows of both collections in the warehouse, with Spark in this process: rows that only
    one generation has, and rows with one key and other values. Without a key, whole rows are compared. The
    former generation is there until its storage is removed (`retain_dropped`).
    """
    columns = tuple(name.strip() for name in by.split(",") if name.strip()) if by is not None else ()
    with invocation.progress.working(f"comparing the generations of {address}"):
        compared = compare_generations(
            invocation.project(),
            address,
            columns,
            limit,
            invocation.progress,
            lambda: invocation.note("Starting Spark in this process"),
        )
    head = {
        "format_version": "1.0",
        "address": str(address),
        "generations": {"before": compared.before, "after": compared.after},
    }
    sides = (f"in generation {compared.before}", f"in generation {compared.after}")
    invocation.result(
        {**head, **compared_to_json(compared.rows)},
        table_of_both(compared.rows, Paint(invocation.color), sides),
    )
    return ExitCode.OK
