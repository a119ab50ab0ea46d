"""`query_file`: a view's SQL in a file of its own, read as if it were written after `query: |`.

States, plans and runners have the text, and don't know the file. `Declaration.location` points errors to
the place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mzplan.config.checks.schema_check import BodyCheck
from mzplan.config.documents import Declaration, Document
from mzplan.config.findings import Findings, Location, SourceFile
from mzplan.config.references import EACH, fill
from mzplan.config.variables import VARIABLE, Variables
from mzplan.config.yaml.parser import read_text
from mzplan.model.words import scalar_text
from mzplan.schema.editor import QUERY_FILE
from mzplan.schema.kinds import resource_kind
from mzplan.schema.validators import is_valid


def as_block(text: str) -> str:
    r"""Return a file's text as YAML reads it after `|`: with `\n` for each line break, and one at the end."""
    return re.sub("\r\n?", "\n", text).rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class _Sql:
    """The content of a file, as written and with its variables filled in (None if that isn't possible)."""

    written: str
    filled: str | None


class QueryFiles:
    """The query files of a project. Each is read once, and its variables are filled in as in a YAML file."""

    def __init__(self, directory: str, variables: Variables, findings: Findings):
        self._directory, self._variables, self._findings = directory, variables, findings
        self._read: dict[str, _Sql] = {}  # by path

    def fill_in(self, resources: Iterable[Declaration]) -> None:
        """Set the query of each resource that names a file.

        A resource whose SQL can't be known isn't checked further.
        """
        for resource in resources:
            if resource.type is None or QUERY_FILE not in resource.body:
                continue
            property_ = resource_kind(resource.address.kind, resource.type).query_property
            if property_ is not None and not self._write_out(resource, property_):
                resource.type = None

    def _write_out(self, resource: Declaration, property_: str) -> bool:
        value = {QUERY_FILE: resource.body[QUERY_FILE]}
        at = resource.location((QUERY_FILE,))
        if property_ in resource.body:
            self._findings.add(
                "MZ020.both",
                resource.location((QUERY_FILE,), at_key=True),
                property=property_,
                query_file=QUERY_FILE,
                label=resource.label,
            )
            return False
        if not is_valid(QUERY_FILE, value):
            BodyCheck(self._findings, resource.location, resource.label).report(QUERY_FILE, value)
            return False
        file = SourceFile.within(self._directory, str(Path(self._directory, value[QUERY_FILE])))
        file = replace(file, suffix=".sql")
        sql = self._sql(file, property_, at)
        if sql is None or sql.filled is None:
            return False
        place = partial(_written_offset, sql.written, self._variables.values)
        resource.files[property_] = replace(at, file=file, path=(property_,)), place
        resource.body = {property_: sql.filled, **resource.body}
        del resource.body[QUERY_FILE]
        return True

    def _sql(self, file: SourceFile, property_: str, named: Location) -> _Sql | None:
        """Return the SQL of a file; None if it can't be read, which is reported at `named`."""
        if file.full_path not in self._read:
            text = read_text(file, self._findings, named)
            if text is None:
                return None
            written = as_block(text)
            self._read[file.full_path] = _Sql(written, self._fill(file, property_, written))
        return self._read[file.full_path]

    def _fill(self, file: SourceFile, property_: str, written: str) -> str | None:
        at = Location(file, (property_,))
        if EACH in written:
            self._findings.add(
                "MZ251.no-meaning",
                replace(at, offset=written.index(EACH), length=len(EACH)),
                each=EACH,
                path=file.path,
                query_file=QUERY_FILE,
                property=property_,
            )
            return None
        body = {property_: written}
        fill(
            Document(file, body, [(body, property_)] if "${" in written else []),
            self._variables,
            self._findings,
        )
        return None if (file.full_path, at.path) in self._findings.unusable else body[property_]


def _written_offset(written: str, values: Mapping[str, Any], offset: int) -> int:
    """Return the offset in the written text that an offset in the filled-in text comes from."""
    for match in VARIABLE.finditer(written):
        longer = len(scalar_text(values[match[1]])) - len(match[0])
        if offset < match.start():
            break
        if offset < match.end() + longer:
            return match.start()
        offset -= longer
    return offset
