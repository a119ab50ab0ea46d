"""History for people and as JSON: the commits of the state, their authors, reasons and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mzplan.model.address import natural_item
from mzplan.model.history import CommitOutcome, CommitRecord, HistoryEntry
from mzplan.model.plan import ACTIONS
from mzplan.model.words import count, span
from mzplan.render.text import Paint, aligned_lines, cut, paragraph, safe

MAX_UNDONE = 8  # commits that a rollback lists
_COLUMNS = ("SERIAL", "WHEN", "WHO", "COMMAND", "CHANGES", "ENDED", "GIT", "MESSAGE")
_SHORT = 8  # characters of a git commit
_COLOURS = {"failed": "red", "rejected": "red", "pending": "yellow", "unknown": "dim"}


def render_history(entries: Sequence[HistoryEntry], color: bool = False, now: datetime | None = None) -> str:
    """Format a table with one serial a line, newest first."""
    if not entries:
        return "Nothing is committed yet.\n"
    now = now or datetime.now(UTC)
    paint = Paint(color)
    rows = [_COLUMNS, *(_row(entry, now) for entry in entries)]
    lines = []
    for number, (row, text) in enumerate(zip(rows, aligned_lines(rows), strict=True)):
        style = "bold" if number == 0 else _COLOURS.get(row[5].partition(" ")[0])
        lines.append(paint(text, style) if style else text)
    return "\n".join(lines) + "\n"


def render_entry(entry: HistoryEntry, color: bool = False, now: datetime | None = None) -> str:
    """Format the details of one serial, one a line."""
    commit, now = entry.commit, now or datetime.now(UTC)
    paint = Paint(color)
    lines = [paint(f"Serial {entry.serial}" + (", the current one" if entry.current else ""), "bold")]
    lines.append(f"By:      {_who(commit)}, with {safe(commit.command)}")
    lines.append(f"When:    {safe(commit.time)} ({_ago(commit, now)})")
    if commit.message:
        lines.append(f"Message: {safe(commit.message)}")
    if commit.git is not None:
        lines.append(f"Git:     {safe(commit.git.commit)}{_tree(commit.git.clean)}")
    if commit.digest:
        lines.append(f"Digest:  {safe(commit.digest)}")
    lines += [
        f"Lost:    {paragraph(lost, ' ' * 9)}" for _, lost in sorted(commit.losses.items(), key=natural_item)
    ]
    lines.append(f"Ended:   {_outcome_text(entry.outcome)}")
    for address, query in sorted(
        (entry.outcome.open if entry.outcome is not None else {}).items(), key=natural_item
    ):
        code = f"[{safe(query.code)}] " if query.code else ""
        later = entry.still_open is not None and address not in entry.still_open
        how = f"{query.status}{', converged later' if later else ''}"
        lines.append(f"  {address}: {how}: {code}{paragraph(query.reason, '    ')}".rstrip(": "))
    for address, task in sorted(
        (entry.outcome.tasks if entry.outcome is not None else {}).items(), key=natural_item
    ):
        lines += [f"  {address}: {paragraph(task.text, '    ')}"] if task.text else []
    return "\n".join(lines) + "\n"


def render_undone_commits(entries: Sequence[HistoryEntry], now: datetime | None = None) -> str:
    """Format the commits that a rollback undoes, with their authors."""
    now = now or datetime.now(UTC)
    lines = [f"Undoes {count(len(entries), 'commit')}:"]
    for entry in entries[:MAX_UNDONE]:
        commit = entry.commit
        why = f": {cut(safe(commit.message))}" if commit.message else ""
        by = f"{_who(commit)}, {_ago(commit, now)}, with {safe(commit.command)}"
        lines.append(f"  serial {entry.serial} by {by}{why}")
    if len(entries) > MAX_UNDONE:
        lines.append(f"  and {len(entries) - MAX_UNDONE} more: `mzplan history` lists them")
    return "\n".join(lines) + "\n"


def _row(entry: HistoryEntry, now: datetime) -> tuple[str, ...]:
    commit = entry.commit
    ended: str = entry.outcome.status if entry.outcome is not None else "unknown"
    if entry.outcome is not None and entry.outcome.open:
        left = entry.outcome.open if entry.still_open is None else entry.still_open
        ended += f" ({len(left)})" if left else ", converged later"
    serial = f"{entry.serial}{'*' if entry.current else ''}"
    git = commit.git
    return (
        serial,
        _ago(commit, now),
        cut(_who(commit), 32),
        safe(commit.command),
        _changes(commit),
        ended,
        f"{safe(git.commit[:_SHORT])}{'' if git.clean else '+'}" if git is not None else "-",
        cut(safe(commit.message)),
    )


def _who(commit: CommitRecord) -> str:
    """Return the author: `ann@laptop`, or in CI `ann (github, runner@build-7)`."""
    process = f"{safe(commit.user)}@{safe(commit.host)}"
    if commit.actor is not None:
        return f"{safe(commit.actor)} ({safe(commit.ci or 'ci')}, {process})"
    return process if commit.ci is None else f"{process} ({safe(commit.ci)})"


def _changes(commit: CommitRecord) -> str:
    shown = [f"{commit.summary[action]} {action}" for action in ACTIONS if commit.summary.get(action)]
    shown += [count(len(commit.losses), "loss", "losses")] if commit.losses else []
    return ", ".join(shown) or "-"


def _tree(clean: bool | None) -> str:
    if clean is None:
        return " (unknown whether files differ)"
    return "" if clean else ", with other changes"


def _outcome_text(outcome: CommitOutcome | None) -> str:
    if outcome is None:
        return "unknown: its command was killed, or is still running"
    if outcome.status == "committed":
        return "committed; its command didn't wait for queries"
    after = f" after {outcome.seconds:.1f} s" if outcome.seconds else ""
    done = f", {count(outcome.converged, 'query', 'queries')} converged" if outcome.converged else ""
    left = f", {len(outcome.open)} not" if outcome.open else ""
    return f"{outcome.status}{after}{done}{left}"


def _ago(commit: CommitRecord, now: datetime) -> str:
    seconds = (now - datetime.fromisoformat(commit.time)).total_seconds()
    return f"{span(seconds)} ago"
