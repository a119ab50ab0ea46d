"""`functions:` in mzplan.yaml: Python functions that SQL calls by a name.

Each query's body gets the functions that its SQL calls, with the text of a module in the project's folder. So
plans show a changed function, states hold it, and runners run what was committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from mzplan.config.checks.function_code import FunctionCode
from mzplan.config.checks.recorded_analyses import Records
from mzplan.config.documents import Declaration, Document
from mzplan.config.findings import Findings, Location
from mzplan.schema.columns import DdlError, parse_columns
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.functions import functions, is_reserved, reads_as_call
from mzplan.schema.sql.sql_text import SqlTextError, bare
from mzplan.schema.user_functions import CODE, FUNCTIONS, calls_in, parse_function
from mzplan.schema.validators import is_valid

_NO_RECORDS: Records = MappingProxyType({})


class SqlFunctions:
    """The functions that a project declares for SQL, by name.

    `known` is None for committed bodies, which already have the functions that they call.
    """

    def __init__(self, known: Mapping[str, Mapping[str, Any]] | None = None):
        self._known = known

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all functions that SQL may call."""
        return (*(self._known or ()), *functions())

    def fill_in(self, resources: Iterable[Declaration], findings: Findings) -> None:
        """Set `functions` of each query whose SQL calls some. Report MZ004 where a file sets it."""
        for resource in resources:
            if resource.type is None or self._known is None or not _may_call(resource):
                continue
            if FUNCTIONS in resource.body:
                findings.add(
                    "MZ004.sets",
                    resource.location((FUNCTIONS,)),
                    label=resource.label,
                    name=FUNCTIONS,
                    property="SQL, and from `functions` in mzplan.yaml",
                )
            self.refresh(resource)

    def refresh(self, resource: Declaration) -> None:
        """Set `functions` of a query again, after its SQL has changed."""
        if self._known is None or not _may_call(resource):
            return
        called = {name for text in _texts(resource) for name, _, _ in calls_in(text, self._known)}
        body = {name: value for name, value in resource.body.items() if name != FUNCTIONS}
        if called:
            body[FUNCTIONS] = {name: self._known[name] for name in sorted(called)}
            resource.derived[FUNCTIONS] = (_place(resource), 0)
        resource.body = body


def read_functions(
    project: Document, code: FunctionCode, findings: Findings, records: Records = _NO_RECORDS
) -> SqlFunctions:
    """Return the functions that mzplan.yaml declares. Report the ones that SQL can't call.

    `records`: the records of the state. sqlglot isn't loaded for a name that a committed query calls.
    """
    declared = project.data.get(FUNCTIONS) if isinstance(project.data, dict) else None
    known: dict[str, Mapping[str, Any]] = {}
    called = {name for record in records.values() for name in record.body.get(FUNCTIONS, ())}
    for name, body in declared.items() if isinstance(declared, dict) else ():
        if not is_valid("project", {"version": 1, "project": "any", FUNCTIONS: {name: body}}):
            continue  # reported with the settings
        if CODE in body:
            place = Location(project.file, (FUNCTIONS, name, CODE))
            findings.add("MZ004.sets", place, label=name, name=CODE, property="function")
        place = Location(project.file, (FUNCTIONS, name), at_key=True)
        if is_reserved(name):
            findings.add("MZ404.taken", place, name=name)
            continue
        if name not in called and not reads_as_call(name):
            findings.add("MZ404.no-call", place, name=name)
            continue
        returns = _type_of(body["returns"])
        if returns is None:
            where = Location(project.file, (FUNCTIONS, name, "returns"))
            findings.add("MZ404.type", where, name=name, type=body["returns"])
        known[name] = {**body, "returns": returns or "STRING"}  # one mistake gives one error
        function = parse_function(body["function"])
        if function.is_in_project:
            named = Location(project.file, (FUNCTIONS, name, "function"))
            text = code.text_of(function, f"the function {name}", named)
            known[name] = {**known[name], CODE: text or ""}
    return SqlFunctions(known)


def _type_of(text: str) -> str | None:
    """Return a type in canonical DDL; None unless it is one type of Spark, whose values may be NULL."""
    try:
        (column,) = parse_columns(f"x {text}")
    except (DdlError, ValueError):
        return None
    return column.type if column.nullable else None


def _may_call(resource: Declaration) -> bool:
    return FUNCTIONS in resource_kind(resource.address.kind, str(resource.type)).schema["properties"]


def _place(resource: Declaration) -> tuple[str, ...]:
    property_ = resource_kind(resource.address.kind, str(resource.type)).query_property
    return (property_ or ("select" if "select" in resource.body else "where"),)


def _texts(resource: Declaration) -> Iterator[str]:
    """Yield the SQL of a query without comments. Wrong values and SQL are reported elsewhere."""
    property_ = resource_kind(resource.address.kind, str(resource.type)).query_property
    items = resource.body.get("select")
    names = (property_,) if property_ is not None else ("where",)
    values = [*(items if isinstance(items, list) else ()), *(resource.body.get(name) for name in names)]
    for text in values:
        if isinstance(text, str):
            try:
                yield bare(text.rstrip().removesuffix(";")).sql
            except SqlTextError:
                continue
