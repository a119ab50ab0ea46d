"""Finds the inputs, the columns and the key of a view by SQL, and reports its mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mzplan.config.checks.expressions import ExpressionCheck, columns_read, keys_read
from mzplan.config.checks.inlined_views import InlinedViews, is_inlined
from mzplan.config.checks.recorded_analyses import RecordedAnalyses
from mzplan.config.checks.relational_views import (
    ExpandedQuery,
    RelationalView,
    expand_query,
    inlined_query,
    is_row_view,
    refuse,
)
from mzplan.config.checks.resource_references import FROM, path_of
from mzplan.config.checks.sql_functions import SqlFunctions
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Location, Path
from mzplan.connectors.api.outputs import SelectedColumn, columns_selected
from mzplan.model.address import Address
from mzplan.model.words import listed
from mzplan.schema.columns import Column, DdlError, canonical_type, parse_columns, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.analysis import output_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.sql.expressions import parse_select
from mzplan.schema.sql.view_query import QueryPart, ViewQuery, parse_view
from mzplan.schema.user_functions import FUNCTIONS, returned_types

_DERIVED = frozenset(["aliases", "from", "reads", "state"])  # properties that only follow from the SQL
_MAX_COLUMNS = 20  # named in one message
SNAPSHOTS = "snapshots"
_RELATIONAL = ("watermarks", SNAPSHOTS, "refresh", "full_above")  # that only a relational view can set


class Views:
    """Fills in `from`, `schema` and `key` of each view, starting with the views that other views read.

    - `through`: by relational view, the inlined views in its SQL.
    - `analyses`: the analyses in the state, which make parsing unnecessary.
    """

    def __init__(
        self,
        declared: Mapping[Address, Declaration],
        findings: Findings,
        analyses: RecordedAnalyses,
        functions: SqlFunctions,
    ):
        self.declared, self.findings, self.analyses = declared, findings, analyses
        self.functions = functions
        self.through: dict[Address, tuple[str, ...]] = {}
        self._done: set[Address] = set()

    def derive(self) -> None:
        """Fill in all views, and report mistakes."""
        for address in self.declared:
            self._derive(address)

    def _derive(self, address: Address) -> None:
        resource = self.declared.get(address)
        if address in self._done or resource is None or resource.type is None:
            return
        self._done.add(address)  # before its inputs, so that a cycle ends
        if not address.is_view:
            return
        self._check_name(resource)
        property_ = resource_kind(address.kind, resource.type).query_property
        if property_ is None:
            self._check_inputs(resource)
        elif isinstance(text := resource.body.get(property_), str):
            written = {name: value for name, value in resource.body.items() if name not in _DERIVED}
            if resource.file.full_path:  # not for committed bodies, which have these properties
                for name in sorted(resource.body.keys() & _DERIVED):
                    self._report_derived(resource, name, property_)
            resource.body, before = written, self.findings.total
            if not self.analyses.reuse(resource, property_, self._derive):
                self._derive_query(resource, property_, text)
                if self.findings.total == before:
                    self.analyses.record(resource, written)

    def _derive_query(self, resource: Declaration, property_: str, text: str) -> None:
        """Fill in the properties that follow from the SQL of a view."""
        if is_inlined(resource):
            InlinedViews(self.declared, self.findings).check(resource)
        relational = any(name in resource.body for name in _RELATIONAL)
        relational = relational or resource.body.get("output", "append") != "append"
        rows = parse_view(text)
        if not relational and is_row_view(text, self.declared):
            self._derive_rows(resource, property_, rows)
            return
        try:
            query = expand_query(text, self.declared, over_tables=not output_of(resource.body).streams)
            if query.through:
                resource.body = {**resource.body, property_: query.text}
                self.functions.refresh(resource)
            query.require_functions(resource.body.get(FUNCTIONS, ()))
            if not relational and query.query.is_plain and (fault := rows.fault()) is not None:
                raise QueryError(*fault)
        except QueryError as error:
            refuse(resource, property_, error, self.findings, self.functions)
        else:
            self._derive_relational(resource, property_, query)

    def _derive_rows(self, resource: Declaration, property_: str, query: ViewQuery) -> None:
        """Fill in a view that computes each row from one row."""
        name = query.collection.text
        source = FROM.address(name, self.declared)
        self._derive(source)
        resource.derived["from"] = ((property_,), query.collection.offset)
        resource.body = {**resource.body, "from": name}
        selected = _Expressions(
            resource, property_, query, self.declared.get(source), self.findings, self.functions
        ).selected()
        if selected == []:
            error = QueryError("it leaves out every column", query.items[0].offset)
            refuse(resource, property_, error, self.findings, self.functions)
        elif selected is not None:
            self._schema(resource, property_, selected)

    def _derive_relational(self, resource: Declaration, property_: str, query: ExpandedQuery) -> None:
        """Fill in a view whose query joins, aggregates or does more than compute each row from one row."""
        view = RelationalView(resource, property_, query, self.declared, self.findings, self.functions)
        items = view.check(self._derive)
        if query.through:
            self.through[resource.address] = query.through
        if items is not None:
            # A column can't have the type of NULL.
            columns = (
                SelectedColumn(item.field.name, canonical_type(item.field.type or "")) for item in items
            )
            places = (QueryPart("", query.written(item.offset)) for item in items)
            self._schema(resource, property_, list(zip(columns, places, strict=True)))

    def _report_derived(self, resource: Declaration, name: str, property_: str) -> None:
        """Report MZ004 for a property that follows from the query and can't be set."""
        self.findings.add(
            "MZ004.sets", resource.location((name,)), label=resource.label, name=name, property=property_
        )

    def _check_name(self, resource: Declaration) -> None:
        """Report MZ003 if a source has the view's name, because queries name sources and views alike."""
        other = self.declared.get(Address("source", resource.address.name))
        if other is not None and other is not resource:
            self.findings.add(
                "MZ003.two-collections",
                resource.location(),
                related=other.location(),
                name=resource.address.name,
                label=other.label,
            )

    def _check_inputs(self, resource: Declaration) -> None:
        """Report collections that a function can't read.

        MZ020: a keyed collection as a stream, because a function only gets rows that are added. MZ360: an
        inlined view, and a collection that is read as a stream and as a table.
        """
        assert resource.type is not None, "the type is known before"
        streams: list[str] = []
        for role, reference, name in resource_kind(resource.address.kind, resource.type).references_in(
            resource.body
        ):
            address, location = reference.address(name, self.declared), resource.location(path_of(role))
            self._derive(address)  # the key of a view by SQL follows from its query
            read = self.declared.get(address)
            if (query := inlined_query(read)) is not None:
                below = expand_query(query, self.declared, frozenset({name}), over_tables=True)
                reads = ", ".join(below.query.places)
                self.findings.add("MZ360.inlined", location, label=resource.label, name=name, reads=reads)
            elif reference.property == SNAPSHOTS:
                if name in streams:
                    self.findings.add("MZ360.two-ways", location, label=resource.label, name=name)
                continue
            streams.append(name)
            if keys := keys_read(read):
                self.findings.add(
                    "MZ020.cannot-follow-updates",
                    location,
                    label=resource.label,
                    name=name,
                    keys=keys,
                )

    def _schema(
        self, resource: Declaration, property_: str, selected: list[tuple[SelectedColumn, QueryPart]]
    ) -> None:
        """Fill in `schema`, or compare it with the query's columns."""
        written = resource.body.get("schema")
        if written is not None:
            self._compare(resource, written, [column for column, _ in selected])
            return
        unknown = [(column, item) for column, item in selected if column.type is None]
        if unknown:
            self._report_unknown(resource, property_, unknown)
        columns = [Column(c.name, c.type, c.nullable) for c, _ in selected if c.type is not None]
        if not unknown:
            resource.derived["schema"] = ((property_,), 0)
            resource.body = {**resource.body, "schema": ", ".join(map(str, columns))}

    def _report_unknown(
        self, resource: Declaration, property_: str, unknown: list[tuple[SelectedColumn, QueryPart]]
    ) -> None:
        """Report MZ301 once, for all columns whose type only Spark knows."""
        (first, item), *others = unknown
        names = listed([column.name for column, _ in unknown], _MAX_COLUMNS)
        self.findings.add(
            "MZ301.types-known" if others else "MZ301.type-known",
            resource.location((property_,), offset=item.offset, length=len(item.text)),
            names=names,
            label=resource.label,
            name=first.name,
        )

    def _compare(self, resource: Declaration, written: object, selected: list[SelectedColumn]) -> None:
        try:
            columns = parse_columns(written) if isinstance(written, str) else ()
        except DdlError:  # reported elsewhere
            return
        names, wanted = [c.name.lower() for c in columns], [c.name.lower() for c in selected]
        types = {c.name.lower(): c.type for c in selected if c.type is not None}
        differing = [c for c in columns if types.get(c.name.lower(), c.type) != c.type]
        nulls = [c.name for c, s in zip(columns, selected, strict=False) if s.nullable and not c.nullable]
        if names == wanted and not differing and not nulls:
            return
        detail = f"Its query gives {', '.join(column.name for column in selected)}, in this order"
        if names == wanted:
            typed = (f"{column.name} is {types[column.name.lower()]}" for column in differing)
            never = (f"{name} may be NULL" for name in nulls)
            detail = f"In its query, {', '.join((*typed, *never))}"
        self.findings.add(
            "MZ230.schema-differs", resource.location(("schema",)), label=resource.label, why=detail
        )


class _Expressions:
    """The items and the condition of a view's query, over the collection that it reads."""

    def __init__(
        self,
        resource: Declaration,
        property_: str,
        query: ViewQuery,
        read: Declaration | None,
        findings: Findings,
        functions: SqlFunctions,
    ):
        self._resource, self._property, self._query = resource, property_, query
        self._read, self._findings, self._functions = read, findings, functions

    def selected(self) -> list[tuple[SelectedColumn, QueryPart]] | None:
        """Return the view's columns, each with the item of the query that produces it.

        Returns None if the input's columns aren't known, or if there is a mistake.
        """
        query, read, findings = self._query, self._read, self._findings
        columns, keys = columns_read(read), keys_read(read)
        names = [column.name for column in columns] if columns is not None else None
        label = read.label if read is not None else query.collection.text
        keyed, place = bool(keys), self._place
        owner, own = self._resource.label, self._resource.body.get(FUNCTIONS, ())
        check = ExpressionCheck(
            owner,
            label,
            findings,
            names,
            keyed=keyed,
            place=place,
            named=True,
            functions=own,
            known=self._functions.names,
        )
        before = findings.total
        check.select([item.text for item in query.items])
        if query.where is not None:
            check.where(query.where.text)
        key = query.key(keys)
        check.check_varying({**query.body, "key": key or ()})
        self._keep(keys, key)
        if columns is None or findings.total > before:
            return None
        if check.aliases and not is_inlined(self._resource):
            self._resource.derived["aliases"] = ((self._property,), 0)
            self._resource.body = {**self._resource.body, "aliases": check.aliases}
        return list(self._typed(columns))

    def _typed(self, columns: Sequence[Column]) -> Iterator[tuple[SelectedColumn, QueryPart]]:
        """Yield the view's columns, each with its item. An item may use the names of earlier items."""
        known = {c.name.lower(): Column(c.name, spark_type(c.type), c.nullable) for c in columns}
        stored, returned = tuple(known.values()), returned_types(self._resource.body)
        for item in self._query.items:
            read = stored if parse_select(item.text).star else tuple(known.values())
            for column in columns_selected(item.text, read, returned):
                yield column, item
                if column.type is not None:
                    known.setdefault(column.name.lower(), Column(column.name, column.type))

    def _keep(self, keys: Sequence[str], key: Sequence[str] | None) -> None:
        """Fill in `key` of a view whose rows are updated and deleted. Report MZ019 for a wrong key."""
        resource, collection = self._resource, self._query.collection.text
        if key is None:
            self._findings.add(
                "MZ019.view-must",
                self._place(("from",)),
                label=resource.label,
                collection=collection,
                keys=keys,
            )
        elif resource.body.get("key", list(key)) != list(key):
            given = f"gives the key {', '.join(key)}" if key else f"reads {collection}, which has no key"
            self._findings.add(
                "MZ019.key-view", resource.location(("key",)), label=resource.label, given=given
            )
        elif key:
            resource.derived["key"] = ((self._property,), 0)
            resource.body = {**resource.body, "key": list(key)}

    def _place(self, path: Path, *, offset: int | None = None, length: int = 1) -> Location:
        part: QueryPart | None = self._query.collection
        if isinstance(path[-1], int):
            part = self._query.items[path[-1]]
        elif path == ("where",):
            part = self._query.where
        start = part.offset if part is not None else 0
        return self._resource.location((self._property,), offset=start + (offset or 0), length=length)
