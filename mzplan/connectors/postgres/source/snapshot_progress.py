"""How far a snapshot of a PostgreSQL source is read: for each table, its files and their next block. All
of it is in the note of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.postgres.source.replication import Lsn
from mzplan.connectors.postgres.source.snapshot import Extent

Note = dict[str, Any]

_CHUNK_BLOCKS = 8192  # of 8 KiB: what one task reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one task reads of a step. `table` is the source's name of it, None for changes of all: then it is
    the log in (after, to], of the tables `oids`, where rows may lack the columns `added`; else blocks `first`
    to `end` (excluded) of a relation, in a snapshot of `to`."""

    after: Lsn
    to: Lsn
    table: str | None = None
    relation: tuple[str, str] = ("", "")
    first: int = 0
    end: int = 0
    snapshot: str = ""
    oids: tuple[tuple[str, int], ...] = ()
    added: tuple[tuple[str, tuple[str, ...]], ...] = ()


def unread(extent: Extent) -> list[Note]:
    """A table of which nothing is read."""
    return [
        {"relation": [schema, name], "file": file, "blocks": blocks, "next": 0}
        for schema, name, file, blocks in extent.files
    ]


def next_chunk(tables: Mapping[str, Any]) -> Note | None:
    """The next blocks that are not read."""
    for name in sorted(tables):
        for one in tables[name]:
            if one["next"] < one["blocks"]:
                end = min(one["next"] + _CHUNK_BLOCKS, one["blocks"])
                place = {"table": name, "relation": one["relation"], "file": one["file"]}
                return {**place, "first": one["next"], "end": end}
    return None


def after_chunk(tables: Mapping[str, Any], chunk: Note) -> dict[str, Any]:
    """The progress once a chunk is read."""
    return {
        name: [
            {**one, "next": chunk["end"]}
            if name == chunk["table"] and one["relation"] == chunk["relation"]
            else one
            for one in files
        ]
        for name, files in tables.items()
    }


def carried_on(before: list[Note], there: list[Note]) -> list[Note]:
    """The progress of a table in a later snapshot. A file that was written anew (VACUUM FULL) has its rows in
    other places, so it is read from its start; blocks that were added hold rows that come as changes."""
    known = {tuple(one["relation"]): one for one in before}
    carried = []
    for one in there:
        was = known.get(tuple(one["relation"]))
        if was is None:
            carried.append(one)  # a partition that was attached, perhaps with rows that no change tells of
        elif was["file"] != one["file"] and was["next"] < was["blocks"]:
            carried.append(one)
        else:
            blocks = min(was["blocks"], max(one["blocks"], was["next"]))
            carried.append({**was, "file": one["file"], "blocks": blocks})
    return carried


def in_files(chunks: list[Note], there: Mapping[str, tuple[tuple[str, str, int, int], ...]]) -> list[Note]:
    """Chunks that were planned in another snapshot, perhaps. Where the file was written anew since, all of it
    is to be read."""
    found: list[Note] = []
    for chunk in chunks:
        schema, name = chunk["relation"]
        now = [(file, blocks) for s, n, file, blocks in there[chunk["table"]] if (s, n) == (schema, name)]
        if not now:
            continue  # it was dropped, with its rows
        file, blocks = now[0]
        whole = {**chunk, "file": file, "first": 0, "end": blocks}
        if file == chunk["file"]:
            found.append(chunk)
        elif whole not in found:
            found.append(whole)
    return found
