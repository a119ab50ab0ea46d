"""The `test` command: run the tests of a project."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import QUERY, STEPS, TEST
from mzplan.cli.context import Invocation, command
from mzplan.cli.streams import opened_text
from mzplan.features.test.case_files import read_cases
from mzplan.features.test.recording import record
from mzplan.features.test.report import (
    failure_lines,
    junit_xml,
    result_line,
    results_to_json,
    summary_line,
)
from mzplan.features.test.runs import Result, run_cases
from mzplan.features.test.state_checks import check_states
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.words import count, did_you_mean
from mzplan.operations.local_checks import check_files
from mzplan.render.text import Paint

if TYPE_CHECKING:
    from mzplan.features.test.cases import Case


@command("test")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=TEST)
@click.option(
    "--junit-xml", "xml", metavar="FILE", help="Also write the results to this file, as JUnit's XML."
)
@click.option(
    "--record", "recorded", metavar="VIEW", type=QUERY, help="Write a test from rows that a view has read."
)
@click.option("--steps", metavar="A..B", type=STEPS, help="With --record: the view's steps.")
@click.option(
    "--mask", "masked", metavar="COLUMN", multiple=True, help="With --record: replace values; repeatable."
)
def command_test(
    invocation: Invocation,
    names: tuple[str, ...],
    xml: str | None,
    recorded: Address | None,
    steps: tuple[int, int | None] | None,
    masked: tuple[str, ...],
) -> int:
    """Run the project's tests on Spark, without servers.

    The tests are in the folder `tests`, and Spark runs in this process.

    A test gives rows to the inputs of a view or sink, step by step, or records to a source's format, and
    expects rows. NAME is a test's name, a pattern such as 'late *', or the address of a query. Without NAME,
    all tests run.

    The command contacts no server, and resolves no secret. It reads the project's state only for tests that
    expect a `state`. The exit code is 1 if a test fails.

    --record writes a new file of tests instead. It has the rows that a view read in these steps, without the
    view's earlier state, and the rows that the view, as the files define it, gives for them.
    """
    if recorded is not None:
        return _record(invocation, names, recorded, steps, masked)
    if steps is not None or masked:
        raise click.UsageError("--steps and --mask require --record.")
    began = time.monotonic()
    work = invocation.work(whole=True)
    configuration = check_files(work.project, work.reporter)
    cases = _chosen(read_cases(work.directory, configuration.resources), names)
    with opened_text(xml) if xml is not None else nullcontext(None) as write_xml:
        results = check_states(work, _run(invocation, cases, work.directory))
        if write_xml is not None:
            write_xml(junit_xml(results))
    if invocation.json:
        invocation.document(results_to_json(results))
    else:
        _show(invocation, results, time.monotonic() - began)
    return ExitCode.OK if all(result.passed for result in results) else ExitCode.ERROR


def _record(
    invocation: Invocation,
    names: tuple[str, ...],
    view: Address,
    steps: tuple[int, int | None] | None,
    masked: tuple[str, ...],
) -> int:
    if names or steps is None:
        raise click.UsageError("--record requires --steps A..B, and no NAME.")
    work = invocation.work(whole=True)
    configuration = check_files(work.project, work.reporter)
    with invocation.progress.working(f"recording steps of {view}"):
        file = record(
            work,
            configuration,
            view,
            steps,
            masked,
            lambda: invocation.note("Starting Spark in this process"),
        )
    invocation.result({"written": str(file)}, f"Wrote {file}.")
    return ExitCode.OK


def _run(invocation: Invocation, cases: Sequence[Case], directory: str) -> list[Result]:
    """Run the tests that need Spark. Return the results of all, in order."""
    done = 0

    def finished(_: Result) -> None:
        nonlocal done
        done += 1

    running = [case for case in cases if case.runs]
    with invocation.progress.working(lambda: f"{done} of {count(len(running), 'test')} done"):
        ran = iter(
            run_cases(running, directory, lambda: invocation.note("Starting Spark in this process"), finished)
        )
        return [next(ran) if case.runs else Result(case=case) for case in cases]


def _chosen(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the tests that are named. Raises MzplanError MZ352 for a name that no test has."""
    if not names:
        return list(cases)
    chosen: set[str] = set()
    for name in names:
        found = [c.name for c in cases if fnmatch.fnmatchcase(c.name, name) or str(c.address) == name]
        if not found and name not in {case.name for case in cases}:
            known = [case.name for case in cases]
            listed = f"The tests are {', '.join(known)}." if known else "The folder tests/ has no tests."
            raise error("MZ352.no-test", name=name, known=listed, near=did_you_mean(name, known))
        chosen.update(found or [name])
    return [case for case in cases if case.name in chosen]


def _show(invocation: Invocation, results: Sequence[Result], seconds: float) -> None:
    paint = Paint(invocation.color)
    lines: list[str] = []
    for result in results:
        lines.append(result_line(result, paint))
        lines += failure_lines(result, paint)
    if not results:
        invocation.out("The folder tests/ has no tests.")
        return
    invocation.out("\n".join([*lines, "", summary_line(results, seconds)]))
