"""The `steps`, `verify` and `expire` commands, for durable steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mzplan.cli.arguments import QUERY, STEP, STEPS, selecting
from mzplan.cli.context import Invocation, command
from mzplan.features.steps.content import compare_content, compared_to_json, render_compared
from mzplan.features.steps.steps import expire, read_steps
from mzplan.features.steps.steps_text import (
    diagnostics_of,
    render_steps,
    render_verified,
    steps_to_json,
    verified_to_json,
)
from mzplan.features.steps.verification import verify
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.schema.description import describe
from mzplan.secrets.providers import RemoteSecrets
from mzplan.secrets.references import Secrets
from mzplan.warehouse.paths import absolute

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import Upstream
    from mzplan.model.state import ResourceState, State
    from mzplan.operations.project import Project
    from mzplan.operations.selection import Selection
    from mzplan.spark.process.command_session import QueryToVerify
    from mzplan.spark.verification.content_comparison import ContentComparison
    from mzplan.spark.verification.recomputed_view import RecomputedView
    from mzplan.spark.verification.sink_content import Downstream

_Opened = TypeVar("_Opened")


@command("steps")
@selecting(required=True)
@click.option(
    "--last", "count", type=click.IntRange(min=1), metavar="N", help="Only show the newest N steps."
)
def command_steps(invocation: Invocation, selection: Selection, count: int | None) -> None:
    """List the durable steps of queries.

    Show, for each step, the range read from its upstream (for a sink, the steps of its source), the number of
    rows and bytes, the time, and whether it is committed.
    """
    histories = read_steps(invocation.project(), selection, count, invocation.progress)
    if not histories:
        invocation.note(selection.chose_nothing)
    if invocation.json:
        documents = [steps_to_json(shown) for shown in histories]
        invocation.document(documents[0] if selection.single else {"queries": documents})
    elif histories:
        texts = (
            render_steps(shown, color=invocation.color, titled=not selection.single) for shown in histories
        )
        invocation.out("\n\n".join(texts))


@command("verify")
@click.argument("address", type=QUERY)
@click.option(
    "--steps",
    "wanted",
    type=STEPS,
    metavar="RANGE",
    help="The steps to verify: N, N..M or N.. (default: all).",
)
@click.option(
    "--from-upstream",
    is_flag=True,
    help="Reread the steps from their upstream (Kafka and files need Spark).",
)
@click.option("--content", is_flag=True, help="For a sink: compare the rows in its target (needs Spark).")
@click.option(
    "--shared", is_flag=True, help="For a sink: accept rows that other writers added to its target."
)
def command_verify(
    invocation: Invocation,
    address: Address,
    wanted: tuple[int, int | None] | None,
    from_upstream: bool,
    content: bool,
    shared: bool,
) -> int:
    """Reread steps and compare them with what was recorded.

    For a source or view, mzplan reads each step's files in the collection, without Spark. With
    --from-upstream, it instead rereads the source's upstream: Kafka, the files, or the steps that a local
    source or a connector keeps. For a sink, mzplan recomputes each step's rows from the collection, with the
    sink's select and where, and compares them with what the target has recorded about the step. The command
    stops at the first difference, with exit code 1.

    If a view joins or aggregates, --from-upstream recomputes the whole view from all rows that the view has
    read up to the last step, and compares the result with the view's collection at that step. A view with
    `output: current` is always recomputed: by a batch query over its inputs, as the last step has read them.

    With --content, mzplan compares the rows in the sink's target with the rows that the collection should
    have produced, and exits with code 1 if rows are missing, duplicate, or extra.

    The command also exits with code 1 if another writer has added, changed or deleted rows of the collection,
    or of a Delta sink's target, since the first of these steps. With --shared, others may add rows to a
    sink's target.
    """
    if content:
        if wanted is not None or from_upstream:
            raise click.UsageError("--content reads the whole target: leave out --steps and --from-upstream.")
        return _verify_content(invocation, address, shared)
    if shared and not address.writes_target:
        raise click.UsageError("--shared is about a sink's target.")
    project = invocation.project()
    with _LazySpark(invocation, project) as session:
        verified = verify(
            project,
            address,
            wanted,
            session.upstream if from_upstream else None,
            session.target,
            session.recomputation,
            invocation.progress,
            shared=shared,
        )
    if invocation.json:
        invocation.document(verified_to_json(verified))
    else:
        if shown := diagnostics_of(verified):
            invocation.show(shown)
        invocation.out(render_verified(verified, color=invocation.color))
    return ExitCode.ERROR if verified.is_wrong else ExitCode.OK


def _verify_content(invocation: Invocation, address: Address, shared: bool) -> int:
    project = invocation.project()
    with _LazySpark(invocation, project) as session:
        compared = compare_content(project, address, session.content, invocation.progress)
    if invocation.json:
        invocation.document(compared_to_json(compared, shared=shared))
    else:
        invocation.out(render_compared(compared, shared=shared, color=invocation.color))
    return ExitCode.OK if compared.is_equal(shared=shared) else ExitCode.ERROR


@command("expire", changing=True)
@click.argument("address", type=QUERY)
@click.option(
    "--before",
    "before",
    required=True,
    type=STEP,
    metavar="STEP",
    help="Expire all steps before this one; STEP itself is kept.",
)
def command_expire(invocation: Invocation, address: Address, before: int) -> None:
    """Declare that steps before STEP are no longer needed.

    mzplan refuses this (exit code 7) while a query, even a paused one, still has to read one of these steps.
    """
    steps = expire(invocation.project(), address, before, invocation.progress)
    invocation.result(
        {"address": str(address), "since": steps.since, "upper": steps.upper},
        f"{address}: steps from {steps.since} on are kept; the next one is {steps.upper}.",
    )


class _LazySpark:
    """Runs Spark in this process during a command. Spark starts when it is first needed."""

    def __init__(self, invocation: Invocation, project: Project):
        self._invocation = invocation
        self._project = project
        self._opened: Any = None

    def __enter__(self) -> _LazySpark:
        return self

    def __exit__(self, *problem: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def upstream(self, state: State, resource: ResourceState) -> Upstream:
        from mzplan.spark.verification.source import open_upstream

        return self._open(open_upstream, state, resource, f"opening the upstream of {resource.address}")

    def target(self, state: State, resource: ResourceState) -> Downstream:
        from mzplan.spark.verification.sink_content import Downstream

        return self._open(Downstream.open, state, resource, f"asking the target of {resource.address}")

    def recomputation(self, state: State, resource: ResourceState) -> RecomputedView:
        from mzplan.spark.verification.recomputed_view import RecomputedView

        return self._open(RecomputedView.open, state, resource, f"preparing to recompute {resource.address}")

    def content(self, state: State, resource: ResourceState) -> ContentComparison:
        from mzplan.spark.verification.content_comparison import ContentComparison

        activity = f"preparing to read the target of {resource.address}"
        return self._open(ContentComparison.open, state, resource, activity)

    def _open(
        self, open_: Callable[[QueryToVerify], _Opened], state: State, resource: ResourceState, activity: str
    ) -> _Opened:
        from mzplan.spark.process.command_session import QueryToVerify

        settings = self._project.settings
        directory = settings.directory
        verified = QueryToVerify(
            description=describe(resource, state.resources),
            secrets=Secrets(directory, remote=RemoteSecrets()),  # this command does a runner's work
            directory=directory,
            warehouse=absolute(directory, settings.warehouse),
            starting=self._starting,
        )
        with self._invocation.progress.working(activity):
            self._opened = opened = open_(verified)
        return opened

    def _starting(self) -> None:
        self._invocation.progress.stage("Starting Spark in this process")
