"""Puts the SQL of inlined views (`materialize: false`) into the queries of relational views."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from mzplan.config.checks.inlined_views import is_inlined
from mzplan.config.checks.resource_references import FROM
from mzplan.config.documents import Declaration
from mzplan.model.address import Address
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import QueryError, RelationalQuery, ensure_few, parse_query
from mzplan.schema.view_query import is_of_rows, parse_view


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
    if not is_of_rows(query):
        return False
    name = query.collection.text
    inner = inlined_query(declared.get(FROM.address(name, declared)))
    return inner is None or name in around or is_row_view(inner, declared, around | {name})


def expand_query(
    text: str, declared: Mapping[Address, Declaration], around: frozenset[str] = frozenset()
) -> ExpandedQuery:
    """Return a query with the SQL of the inlined views that it reads. Raises QueryError.

    `around`: the views that the query is inlined into.
    """
    query = parse_query(text)
    sql, through = query.text.sql, []
    edits: list[tuple[int, int, int]] = []
    inner: dict[str, ExpandedQuery] = {}
    for name in query.places:
        below = inlined_query(declared.get(FROM.address(name, declared)))
        if below is None or name in around:
            continue
        inner[name] = expand_query(below, declared, around | {name})
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
    return ExpandedQuery(parse_query(sql), sql, tuple(dict.fromkeys(through)), tuple(reversed(edits)))


def _refuse_hidden(names: Set[str], start: int) -> None:
    """Raise QueryError if names in a WITH hide collections that an inlined view reads."""
    if names:
        hidden = ", ".join(sorted(names))
        problem = f"a name in WITH hides {hidden}, which an inlined view reads"
        raise QueryError(problem, start, "rename it in WITH.")
