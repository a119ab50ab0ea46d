"""Ends a command line: turns exceptions into reported errors and exit codes."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import NoReturn

import click

from mzplan.cli.context import Invocation
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError

INTERRUPTED = 130  # a shell's exit code for SIGINT


_signals: list[int] = []  # the signals that have interrupted this command


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """The user was asked and didn't say yes."""


def run_to_exit(invocation: Invocation, run: Callable[[], int | None]) -> int:
    """Run a command and return its exit code; handles every exception."""
    try:
        _handle_signals()
        code = _run(invocation, run)
        invocation.end_progress()
        return _after_output(invocation, code)
    except KeyboardInterrupt:  # interrupted again during the report
        return INTERRUPTED


def _handle_signals() -> None:
    """Handle SIGTERM (a cancelled CI job) and SIGHUP (a closed terminal) like Ctrl-C.

    This releases locks. Ignored signals stay ignored (nohup).
    """
    _signals.clear()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _signals.append(number)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _prefer_interrupts() -> Iterator[None]:
    """Turn any exception after a signal into KeyboardInterrupt.

    A library that calls Python may replace the interrupt with its own error. Spark's JVM also gets the
    signal, and then refuses connections.
    """
    try:
        yield
    except (SystemExit, GeneratorExit):
        raise
    except BaseException:
        if _signals:
            raise KeyboardInterrupt from None
        raise


def _run(invocation: Invocation, run: Callable[[], int | None]) -> int:
    try:
        with missing_extras_reported(), _prefer_interrupts():
            return int(run() or ExitCode.OK)
    except MzplanError as problem:
        code = problem.exit_code
        return _report(
            invocation, problem.diagnostics, _failure_code(invocation) if code == ExitCode.ERROR else code
        )
    except click.exceptions.Exit as left:  # --help, --version
        return left.exit_code
    except click.UsageError as problem:
        return _report(invocation, [_usage_diagnostic(problem)], ExitCode.USAGE)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _report_interrupt(invocation)
    except Declined as problem:
        return _report(invocation, [_declined(str(problem))], ExitCode.ERROR)
    except click.ClickException as problem:
        return _report(
            invocation,
            [Diagnostic.of("MZ070.click", format_message=problem.format_message())],
            ExitCode.ERROR,
        )
    except RecursionError:
        return _report(invocation, [Diagnostic.of("MZ007.input-nested")], _failure_code(invocation))
    except MemoryError:
        return _report(invocation, [Diagnostic.of("MZ007.not-enough")], _failure_code(invocation))
    except BrokenPipeError:  # click prints the help, and its reader has left
        invocation.output.reader_left()
        return ExitCode.OK
    except OSError as problem:
        return _report(invocation, [_system_diagnostic(problem)], _failure_code(invocation))
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as problem:  # a panic of a Rust library isn't an Exception
        if invocation.verbose:
            invocation.end_progress()
            invocation.output.err("".join(traceback.format_exception(problem)))
        return _report(invocation, [_defect(problem)], _failure_code(invocation))


def _report(invocation: Invocation, diagnostics: list[Diagnostic] | tuple[Diagnostic, ...], code: int) -> int:
    invocation.end_progress()
    progress = invocation.progress
    more = {"serial": progress.serial} if progress.is_committed else {}
    if progress.is_committed:  # "Nothing was changed" may be true of the failed part, but not of the command
        diagnostics = [
            _committed(diagnostic, f"Serial {progress.serial} is committed.") for diagnostic in diagnostics
        ]
    invocation.show(diagnostics, **more)
    return code


def _committed(diagnostic: Diagnostic, text: str) -> Diagnostic:
    return replace(diagnostic, detail=re.sub(r"Nothing was changed\b[^.]*\.", text, diagnostic.detail))


def _failure_code(invocation: Invocation) -> int:
    """Return the exit code of a failure: 1 if nothing was committed, else 8."""
    return ExitCode.NOT_CONVERGED if invocation.progress.is_committed else ExitCode.ERROR


def _after_output(invocation: Invocation, code: int) -> int:
    problem = invocation.output.problem
    if problem is None:
        return code
    diagnostic = Diagnostic.of("MZ035.results-not", strerror=problem.strerror or problem)
    invocation.json = False  # stdout can't be written
    invocation.show([diagnostic])
    return code or _failure_code(invocation)


def _report_interrupt(invocation: Invocation) -> int:
    """Report the interrupt in one line. Committed changes stay, and runners continue with them."""
    progress = invocation.progress
    invocation.end_progress()
    more: dict[str, int] = {}
    if progress.is_committed and progress.serial is not None:
        text = f"serial {progress.serial} is committed and stays; its runners continue with it."
        more = {"serial": progress.serial}
        hint = "`mzplan status --watch` follows them."
    elif progress.serial is not None:
        text = f"serial {progress.serial} was being committed."
        hint = "`mzplan plan` shows whether it was."
    else:
        text = "nothing was changed." if invocation.may_commit else ""
        hint = ""
    if invocation.json:
        diagnostic = Diagnostic.of("MZ071.interrupted", text=text, how=hint)
        invocation.show([diagnostic], **more)
    else:
        line = "Interrupted" + (f": {text}" if text else ".") + (f" {hint}" if hint else "")
        # The terminal has just echoed ^C.
        invocation.output.err(f"\n{line}" if invocation.output.is_live else line)
    return INTERRUPTED


def _usage_diagnostic(problem: click.UsageError) -> Diagnostic:
    command = problem.ctx.command_path if problem.ctx else "mzplan"
    # For a group without a command, click's message is its whole help.
    bare = isinstance(problem, click.exceptions.NoArgsIsHelpError)
    summary = "Missing command." if bare else problem.format_message()
    return Diagnostic.of("MZ070.help-shows-usage", what=summary, command=command)


def _declined(what: str) -> Diagnostic:
    return Diagnostic.of("MZ071.not-approved", what=what)


def _system_diagnostic(problem: OSError) -> Diagnostic:
    where = f"{problem.filename}: " if problem.filename else ""
    return Diagnostic.of("MZ035.check-path-permissions", where=where, strerror=problem.strerror or problem)


def _defect(problem: BaseException) -> Diagnostic:
    # Show the place but not the message, because an unforeseen message may contain anything.
    frames = traceback.extract_tb(problem.__traceback__)
    place = f" in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return Diagnostic.of("MZ079.mzplan-defect", name=type(problem).__name__, place=place)
