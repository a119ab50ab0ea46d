"""Checks the expressions of sinks and views over the columns of a collection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Location, Path, listed, shown
from mzplan.schema.columns import CHANGE, POSITION, Column, DdlError
from mzplan.schema.expressions import parse_select, parse_where
from mzplan.schema.functions import BARE_CALLS, NO_FUNCTION, function_or_column, functions
from mzplan.schema.source_columns import columns_of, keys_of

if TYPE_CHECKING:
    from mzplan.schema.expressions import Parsed


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
    ):
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
                    "MZ019",
                    "Rows of the target depend on a value that changes each time",
                    f"{self.owner}: {varying_part} changes each time. When a row of {self.read} is "
                    "updated or deleted, mzplan couldn't find the former row in the target.",
                    "use only columns of the row; filter by time when you read the target.",
                    location=self.place(path, offset=offset),
                )

    def check_syntax(self, parsed: Parsed, path: Path) -> bool:
        """Report the problem of an expression, and return whether it has none."""
        if not parsed.problem:
            return True
        self.findings.add(
            "MZ019",
            "Not a stateless Spark SQL expression",
            f"{self.owner}: {parsed.problem}.",
            "write an expression over the columns of one row.",
            location=self.place(path, offset=parsed.offset),
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
                    "MZ019",
                    f"Ambiguous name {shown(name)}",
                    f"{self.owner}: {self.read} has a column of this name, and Spark has a function.",
                    function_or_column(name),
                    location=self.place(path, offset=offset, length=len(name)),
                )
        for name, offset in parsed.columns:
            if name.lower() in {*earlier} - {*self.lower, *BARE_CALLS}:
                self.aliases.append(name.lower())
            elif name.lower() not in self.lower:
                self.findings.add(
                    "MZ019",
                    f"Unknown column {shown(name)}",
                    f"{self.read} has the columns {listed(self.columns, 40)}.",
                    self.findings.did_you_mean(name, self.columns) or "use one of these.",
                    location=self.place(path, offset=offset, length=len(name)),
                )

    def _check_functions(self, parsed: Parsed, path: Path) -> None:
        """Report each function that Spark doesn't have."""
        for name, offset in parsed.unknown:
            self.findings.add(
                "MZ019",
                f"Unknown function {shown(name)}",
                f"{self.owner}: {NO_FUNCTION}.",
                self.findings.did_you_mean(name, functions()) or "use functions of Spark SQL.",
                location=self.place(path, offset=offset, length=len(name)),
            )

    def _names(self, parsed: Parsed, item: str, path: Path) -> list[str] | None:
        if parsed.star:
            if self.columns is None:
                return None
            return [column for column in self.columns if column.lower() not in parsed.without]
        if parsed.name is None:
            self.findings.add(
                "MZ019",
                "An expression without a name",
                f"{self.owner}: an expression that isn't just a column needs a name.",
                f"write {shown(f'{item.strip()} AS name')}.",
                location=self.place(path),
            )
            return None
        if parsed.name.lower() in self.own:
            self.findings.add(
                "MZ019",
                f"{parsed.name.lower()} can't be written",
                f"{self.owner}: {parsed.name.lower()} is a column that mzplan adds to this collection.",
                "give it another name: … AS name.",
                location=self.place(path),
            )
            return None
        return [parsed.name]

    def _report_twice(self, name: str, path: Path) -> None:
        self.findings.add(
            "MZ019",
            f"The column {shown(name)} is written twice",
            f"{self.owner}: an earlier item of `select` has the same name.",
            "give one of them another name with AS.",
            location=self.place(path),
        )
