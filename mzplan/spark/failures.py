"""Explains why a query failed: turns a chain of Java exceptions into one line and a code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.formats.records import MARK
from mzplan.connectors.user_code.failures import failed_in_task
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, ProblemKind, error, sentence
from mzplan.schema.user_functions import FunctionName
from mzplan.secrets.resolved import scrub, shortened
from mzplan.warehouse.damage import GoneError

OTHER = "MZ064"
_REFUSED = "MZ059"
_MARKED = re.compile(MARK + r"\[(MZ\d{3})\]: ([^\n]*)")
_MAX = 600
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True, slots=True)
class _Known:
    """A failure recognised by `pattern`, which matches an exception's class and message.

    `fix`: `{address}` stands for the query's address."""

    code: str
    pattern: re.Pattern[str]
    summary: str
    fix: str
    kind: ProblemKind = ""


_KNOWN = (
    _Known(
        "MZ067",
        re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|Some data may have been lost|offset was changed from"),
        "records were deleted from the topic before they were read",
        "set on_upstream_change, or start a new generation: mzplan apply --replace {address} "
        "--allow-replace.",
        "offsets-gone",
    ),
    _Known(
        "MZ051",
        re.compile(r"SaslAuthenticationException|SslAuthenticationException|password authentication failed"),
        "the server refused the credentials",
        "correct user, password or keys of the connection.",
    ),
    _Known(
        "MZ054",
        re.compile(r"TopicAuthorizationException|GroupAuthorizationException|permission denied for"),
        "the server denies access",
        "grant it to the connection's user (docs/how-to/grant-privileges.md); mzplan retries.",
    ),
    _Known(
        "MZ052",
        re.compile(r"UnknownTopicOrPartitionException|This server does not host this topic-partition"),
        "the topic does not exist",
        "create the topic, or correct `topic`.",
    ),
    _Known(  # Kafka's client refuses the record, before it sends it
        _REFUSED,
        re.compile(r"RecordTooLargeException.*max\.request\.size"),
        "a record is larger than max.request.size",
        "raise max.request.size in the options of the connection, or select fewer columns in the sink; "
        "mzplan retries.",
    ),
    _Known(
        _REFUSED,
        re.compile(r"RecordTooLargeException"),
        "a record is larger than max.message.bytes of the topic",
        "raise max.message.bytes of the topic, or select fewer columns in the sink; mzplan retries.",
    ),
    _Known(
        "MZ230",
        re.compile(r"DELTA_STREAMING_INCOMPATIBLE_SCHEMA|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_(DATA_)?SCHEMA"),
        "a column of the table was renamed, dropped or retyped, and Delta doesn't stream across that",
        "start a new generation with the current table: mzplan apply --replace {address} --allow-replace.",
    ),
    _Known(  # Delta ends each stream of a table that gets a column
        "MZ230",
        re.compile(r"DELTA_SCHEMA_CHANGED"),
        "the columns of a table that the query reads have changed",
        "mzplan restarts the query; if it fails again, start a new generation: mzplan apply --replace "
        "{address} --allow-replace.",
        "columns-changed",
    ),
    _Known(
        OTHER,
        re.compile(r"STATE_STORE_(KEY|VALUE)_(SCHEMA_NOT_COMPATIBLE|ROW_FORMAT_VALIDATION_FAILURE)"),
        "the query can't continue with the state of the query before it",
        "start a new generation, with an empty state: mzplan apply --replace {address} --allow-replace.",
    ),
    _Known(
        "MZ320",
        re.compile(r"sources in the checkpoint offsets and now there are"),
        "the query reads its collections another number of times than its checkpoint has positions",
        "start a new generation: mzplan apply --replace {address} --allow-replace.",
    ),
    _Known(
        "MZ287",
        re.compile(r"DELTA_SOURCE_IGNORE_DELETE|DELTA_SOURCE_TABLE_IGNORE_CHANGES"),
        "rows of the table were updated or deleted, and without a key the source only adds rows",
        "on_change: skip passes over such commits; with `key` (a new generation) the source follows them.",
    ),
    _Known(
        "MZ050",
        re.compile(
            r"kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception|Timed out waiting for a node|"
            r"No resolvable bootstrap urls|Failed to construct kafka consumer|mzplan\[COPY\]: .*connect|"
            r"connection refused|server closed the connection|"
            r"Cannot fetch record for offset .* in \d+ milliseconds",
            re.I,
        ),
        "the server can't be reached",
        "check the server and the network to it; mzplan retries.",
    ),
)
_FILE = re.compile(r"FAILED_READ_FILE\S* .*?reading file (\S+?)\.?(?:\s|$)")
# The fixes of failures that don't name one themselves.
_FIXES = {known.code: known.fix for known in _KNOWN if known.code not in (OTHER, _REFUSED)} | {
    "MZ066": "correct the producer, or the source's schema; on_error: skip skips such records, and "
    "dead-letter stores Kafka's in a table.",
    "MZ283": "find the table's other writer; a shallow clone has files of another table.",
}
_GONE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST")
_NO_VERSION = re.compile(r"DELTA_(VERSION_NOT_FOUND|TRUNCATED_TRANSACTION_LOG|NO_RECREATABLE_HISTORY_FOUND)")
_BACK = (
    "restore the file, or start a new generation: mzplan apply --replace {address} --allow-replace. VACUUM "
    "removes files of a Delta table: raise delta.deletedFileRetentionDuration to keep them longer."
)
_OF_FILE = "correct or remove that file, or correct format and schema of the source."
_CAST = (
    "correct the value where it comes from; or in select use try_cast, which makes it NULL, or a wider type."
)
_DIVISOR = (
    "correct the value where it comes from; or in select write nullif(divisor, 0), which makes it NULL."
)
_OPERANDS = "cast the operands in select to a wider type, such as DECIMAL(38,0) or DOUBLE."
_COLUMN = "change the table's column, or cast the value in select."
# Patterns of Spark's and Delta's messages about a value, and our text for each, which leaves the value out.
_VALUES = (
    (
        r'The value .* of the type "([^"]+)" cannot be cast to "([^"]+)"',
        "a value of type {1} is not {2}",
        _CAST,
    ),
    (r"cannot be represented as Decimal\((\d+), ?(\d+)\)", "a number does not fit DECIMAL({1},{2})", _CAST),
    (
        r'value of (?:a )?"([^"]+)" type (?:in)?to the "([^"]+)" type column(?: or variable)? `([^`]+)`',
        "column {3} is {2}, and can't hold a value of type {1}",
        _COLUMN,
    ),
    (
        r"length limitation\. Failed check: .*?length\(`?(\w+)`?\) <= (\d+)",
        "column {1} holds at most {2} characters, and a value of type STRING has more",
        _COLUMN,
    ),
    (
        r"NOT NULL constraint violated for column: ([^\s]+?)\.?\s",
        "column {1} is NOT NULL, but a row has no value",
        _COLUMN,
    ),
    (r"CHECK constraint (\S+) .*violated by row", "CHECK constraint {1} of the table is violated", _COLUMN),
    (
        r"Failed to merge fields '([^']*)' and.*data types (\w+?)(?:Type)? and (\w+?)(?:Type)?\s",
        "column {1} of the table is {2}, and can't hold a value of type {3}",
        _COLUMN,
    ),
    (
        r"Failed to merge fields '([^']*)' and.*precision (\d+) and (\d+) & scale (\d+) and (\d+)",
        "column {1} of the table is DECIMAL({2},{4}), and can't hold a value of type DECIMAL({3},{5})",
        _COLUMN,
    ),
    (r"\[(?:DIVIDE|REMAINDER)_BY_ZERO\]", "a division by zero", _DIVISOR),
    (r"\[(ARITHMETIC_OVERFLOW)[\w.]*\]", "a value does not fit ({1})", _OPERANDS),
    (r"\[(\w+)[\w.]*\][^\n]*SQLSTATE: 22", "a value does not fit ({1})", _CAST),
)
_EXPRESSION = re.compile(r"== SQL [^\n]*==\n([^\n]+)")
# Spark gives a new Python process ten seconds; no setting changes that.
_NO_WORKER = "Spark's Python process did not start within 10 s: is the machine overloaded? mzplan retries"
_BORING = re.compile(
    r"^(at |Traceback|File |Caused by: *$|\.\.\. \d+ more|\s|=== Streaming Query ===|Identifier:|Current )"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query ended: a line or two for a person, and a code of docs/errors.md."""

    text: str
    code: str
    kind: ProblemKind = ""


def of_exception(
    problem: BaseException, address: Address | None = None, function: FunctionName | None = None
) -> Failure:
    """Return the failure for an exception that our own code raised in a batch.

    `address`: the query's. `function`: the user's function in the query.
    """
    if isinstance(problem, MzplanError):
        first = problem.diagnostics[0]
        return Failure(sentence(first), first.code, first.kind)
    thrown = _thrown(problem)
    chain = [(type(problem).__name__, str(problem))] if thrown is None else _chain(thrown)
    return of_messages(chain, address=address, function=function)


def spark_message(problem: BaseException) -> str:
    """Return Spark's message about SQL that it refuses, in one line."""
    thrown = getattr(problem, "java_exception", None)  # an error of Java itself, such as a stack overflow
    message = str(thrown.toString()) if thrown is not None else str(problem)
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", message.strip(), flags=re.S)
    return shortened(" ".join(text.split()), _LONGEST_MESSAGE)


def as_error(
    problem: BaseException, otherwise: str, summary: str, address: Address, hint: str = ""
) -> MzplanError:
    """Return an exception as a query's error. `otherwise`: the code for a failure that has none."""
    failure = of_exception(problem, address)
    code = otherwise if failure.kind == "unexplained" else failure.code
    return error(code, summary, failure.text, hint, address=address, kind=failure.kind)


@contextmanager
def raised_as(code: str, summary: str, address: Address, hint: str = "") -> Iterator[None]:
    """Raise Spark's errors as this error of a query. MzplanError and OSError pass unchanged."""
    try:
        yield
    except (MzplanError, OSError):
        raise
    except Exception as problem:
        raise as_error(problem, code, summary, address, hint) from None


@contextmanager
def raised_as_gone(subject: str) -> Iterator[None]:
    """Raise Spark's errors as GoneError about `subject`. MzplanError and OSError pass unchanged."""
    try:
        yield
    except (MzplanError, GoneError, OSError):
        raise
    except Exception as problem:
        raise GoneError(f"{subject}: {of_exception(problem).text.rstrip('.')}.") from None


def is_gone(problem: BaseException) -> bool:
    """Whether Spark's error says that a file, or a version of a Delta table, has been removed."""
    text = str(problem)
    return bool(_GONE.search(text) or _NO_VERSION.search(text))


def _thrown(problem: BaseException) -> Any:
    """Return the Java exception behind a PySpark error, or None.

    PySpark can't translate Delta's exceptions and raises its own translation error. The first exception in
    the chain is the cause.
    """
    seen: BaseException | None = problem
    thrown = None
    while seen is not None:
        thrown = getattr(seen, "_origin", None) or getattr(seen, "java_exception", None) or thrown
        seen = seen.__context__
    return thrown


def of_query(
    query: Any, place: str, address: Address, function: FunctionName | None = None
) -> Failure | None:
    """Return why a streaming query (Java's) ended; None if it was stopped.

    `place`: the server or folder that the query uses. `address`, `function`: see of_exception.
    """
    caught = query.exception()
    if caught.isEmpty():
        return None
    return of_messages(_chain(caught.get()), place, address, function)


def of_messages(
    chain: list[tuple[str, str]],
    place: str = "",
    address: Address | None = None,
    function: FunctionName | None = None,
) -> Failure:
    """Return the failure for a chain of exceptions, outermost first, each as (class, message).

    `place`, `address`, `function`: as in `of_query`.
    """
    shown = str(address or "ADDRESS")
    chain = [(name, _without_plan(message)) for name, message in chain]
    if function is not None and address is not None:
        told = (failed_in_task(address, function, message) for _, message in reversed(chain))
        if (failed := next(filter(None, told), None)) is not None:
            return of_exception(failed)
    marked = next((match for _, message in reversed(chain) if (match := _MARKED.search(message))), None)
    if marked:
        return Failure(_with_fix(marked[2], _FIXES.get(marked[1], "").format(address=shown)), marked[1])
    for known in _KNOWN:
        pairs = (pair for pair in reversed(chain) if known.pattern.search(f"{pair[0]}: {pair[1]}"))
        if (found := next(pairs, None)) is not None:
            where = f"{place}: " if place else ""
            text = _with_fix(
                f"{where}{known.summary}: {_first_line(found[1])}", known.fix.format(address=shown)
            )
            return Failure(text, known.code, known.kind)
    if any("Python worker failed to connect back" in message for _, message in chain):
        return Failure(_NO_WORKER, OTHER, "unexplained")
    # The innermost exception is the cause, unless it has no message.
    lines = [_first_line(message) for _, message in reversed(chain)]
    file = next((match for _, message in chain if (match := _FILE.search(message))), None)
    if file is not None and any(_GONE.search(message) for _, message in chain):
        return Failure(
            _with_fix(f"file {file[1]} was deleted before it was read", _BACK.format(address=shown)),
            "MZ067",
            "offsets-gone",
        )
    if file is not None:  # not in the declared format, or with other columns
        why = next((line for line in lines if line and not _FILE.search(line)), "it can't be read")
        return Failure(_with_fix(f"file {file[1]}: {why}", _OF_FILE), "MZ066")
    if (unfit := _of_value("\n".join(message for _, message in chain) + "\n")) is not None:
        return Failure(unfit, OTHER, "unexplained")
    text = next((line for line in lines if line), chain[-1][0] if chain else "it ended")
    return Failure(text, OTHER, "unexplained")


def _of_value(text: str) -> str | None:
    """Return the problem with a value, by column or expression and type; None for another failure."""
    for pattern, template, fix in _VALUES:
        if (match := re.search(pattern, text, re.S)) is not None:
            expression = _EXPRESSION.search(text)
            where = f"{expression[1].strip()}: " if expression else ""
            return _with_fix(where + template.format("", *match.groups()), fix)
    return None


def _with_fix(text: str, fix: str) -> str:
    """Append a fix, unless the text already contains one; then return it unshortened."""
    if "Fix: " in text:
        return scrub(text.strip())
    return f"{_clean(text).rstrip('.')}. Fix: {fix}" if fix else _clean(text)


def _chain(caught: Any) -> list[tuple[str, str]]:
    chain: list[tuple[str, str]] = []
    seen = 0
    while caught is not None and seen < 12:
        chain.append((str(caught.getClass().getName()), str(caught.getMessage() or "")))
        caught = caught.getCause()
        seen += 1
    return chain


def _without_plan(message: str) -> str:
    # Spark appends the query's plan, which contains our error texts as expressions, raised or not.
    return message.partition("=== Streaming Query ===")[0]


def _first_line(message: str) -> str:
    # The last line of a Python traceback is the error.
    lines = [line for line in message.splitlines() if line.strip() and not _BORING.match(line)]
    if "Traceback (most recent call last)" in message and lines:
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)?: ", line)]
        return _clean(errors[-1] if errors else lines[-1])
    return _clean(lines[0]) if lines else ""


def _clean(text: str) -> str:
    text = re.sub(r"\s*SQLSTATE: \w+\s*$", "", text.strip())
    return shortened(text, _MAX)
