"""Why a query failed, for people: from a tower of Java exceptions to a line and a code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.formats.records import MARK
from mzplan.model.diagnostics import MzplanError, sentence
from mzplan.secrets.resolved import shortened

OTHER = "MZ064"
_MARKED = re.compile(MARK + r"\[(MZ\d{3})\]: ([^\n]*)")
_MAX = 600
# What runs through the chain of causes, by a piece of an exception's class or of its message.
_KNOWN = (
    (
        "MZ067",
        re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|Some data may have been lost|offset was changed from"),
    ),
    (
        "MZ051",
        re.compile(r"SaslAuthenticationException|SslAuthenticationException|password authentication failed"),
    ),
    ("MZ054", re.compile(r"TopicAuthorizationException|GroupAuthorizationException|permission denied for")),
    ("MZ052", re.compile(r"UnknownTopicOrPartitionException|This server does not host this topic-partition")),
    (
        "MZ050",
        re.compile(
            r"kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception|Timed out waiting for a node|"
            r"No resolvable bootstrap urls|Failed to construct kafka consumer|mzplan\[COPY\]: .*connect|"
            r"connection refused|server closed the connection|"
            r"Cannot fetch record for offset .* in \d+ milliseconds",
            re.I,
        ),
    ),
)
_FILE = re.compile(r"FAILED_READ_FILE\S* .*?reading file (\S+?)\.?(?:\s|$)")
_HELP = {
    "MZ050": "the server can't be reached",
    "MZ051": "the server refused the credentials",
    "MZ052": "the topic does not exist",
    "MZ054": "the server denies access",
    "MZ067": "records were deleted from the topic before they were read",
}
# Spark gives a new Python process ten seconds, and there is no setting for it.
_NO_WORKER = "Spark's Python process did not start within 10 s: is the machine overloaded? It is tried again"
_BORING = re.compile(
    r"^(at |Traceback|File |Caused by: *$|\.\.\. \d+ more|\s|=== Streaming Query ===|Identifier:|Current )"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a query ended of: a line or two for a person, and a code of docs/errors.md."""

    text: str
    code: str


def of_exception(problem: BaseException) -> Failure:
    """Of something that our own code raised in a batch."""
    if isinstance(problem, MzplanError):
        first = problem.diagnostics[0]
        return Failure(sentence(first), first.code)
    thrown = _thrown(problem)
    return of_messages([(type(problem).__name__, str(problem))] if thrown is None else _chain(thrown))


def _thrown(problem: BaseException) -> Any:
    """The Java exception behind an error of PySpark's, if there is one. PySpark fails to translate those of
    Delta, and raises what that failed of: the first one says why."""
    seen: BaseException | None = problem
    thrown = None
    while seen is not None:
        thrown = getattr(seen, "_origin", None) or getattr(seen, "java_exception", None) or thrown
        seen = seen.__context__
    return thrown


def of_query(query: Any, place: str) -> Failure | None:
    """Of a streaming query (Java's) that has ended; None when it was stopped. `place` is what it talks to."""
    caught = query.exception()
    if caught.isEmpty():
        return None
    return of_messages(_chain(caught.get()), place)


def of_messages(chain: list[tuple[str, str]], place: str = "") -> Failure:
    """Of exceptions, outermost first, each as (class, message)."""
    chain = [(name, _without_plan(message)) for name, message in chain]
    marked = next((found for _, message in reversed(chain) if (found := _MARKED.search(message))), None)
    if marked:
        return Failure(_clean(marked[2]), marked[1])
    for code, pattern in _KNOWN:
        known = next((pair for pair in reversed(chain) if pattern.search(f"{pair[0]}: {pair[1]}")), None)
        if known is not None:
            where = f"{place}: " if place else ""
            return Failure(f"{where}{_HELP[code]}: {_first_line(known[1])}", code)
    if any("Python worker failed to connect back" in message for _, message in chain):
        return Failure(_NO_WORKER, OTHER)
    # The innermost is the cause, unless it says nothing.
    lines = [_first_line(message) for _, message in reversed(chain)]
    file = next((found for _, message in chain if (found := _FILE.search(message))), None)
    if file is not None:  # not of its format, or with other columns
        why = next((line for line in lines if line and not _FILE.search(line)), "it can't be read")
        return Failure(_clean(f"file {file[1]}: {why}"), "MZ066")
    return Failure(next((line for line in lines if line), chain[-1][0] if chain else "it ended"), OTHER)


def _chain(caught: Any) -> list[tuple[str, str]]:
    chain: list[tuple[str, str]] = []
    seen = 0
    while caught is not None and seen < 12:
        chain.append((str(caught.getClass().getName()), str(caught.getMessage() or "")))
        caught = caught.getCause()
        seen += 1
    return chain


def _without_plan(message: str) -> str:
    # Spark appends the query's plan, which holds our own error texts as expressions, raised or not.
    return message.partition("=== Streaming Query ===")[0]


def _first_line(message: str) -> str:
    # A Python traceback says what happened in its last line.
    lines = [line for line in message.splitlines() if line.strip() and not _BORING.match(line)]
    if "Traceback (most recent call last)" in message and lines:
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)?: ", line)]
        return _clean(errors[-1] if errors else lines[-1])
    return _clean(lines[0]) if lines else ""


def _clean(text: str) -> str:
    text = re.sub(r"\s*SQLSTATE: \w+\s*$", "", text.strip())
    return shortened(text, _MAX)
