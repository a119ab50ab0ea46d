"""Names in columns, as many as a line has room for."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100  # characters of a line
MAX_ROWS = 4  # where not all are shown


def in_columns(names: Sequence[str], indent: str, rows: int | None = MAX_ROWS, hint: str = "") -> list[str]:
    """The names, line by line. `rows`: at most so many lines of them (None: all), then how many more there
    are, and `hint`."""
    if not names:
        return []
    wide = max(map(len, names)) + 2
    across = max(1, (WIDTH - len(indent)) // wide)
    shown = names if rows is None or len(names) <= across * rows else names[: across * rows]
    lines = [
        indent + "".join(name.ljust(wide) for name in shown[at : at + across]).rstrip()
        for at in range(0, len(shown), across)
    ]
    if len(shown) < len(names):
        lines.append(f"{indent}and {len(names) - len(shown)} more{hint}")
    return lines
