"""Replaces the columns in the text of an expression by other expressions.

Spark must read the result like the expression over a subquery with those columns. Therefore each name in the
expression must be a column to replace, or clearly something else. Other expressions are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice, takewhile

from mzplan.schema.sql.expressions import VALUES, Parsed, parse_select
from mzplan.schema.sql.sql_text import MAX_LENGTH, SqlTextError, Token, bare, tokens

TOO_LONG = "with the expressions of the inlined views in it, its SQL gets too long"
_BEFORE_ROW = frozenset(["and", "between", "else", "not", "or", "then", "when"])
_NAMING = frozenset(["arrays_zip", "struct"])
_NO_NAMES = VALUES | {"all", "distinct", "from"}  # as an item of SELECT, without quotes


def with_expressions(text: str, parsed: Parsed, given: Callable[[str], str], names: Collection[str]) -> str:
    """Return the expression without its alias, with each column replaced by the text that `given` returns
    for its lower-case name.

    `names`: everything that may be a column here, in lower case. Raises SqlTextError for an ambiguous name.
    """
    if parsed.problem:
        raise SqlTextError(parsed.problem)
    columns = {offset: name for name, offset in parsed.columns if offset < len(text)}
    is_column = _is_one_token(text)
    for name, start, end in _names(text, columns, names):
        expression = given(name)
        is_alone = is_column or _is_one_token(expression)
        text = text[:start] + (expression if is_alone else f"({expression})") + text[end:]
        if len(text) > MAX_LENGTH:  # views of views of views may double it each time
            raise SqlTextError(TOO_LONG)
    return text


def _is_one_token(text: str) -> bool:
    return len(list(islice(tokens(text), 2))) == 1


def _names(text: str, columns: Mapping[int, str], names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    """Return the columns of an expression and their positions, the last first.

    Raises SqlTextError if a column's name stands where sqlglot sees no column, because Spark may see one.
    """
    read = list(tokens(text))
    _ensure_unnamed(read)
    places: list[tuple[str, int, int]] = []
    for number, token in enumerate(read):
        if token.start in columns:
            if token.name != columns[token.start].lower():
                raise SqlTextError(f"mzplan can't locate {columns[token.start]} in the expression")
            places.append((token.name, token.start, token.end))
        elif token.name in names and not _is_no_column(read, number):
            raise SqlTextError(f"{token.text} may be a column or something else: rename the column")
    if len(places) < len(columns):
        raise SqlTextError("mzplan can't locate its columns")
    return reversed(places)


def _ensure_unnamed(read: Sequence[Token]) -> None:
    """Raise SqlTextError for a struct that names its fields after the columns to replace."""
    for number, token in enumerate(read):
        if token.text != "(":
            continue
        before = read[number - 1] if number else None
        is_call = (
            before is not None
            and before.kind in ("word", "quoted")
            and before.text.lower() not in _BEFORE_ROW
        )
        if is_call and before is not None and before.text.strip("`").lower() not in _NAMING:
            continue
        inner = _until_closed(read[number + 1 :], token.depth)
        end = number + 1 + len(inner)
        is_row = any(part.text == "," and part.depth == token.depth + 1 for part in inner)
        is_variables = end + 1 < len(read) and read[end + 1].text.startswith("->")
        if is_call or (is_row and not is_variables):
            raise SqlTextError(
                "a struct has fields named after columns: write named_struct('name', value, …)"
            )


def _until_closed(read: Sequence[Token], depth: int) -> list[Token]:
    """Return the tokens inside brackets that were opened at this depth."""
    return list(takewhile(lambda token: token.depth > depth, read))


def _is_no_column(read: Sequence[Token], number: int) -> bool:
    """Return whether a name is clearly a field, a function, an alias, a type, or a unit of time."""
    kind, before = (read[number - 1].kind, read[number - 1].text.lower()) if number else ("", "")
    after = read[number + 1].text.lower() if number + 1 < len(read) else ""
    follows_literal = kind == "number" or (kind == "quoted" and not before.startswith("`"))
    return before in (".", "as", "to") or after in ("(", "from") or follows_literal


def without_name(item: str) -> str:
    """Return an item of `select` without the name of its result."""
    text = bare(item).sql
    read = list(tokens(text))
    if len(read) < 2 or read[-2].text == "." or not read[-1].name:
        return text.rstrip()
    end = read[-2].start if read[-2].text.lower() == "as" else read[-1].start
    return text[:end].rstrip()


def with_name(text: str, name: str) -> str:
    """Return an expression as an item of `select` with this name."""
    read = list(tokens(text))
    is_same = len(read) == 1 and read[0].name == name.lower() and text.strip("`") == name
    return text if is_same else f"{text} AS {quoted_name(name)}"


def quoted_name(name: str) -> str:
    """Return a name in backquotes, unless every parser reads it as a column without them."""
    is_plain = name.lower() not in _NO_NAMES and parse_select(name).columns == ((name, 0),)
    return name if is_plain else "`{}`".format(name.replace("`", "``"))
