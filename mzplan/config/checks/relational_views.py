"""Checks the relational views of a project, and finds the inputs and columns of their SQL.

It also puts the SQL of inlined views (`materialize: false`) into the queries of relational views.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Set
from dataclasses import dataclass
from typing import Any

from mzplan.config.checks.expressions import columns_read
from mzplan.config.checks.inlined_views import is_inlined
from mzplan.config.checks.resource_references import FROM
from mzplan.config.checks.sql_functions import SqlFunctions
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.model.address import Address
from mzplan.model.words import listed
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.allowed_parts import OR_CURRENT
from mzplan.schema.relations.analysis import analyse, output_of
from mzplan.schema.relations.nodes import QueryError, UnknownFunctionError
from mzplan.schema.relations.parse import RelationalQuery, ensure_few, parse_query
from mzplan.schema.relations.rules import WrongKeyError
from mzplan.schema.relations.scopes import UnknownColumnError
from mzplan.schema.relations.tree import Input, Item
from mzplan.schema.sql.column_replacement import quoted_name
from mzplan.schema.sql.view_query import parse_view


@dataclass(frozen=True, slots=True)
class ExpandedQuery:
    """A query with the SQL of inlined views in it.

    - `through`: the names of the inlined views.
    - `edits`: each replacement in the written text, as its start, its end, and the length of the new text.
    """

    query: RelationalQuery
    text: str
    through: tuple[str, ...] = ()
    edits: tuple[tuple[int, int, int], ...] = ()

    def require_functions(self, names: Container[str]) -> None:
        """Raise UnknownFunctionError, with the offset in the written text, for an unknown function."""
        try:
            self.query.require_functions(names)
        except UnknownFunctionError as unknown:
            unknown.offset = self.written(unknown.offset)
            raise

    def written(self, offset: int) -> int:
        """Return the offset in the written text that an offset in the expanded text comes from."""
        moved = 0
        for start, end, length in self.edits:
            if offset < start + moved:
                break
            if offset < start + moved + length:
                return start
            moved += length - (end - start)
        return offset - moved


def inlined_query(view: Declaration | None) -> str | None:
    """Return the SQL of an inlined view; None for anything else."""
    if view is None or not is_inlined(view) or view.type is None:
        return None
    property_ = resource_kind(view.address.kind, view.type).query_property
    text = view.body.get(property_) if property_ is not None else None
    return text if isinstance(text, str) else None


def is_row_view(
    text: str, declared: Mapping[Address, Declaration], around: frozenset[str] = frozenset()
) -> bool:
    """Return whether a query, with the inlined views that it reads, computes each row from one row."""
    query = parse_view(text)
    if query.fault() is not None:
        return False
    name = query.collection.text
    inner = inlined_query(declared.get(FROM.address(name, declared)))
    return inner is None or name in around or is_row_view(inner, declared, around | {name})


def expand_query(
    text: str,
    declared: Mapping[Address, Declaration],
    around: frozenset[str] = frozenset(),
    *,
    over_tables: bool,
) -> ExpandedQuery:
    """Return a query with the SQL of the inlined views that it reads. Raises QueryError.

    `around`: the views that the query is inlined into. `over_tables`: see parse_query.
    """
    query = parse_query(text, over_tables=over_tables)
    sql, through = query.text.sql, []
    edits: list[tuple[int, int, int]] = []
    inner: dict[str, ExpandedQuery] = {}
    for name in query.places:
        below = inlined_query(declared.get(FROM.address(name, declared)))
        if below is None or name in around:
            continue
        inner[name] = expand_query(below, declared, around | {name}, over_tables=over_tables)
        through += [*inner[name].through, name]
    if not inner:
        return ExpandedQuery(query, text)
    reads = {name: sum(below.query.reads.values()) for name, below in inner.items()}
    ensure_few(sum(times * reads.get(name, 1) for name, times in query.reads.items()))
    for start, table in sorted(query.tables.items(), reverse=True):
        if table.name in inner:
            below_it = inner[table.name].query
            _refuse_hidden(below_it.places.keys() & table.around, start)
            alias = "" if table.has_alias else f" AS {sql[start : table.end]}"
            written = f"({below_it.text.sql.strip()}){alias}"
            sql = sql[:start] + written + sql[table.end :]
            edits.append((start, table.end, len(written)))
    expanded = parse_query(sql, over_tables=over_tables)
    return ExpandedQuery(expanded, sql, tuple(dict.fromkeys(through)), tuple(reversed(edits)))


def _refuse_hidden(names: Set[str], start: int) -> None:
    """Raise QueryError if names in a WITH hide collections that an inlined view reads."""
    if names:
        hidden = ", ".join(sorted(names))
        problem = f"a name in WITH hides {hidden}, which an inlined view reads"
        raise QueryError(problem, start, "rename it in WITH.")


class RelationalView:
    """The check of one relational view."""

    def __init__(
        self,
        resource: Declaration,
        property_: str,
        expanded: ExpandedQuery,
        declared: Mapping[Address, Declaration],
        findings: Findings,
        functions: SqlFunctions,
    ):
        self._resource, self._property, self._functions = resource, property_, functions
        self._expanded, self._query = expanded, expanded.query
        self._declared, self._findings = declared, findings
        self._output = output_of(resource.body)
        written, marks = (self._allowed(name) for name in ("snapshots", "watermarks"))
        self._snapshots = written if isinstance(written, list) else []
        self._watermarks: Mapping[str, Any] = marks if isinstance(marks, dict) else {}

    def check(self, derive: Callable[[Address], None]) -> list[Item] | None:
        """Fill in `reads`, `aliases` and `state`, after `derive` has filled in the inputs.

        Returns the columns; None if they aren't known.
        """
        resource, query = self._resource, self._query
        streams = [name for name in query.places if name not in self._snapshots]
        for number, name in enumerate(streams):
            place = ((self._property,), self._expanded.written(query.offset(name)))
            resource.derived[f"reads[{number}]"] = place
            resource.derived.setdefault("reads", place)
        reads = {"reads": streams} if streams else {}
        resource.body = {**resource.body, **reads, self._property: self._expanded.text}
        for name in query.places:
            derive(FROM.address(name, self._declared))
        before = self._findings.total
        self._check_excluded()
        self._check_names()
        inputs = self._inputs()
        if inputs is None or self._findings.total > before:
            return None
        try:
            passes = self._output.naming_passes if is_inlined(resource) else self._output.passes
            analysis = analyse(query, inputs, resource.body, passes)
        except QueryError as refused:
            refused.offset = self._expanded.written(refused.offset)
            refuse(resource, self._property, refused, self._findings, self._functions)
            return None
        if not is_inlined(resource):
            self._keep("aliases", analysis.aliases)
            self._keep("state", analysis.state)
        return analysis.root.items

    def _inputs(self) -> dict[str, Input] | None:
        """Return the inputs by name; None if the columns of one aren't known."""
        inputs: dict[str, Input] = {}
        for name in self._query.places:
            read = self._declared.get(FROM.address(name, self._declared))
            if read is None or read.type is None or columns_read(read) is None:
                return None
            mark = self._watermarks.get(name)
            column = mark.get("column") if isinstance(mark, dict) else ""
            event_time = column if isinstance(column, str) else ""
            stream = self._output.streams and name not in self._snapshots
            inputs[name] = Input.of(read.type, read.body, read.label, stream=stream, event_time=event_time)
            if stream and (keys := inputs[name].key):
                self._refuse_keyed(name, keys)
            self._check_watermark(name, inputs[name])
        return inputs

    def _refuse_keyed(self, name: str, keys: tuple[str, ...]) -> None:
        fix = f"read it as it is at each micro-batch: `snapshots: [{name}]`{OR_CURRENT}"
        if not any(other not in (name, *self._snapshots) for other in self._query.places):
            fix = "write `output: current` and `key`, so that the view follows these changes."
        self._findings.add(
            "MZ020.cannot-follow",
            self._resource.location(("reads",)),
            label=self._resource.label,
            name=name,
            keys=keys,
            fix=fix,
        )

    def _allowed(self, name: str) -> Any:
        """Return the value of a property; None if the view's kind of output excludes it."""
        return self._resource.body.get(name) if name not in self._output.excluded else None

    def _check_excluded(self) -> None:
        """Report MZ020 for the properties that the view's kind of output excludes."""
        resource = self._resource
        own = resource.own if resource.given else resource.body
        for name, reason in self._output.excluded.items():
            if name in own:
                self._findings.add(
                    "MZ020.not-with-output",
                    resource.location((name,)),
                    name=name,
                    output=resource.body.get("output", "append"),
                    label=resource.label,
                    reason=reason,
                )

    def _check_names(self) -> None:
        """Report MZ019 for snapshots and watermarks of collections that the query doesn't read."""
        read = list(self._query.places)
        tables = [(number, name) for number, name in enumerate(self._snapshots) if self._is_declared(name)]
        streams = [name for name in read if name not in self._snapshots]
        marked = [name for name, mark in self._watermarks.items() if isinstance(mark, dict)]
        places: list[tuple[Path, str, list[str]]] = [
            *((("snapshots", number), name, read) for number, name in tables),
            *((("watermarks", name), name, streams) for name in marked),
        ]
        for path, name, known in places:
            if name in self._expanded.through:
                self._refuse_inlined(path, name)
            elif name not in known:
                self._findings.add(
                    "MZ019.query-reads",
                    self._resource.location(path, at_key=known is streams),
                    noun="stream" if known is streams else "collection",
                    name=name,
                    label=self._resource.label,
                    known=known,
                    meant=self._meant(name, known) or f"remove it from `{path[0]}`.",
                )

    def _meant(self, name: str, known: list[str]) -> str:
        """Return a hint to the collection that a wrong name stands for; "" if none is likely."""
        meant = self._query.aliases.get(name.lower())
        if meant in known:
            return f"write {meant}, not its alias."
        return self._findings.did_you_mean(name, known)

    def _refuse_inlined(self, path: Path, name: str) -> None:
        text = inlined_query(self._declared.get(FROM.address(name, self._declared))) or ""
        expanded = expand_query(text, self._declared, frozenset({name}), over_tables=True)
        reads = listed(list(expanded.query.places))
        is_table = path[0] == "snapshots"
        self._findings.add(
            "MZ019.no-stored",
            self._resource.location(path),
            name=name,
            need="be a snapshot" if is_table else "have a watermark",
            reads=reads,
            setting=f"snapshots: [{reads}]" if is_table else reads,
            replaced="" if is_table else f" in place of {name}",
        )

    def _is_declared(self, name: Any) -> bool:
        """Return whether a declared collection has this name; other names are reported elsewhere."""
        return isinstance(name, str) and FROM.address(name, self._declared) in self._declared

    def _check_watermark(self, name: str, input_: Input) -> None:
        """Report MZ019 for a watermark on a column that isn't a time."""
        if not input_.event_time:
            return
        names = [column.name for column in input_.columns]
        column = next((c for c in input_.columns if c.name.lower() == input_.event_time.lower()), None)
        if column is not None and column.type == "TIMESTAMP":
            return
        problem = f"is {column.type}" if column is not None else "isn't there"
        times = [c.name for c in input_.columns if c.type == "TIMESTAMP"]
        if column is not None and column.type == "TIMESTAMP_NTZ":
            hint = f"write a view with CAST({quoted_name(column.name)} AS TIMESTAMP), and read that."
        elif times:
            hint = self._findings.did_you_mean(input_.event_time, times) or f"write {listed(times, 40)}."
        else:
            hint = "declare the column with the time as TIMESTAMP."
        self._findings.add(
            "MZ019.watermark-needs",
            self._resource.location(("watermarks", name, "column")),
            name=name,
            label=self._resource.label,
            event_time=input_.event_time,
            problem=problem,
            input_label=input_.label,
            names=names,
            how=hint,
        )

    def _keep(self, name: str, value: object) -> None:
        """Fill in a property that follows from the query, if it has a value."""
        if value:
            self._resource.derived[name] = ((self._property,), 0)
            self._resource.body = {**self._resource.body, name: value}


def refuse(
    resource: Declaration,
    property_: str,
    error: QueryError,
    findings: Findings,
    known_functions: SqlFunctions,
) -> None:
    """Report a query that isn't allowed (MZ019)."""
    location = resource.location((property_,), offset=error.offset)
    label, problem = resource.label, error.problem
    if isinstance(error, UnknownColumnError):
        near = findings.did_you_mean(error.name, error.columns)
        columns, read = error.columns, error.relations
        findings.add(
            "MZ019.unknown-column", location, name=error.name, read=read, columns=columns, did_you_mean=near
        )
        return
    if isinstance(error, UnknownFunctionError):
        near = findings.did_you_mean(error.name, known_functions.names) or error.hint
        findings.add(
            "MZ019.unknown-function-of-view",
            location,
            name=error.name,
            label=label,
            problem=problem,
            near=near,
        )
        return
    if isinstance(error, WrongKeyError) and "key" in resource.body:
        location = resource.location(("key",))
    findings.add("MZ019.query", location, what=error.summary, label=label, problem=problem, fix=error.hint)
