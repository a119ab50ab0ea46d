"""SQL that makes, on a server, what a source or a sink needs there: for an administrator to read and run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """The statements of one query, each ended by a semicolon; all may be run again. `place`: the server and
    database that they are for, in words. `enter`: what goes there, for a script that visits several. `notes`:
    what no statement can do, one line each."""

    place: str
    enter: str
    statements: tuple[str, ...]
    notes: tuple[str, ...] = ()
