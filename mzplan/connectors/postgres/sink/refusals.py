"""Explains why PostgreSQL refused a batch of a sink, and finds the row whose text it refused.

No database stores U+0000 in text. A database with another encoding than UTF8 stores only the characters of
that encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import psycopg

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.definition import key_of
from mzplan.connectors.postgres.problems import Problem, connect_problem, is_lost, reason, state_of
from mzplan.connectors.postgres.sink.privileges import PrivilegeCheck
from mzplan.connectors.postgres.sink.staging import Move
from mzplan.connectors.postgres.sink.target_table import describe_fix, find_target
from mzplan.model.diagnostics import MzplanError
from mzplan.model.words import one_line
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNTRANSLATABLE = "22P05"
_BYTES = re.compile(r"0x[0-9a-f]{2}(?: 0x[0-9a-f]{2})*")
_ESCAPES = re.compile(r"\\u[0-9a-fA-F]{4}")
_LONGEST_KEY = 200
_UNSTORABLE = Problem(
    "MZ059",
    "{address} can't write text with {character}",
    "{row} has that character in column {columns}. {why}",
    "replace it in the sink's select: {select}{instead}. mzplan retries the whole batch.",
    at=", table {table}",
)


def refused_character(problem: BaseException) -> str:
    """Return the character that PostgreSQL refused, or "" if the problem is another one.

    The server names the character's bytes, or shows its escape in JSON. The rest of the message may be in any
    language.
    """
    text = str(problem)
    if state_of(problem) == _UNTRANSLATABLE and (escapes := _ESCAPES.findall(text)):
        character = str(json.loads(f'"{"".join(escapes[-2:])}"'))[-1]  # two escapes may be one character
        return "" if "\ud800" <= character <= "\udfff" else character
    if (found := _BYTES.search(text)) is None:
        return ""
    try:
        return bytes.fromhex(found[0].replace("0x", "")).decode()
    except UnicodeDecodeError:
        return ""


def unstorable_text_error(
    query: ResolvedQuery,
    outputs: Sequence[Output],
    move: Move,
    batch: DataFrame,
    problem: Exception,
    encoding: str,
) -> MzplanError | None:
    """Return MZ059 with the batch's first row that has the refused character; None for other problems.

    `encoding`: the database's.
    """
    character = refused_character(problem)
    if not character:
        return None
    found = {
        fix: (output.name, condition)
        for output, target in zip(outputs, move.targets, strict=True)
        for fix, condition in _places(output, target.type in ("json", "jsonb"), character)
    }
    if not found:
        return None
    fixes = f.array_compact(f.array(*(f.when(one, f.lit(fix)) for fix, (_, one) in found.items())))
    place = f.to_json(POSITION) if POSITION in batch.columns else f.lit(None)
    row = (
        batch.where(reduce(or_, (condition for _, condition in found.values())))
        .select(fixes.alias("fixes"), _key(query, outputs).alias("key"), place.alias("place"))
        .first()
    )
    if row is None:
        return None
    named = f"the row {one_line(row['key'], _LONGEST_KEY)}" if row["key"] else ""
    named = f"{named or 'the row'} of {row['place']}" if row["place"] else named or "a row"
    is_nul = character == "\0"
    readable = f" ({character})" if character.isprintable() else ""
    return _UNSTORABLE.error(
        query,
        character=f"U+{ord(character):04X}{readable}",
        row=named,
        columns=", ".join(dict.fromkeys(found[fix][0] for fix in row["fixes"])),
        why="PostgreSQL can't store it in text."
        if is_nul
        else f"The database's encoding {encoding} doesn't have it.",
        select=", ".join(row["fixes"]),
        instead="" if is_nul else "; or use a database with the encoding UTF8, which has every character",
        table=query.body["table"],
    )


def _places(output: Output, is_json: bool, character: str) -> Iterator[tuple[str, Column]]:
    """Yield the ways in which a column may have the character.

    Each is the SQL that replaces the character, and the condition for a row.
    """
    name, type_ = output.name, output.type or ""
    if "STRING" not in type_ and "CHAR" not in type_:
        return
    column, escape = f.col(quoted(name)), json.dumps(character)[1:-1]
    sql, new = ("chr(0)", "''") if character == "\0" else (f"'{character}'", "'?'")
    if "<" in type_:
        in_json = json.dumps(character, ensure_ascii=False)[1:-1]
        text = f.to_json(f.struct(column))
        written = in_json.replace("\\", "\\\\")
        fix = f"from_json(replace(to_json({name}), '{written}', {new}), '{type_}') AS {name}"
        yield fix, f.coalesce(f.contains(text, f.lit(in_json)), f.lit(False))
        return
    yield (
        f"replace({name}, {sql}, {new}) AS {name}",
        f.coalesce(f.contains(column, f.lit(character)), f.lit(False)),
    )
    if is_json:
        pattern = escape.replace("\\", "[\\\\\\\\]")
        fix = f"regexp_replace({name}, '(?i){pattern}', {new}) AS {name}"
        yield fix, f.coalesce(f.contains(f.lower(column), f.lit(escape)), f.lit(False))


def _key(query: ResolvedQuery, outputs: Sequence[Output]) -> Column:
    """Return the JSON of the columns that identify a row.

    They are the sink's key, or the collection's. Without a key, it is the first column of a type that is
    neither text nor nested.
    """
    keys = {name.lower() for name in key_of(query) or query.keys}
    names = [output.name for output in outputs if output.name.lower() in keys]
    plain = (o.name for o in outputs if o.type and not any(t in o.type for t in ("<", "STRING", "CHAR")))
    names = names or list(plain)[:1]
    return f.to_json(f.struct(*(f.col(quoted(name)) for name in names))) if names else f.lit(None)


_DATA_EXCEPTION = "22"  # prefix of its SQLSTATEs
REFUSED = Problem(
    "MZ059",
    "PostgreSQL refused a batch of {address}",
    "{why}.",
    "correct the table or the sink's select and where; mzplan retries the whole batch.",
    at=", table {table}",
)
_TOO_NARROW = replace(REFUSED, fix="{fix}")
_DENIED = Problem(
    "MZ054",
    "{address} is missing a privilege in PostgreSQL",
    "{why}.",
    "grant it to {user} (docs/how-to/grant-privileges.md); mzplan retries the whole batch.",
    at=", table {table}",
)


def explain_batch_error(
    query: ResolvedQuery, outputs: Sequence[Output], move: Move | None, problem: BaseException
) -> BaseException:
    """Return the problem as an error for people, if it comes from the server or a task."""
    if isinstance(problem, MzplanError):
        return problem
    if is_lost(problem):
        return MzplanError(connect_problem(query, problem))
    if isinstance(problem, psycopg.errors.InsufficientPrivilege):
        return _denied_error(query, outputs, problem)
    if isinstance(problem, psycopg.Error):
        is_value = (state_of(problem) or "").startswith(_DATA_EXCEPTION)
        return _refused_error(query, outputs, move if is_value else None, reason(query, problem))
    _, marked, text = str(problem).partition("mzplan[COPY]: ")
    if not marked:
        return problem
    why = RuntimeError(text.splitlines()[0])
    if any(sign in str(why) for sign in ("connect", "terminat", "closed the connection")):
        return MzplanError(connect_problem(query, why))
    if "permission denied" in str(why):
        return _denied_error(query, outputs, why)
    return _refused_error(query, outputs, move if " (column " in text else None, reason(query, why))


def _denied_error(query: ResolvedQuery, outputs: Sequence[Output], problem: Exception) -> MzplanError:
    """Return an error with all missing privileges and the statements that grant them.

    Privileges are checked again, because other roles may have created objects since the probe. If that finds
    nothing, the error has the server's message.
    """
    with (
        suppress(psycopg.Error, MzplanError, OSError),
        open_conninfo(query) as info,
        connect(info, statement_timeout_s=30) as connection,
    ):
        table = find_target(connection, query)
        check = PrivilegeCheck(connection, query)
        if (missing := check.problem(table, outputs)) is not None:
            return MzplanError(missing)
    return _DENIED.error(query, why=reason(query, problem), table=query.body["table"])


def _refused_error(
    query: ResolvedQuery, outputs: Sequence[Output], move: Move | None, why: str
) -> MzplanError:
    """Return MZ059. Pass `move` if a value doesn't fit: it reveals the columns that may be too small."""
    problem, fix = REFUSED, ""
    if move is not None:
        written = list(zip(outputs, move.targets, strict=True))
        suspects = [pair for pair in written if pair[1].shown in why or f"(column {pair[1].name})" in why]
        if suspects:
            mismatches = (
                f"its column {target.name} is {target.shown}, and the sink writes {output.type}"
                for output, target in suspects
            )
            why = f"{why}; {'; '.join(mismatches)}"
            problem, fix = _TOO_NARROW, describe_fix(move.table, [output for output, _ in suspects], {})
    return problem.error(query, why=why, fix=fix, table=query.body["table"])
