"""The log entries of this machine's runners, for all queries or for some."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from mzplan.host.checkout import runtime_file
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Lease
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State
from mzplan.operations.project import TO_RUN, Project

# A line of the runner (2026-01-31T10:00:00.123Z INFO mzplan.runner: …), or of Spark, in local time.
_HEAD = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?P<between>[T ])(?P<time>\d\d:\d\d:\d\d\.\d{3})(?P<zone>Z?) "
    r"(?P<level>[A-Z]+) (?P<logger>[\w.$-]+): (?P<message>.*)",
    re.S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One log entry: a line and its continuation lines (a stack trace).

    `at`: seconds since the epoch; None for an entry without a time.
    `text`: the whole entry as logged.
    """

    instance: str
    at: float | None
    level: str
    logger: str
    message: str
    text: str


def read_logs(
    project: Project, state: State, queries: Sequence[ResourceState] | None, since: float | None
) -> Iterator[LogEntry]:
    """Yield the entries of the logs on this machine, in the order of each log.

    `queries`: only entries that mention any of these queries; None for all. `since`: only entries from this
    time on (seconds since the epoch). Raises MzplanError MZ155 if there is no log.
    """
    if queries is not None and not queries:
        return
    every = (r for a, r in state.resources.items() if a.is_query)
    used = {r.instance for r in (every if queries is None else queries)}
    names = sorted(used or project.settings.instances, key=natural)
    places = {name: runtime_file(project.settings, name, "log") for name in names}
    existing = {name: place for name, place in places.items() if place.is_file()}
    if not existing:
        instances = {**project.settings.instances, **state.instances}
        if all(is_dry(instances, name) for name in names):
            raise _no_log(names, "The instance is dry: it runs no queries, so it logs nothing.", TO_RUN)
        leases = {name: lease for name in names if (lease := project.store.leases.read(name)) is not None}
        if leases:
            raise _log_elsewhere(names, leases)
        start = (
            "`mzplan apply` starts it on this machine; `mzplan run --instance NAME` runs it anywhere else."
        )
        raise _no_log(names, "Its runner was never started.", start)
    wanted = mention(*(query.address for query in queries)) if queries is not None else None
    for name, place in existing.items():
        for entry in entries(name, place):
            if since is not None and (entry.at is None or entry.at < since):
                continue
            if wanted is None or wanted.search(entry.text):
                yield entry


def mention(*addresses: Address) -> re.Pattern[str]:
    """Return a pattern that finds any of these addresses as a whole word."""
    return re.compile(rf"(?<![\w.])(?:{'|'.join(re.escape(str(address)) for address in addresses)})(?![\w])")


def entries(instance: str, place: Path) -> Iterator[LogEntry]:
    """Yield the entries of a log and its rotated predecessors, as text or as JSON lines.

    A line that doesn't start an entry belongs to the entry before it.
    """
    current: LogEntry | None = None
    with contextlib.ExitStack() as opened:
        for line in _lines(place, opened):
            entry = _parsed_entry(instance, line.rstrip("\n"), current)
            if entry is None and current is not None:
                current = replace(current, text=f"{current.text}\n{line.rstrip()}")
                continue
            if current is not None:
                yield current
            current = entry or _plain(instance, line.rstrip("\n"), None)
    if current is not None:
        yield current


def _lines(place: Path, opened: contextlib.ExitStack) -> Iterator[str]:
    """Yield the lines of `x.log.3`, `x.log.2`, `x.log.1` and `x.log`.

    Opens the newest log first. A log that is rotated meanwhile is found twice but read once.
    """
    files: dict[tuple[int, int], Iterable[str]] = {}
    for name in (place.name, *(f"{place.name}.{number}" for number in range(1, 10))):
        try:
            file = opened.enter_context(place.with_name(name).open(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            continue
        stat = os.fstat(file.fileno())
        files.setdefault((stat.st_dev, stat.st_ino), file)
    for lines in reversed(files.values()):
        yield from lines


def _parsed_entry(instance: str, line: str, before: LogEntry | None) -> LogEntry | None:
    head = _HEAD.fullmatch(line)
    if head is not None:
        when = datetime.fromisoformat(f"{head['day']}T{head['time']}")
        at = when.replace(tzinfo=UTC) if head["zone"] else when.astimezone()
        return LogEntry(
            instance=instance,
            at=at.timestamp(),
            level=head["level"],
            logger=head["logger"],
            message=head["message"],
            text=line,
        )
    if line.startswith('{"time"'):
        try:
            fields = json.loads(line)
            return LogEntry(
                instance=instance,
                at=datetime.fromisoformat(fields["time"]).timestamp(),
                level=str(fields["level"]),
                logger=str(fields["logger"]),
                message=str(fields["message"]),
                text=line,
            )
        except (ValueError, KeyError, TypeError):
            return None
    # A console sink's output isn't part of the log entry before it.
    if re.match(r"sink\.[a-z0-9_]+ step \d+: ", line):
        return _plain(instance, line, before.at if before is not None else None)
    return None


def _plain(instance: str, line: str, at: float | None) -> LogEntry:
    return LogEntry(instance=instance, at=at, level="", logger="", message=line, text=line)


def _log_elsewhere(names: list[str], leases: Mapping[str, Lease]) -> MzplanError:
    hosts = "; ".join(
        f"instance {name} {'runs' if not lease.released else 'ran'} on {lease.host}, process {lease.pid}"
        for name, lease in leases.items()
    )
    return _no_log(
        names,
        "Only a runner started from this folder logs to .mzplan/<instance>.log; other runners log to "
        f"stderr. Known: {hosts}.",
        "look at that process's output (kubectl logs, journalctl), or run the command there.",
        where=" on this machine",
    )


def _no_log(names: list[str], why: str, hint: str, where: str = "") -> MzplanError:
    return error("MZ155.no-log", names=names, where=where, why=why, how=hint)
