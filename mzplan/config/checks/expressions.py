"""Checks the expressions of sinks and views over the columns of a collection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Location, Path
from mzplan.schema.columns import CHANGE, POSITION, Column, DdlError
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.sql.expressions import parse_select, parse_where
from mzplan.schema.sql.functions import BARE_CALLS, NO_FUNCTION, function_or_column
from mzplan.schema.sql.functions import functions as functions_of_spark

if TYPE_CHECKING:
    from mzplan.schema.sql.expressions import Parsed


def columns_read(source: Declaration | None) -> tuple[Column, ...] | None:
    """Return the columns of a source's or view's collection; None if they aren't known."""
    if source is None or source.type is None:
        return None
    try:
        return columns_of(source.type, source.body) or None
    except DdlError:
        return None


def keys_read(source: Declaration | None) -> tuple[str, ...]:
    """Return the key of a source's or view's collection; empty if it has none or isn't known."""
    if source is None or source.type is None:
        return ()
    return keys_of(source.type, source.body)


class ExpressionCheck:
    """Checks expressions over one collection: the list `select`, and the condition `where`.

    - `owner`: the resource with the expressions, for messages. `read`: the collection, for messages.
    - `columns`: the collection's columns; None if they aren't known.
    - `place`: returns the location of a path, with an `offset` and a `length` in characters.
    - `named`: whether an item may use the names of earlier items, as in a SELECT.
    - `aliases`: the names of earlier items that items use, in lower case.
    - `functions`: the user's functions that the expressions call. `known`: all functions that they may call.
    """

    def __init__(
        self,
        owner: str,
        read: str,
        findings: Findings,
        columns: list[str] | None,
        keyed: bool,
        place: Callable[..., Location],
        *,
        named: bool = False,
        functions: Collection[str] = (),
        known: Collection[str] = (),
    ):
        self._functions, self._known = functions, known or functions_of_spark()
        self.named, self.aliases = named, list[str]()
        self.owner, self.read, self.findings, self.columns, self.place = owner, read, findings, columns, place
        self.lower = {column.lower() for column in columns or ()} | {POSITION}
        self.own = {POSITION, CHANGE} if keyed else {POSITION}

    def select(self, items: list[str]) -> list[str] | None:
        """Return the columns of the result; None if they aren't known."""
        outputs: list[str] = []
        seen: dict[str, int] = {}
        complete = True
        for index, item in enumerate(items):
            path: Path = ("select", index)
            parsed = parse_select(item)
            if not self.check_syntax(parsed, path):
                complete = False
                continue
            self.check_columns(parsed, path, seen if self.named else ())
            names = self._names(parsed, item, path)
            complete = complete and names is not None
            for name in names or ():
                if name.lower() in seen:
                    self._report_twice(name, path)
                seen.setdefault(name.lower(), index)
                outputs.append(name)
        return outputs if complete else None

    def where(self, condition: str) -> None:
        parsed = parse_where(condition)
        if self.check_syntax(parsed, ("where",)):
            self.check_columns(parsed, ("where",))

    def check_varying(self, body: Mapping[str, Any]) -> None:
        """Report MZ019 for a key or condition whose value changes each time, if the collection is keyed.

        With it, mzplan couldn't find a row in the target again to remove it.
        """
        if CHANGE not in self.own:
            return
        key = {str(name).lower() for name in body.get("key", ())}
        selected = [(("select", i), parse_select(item)) for i, item in enumerate(body.get("select", ()))]
        deciding: list[tuple[Path, Parsed]] = [
            (path, parsed)
            for path, parsed in selected
            if parsed.name is not None and parsed.name.lower() in key
        ]
        if "where" in body:
            deciding.append((("where",), parse_where(body["where"])))
        for path, parsed in deciding:
            if parsed.varies is not None:
                varying_part, offset = parsed.varies
                self.findings.add(
                    "MZ019.rows-target",
                    self.place(path, offset=offset),
                    owner=self.owner,
                    varying_part=varying_part,
                    read=self.read,
                )

    def check_syntax(self, parsed: Parsed, path: Path) -> bool:
        """Report the problem of an expression, and return whether it has none."""
        if not parsed.problem:
            return True
        self.findings.add(
            "MZ019.not-stateless",
            self.place(path, offset=parsed.offset),
            owner=self.owner,
            problem=parsed.problem,
        )
        return False

    def check_columns(self, parsed: Parsed, path: Path, earlier: Collection[str] = ()) -> None:
        """Report each column and each function that doesn't exist.

        `earlier`: the names of earlier items. A column of the collection comes before them.
        """
        self._check_functions(parsed, path)
        if self.columns is None:
            return
        for name, offset in parsed.bare_calls:
            if name in self.lower:
                self.findings.add(
                    "MZ019.ambiguous-name",
                    self.place(path, offset=offset, length=len(name)),
                    name=name,
                    owner=self.owner,
                    read=self.read,
                    function_or_column=function_or_column(name),
                )
        for name, offset in parsed.columns:
            if name.lower() in {*earlier} - {*self.lower, *BARE_CALLS}:
                self.aliases.append(name.lower())
            elif name.lower() not in self.lower:
                self.findings.add(
                    "MZ019.unknown-column",
                    self.place(path, offset=offset, length=len(name)),
                    name=name,
                    read=self.read,
                    columns=self.columns,
                    did_you_mean=self.findings.did_you_mean(name, self.columns),
                )

    def _check_functions(self, parsed: Parsed, path: Path) -> None:
        """Report each function that neither Spark nor the project has."""
        for name, offset in parsed.unknown:
            if name in self._functions:
                continue
            self.findings.add(
                "MZ019.unknown-function",
                self.place(path, offset=offset, length=len(name)),
                name=name,
                owner=self.owner,
                no_function=NO_FUNCTION,
                did_you_mean=self.findings.did_you_mean(name, self._known),
            )

    def _names(self, parsed: Parsed, item: str, path: Path) -> list[str] | None:
        if parsed.star:
            if self.columns is None:
                return None
            return [column for column in self.columns if column.lower() not in parsed.without]
        if parsed.name is None:
            self.findings.add(
                "MZ019.expression-without",
                self.place(path),
                owner=self.owner,
                example=f"{item.strip()} AS name",
            )
            return None
        if parsed.name.lower() in self.own:
            self.findings.add(
                "MZ019.cannot-written", self.place(path), name=parsed.name.lower(), owner=self.owner
            )
            return None
        return [parsed.name]

    def _report_twice(self, name: str, path: Path) -> None:
        self.findings.add("MZ019.column-written", self.place(path), name=name, owner=self.owner)
