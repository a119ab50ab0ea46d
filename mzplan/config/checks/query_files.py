"""`query_file`: a view's SQL in a file of its own, read as if it stood after `query: |`.

What is checked, planned and committed is the text: no state, plan or runner knows of the file. Where the text
is written, `Declared.location` says, so that mistakes of it are shown there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mzplan.config.checks.schema_check import BodyCheck
from mzplan.config.declared import Declared, Document
from mzplan.config.findings import Findings, Location, SourceFile
from mzplan.config.references import EACH, as_text, fill
from mzplan.config.variables import VARIABLE, Variables
from mzplan.config.yaml.parser import read_text
from mzplan.schema.editor import QUERY_FILE
from mzplan.schema.kinds import resource_kind
from mzplan.schema.validators import is_valid


def as_block(text: str) -> str:
    """A file's text as YAML reads it after `|`: its line breaks are alike, and one is at the end."""
    return re.sub("\r\n?", "\n", text).rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class _Sql:
    """What a file holds: as it is written, and with its variables filled in (None: they can't be)."""

    written: str
    filled: str | None


class QueryFiles:
    """Those of a project. Each is read once, and its variables are filled in, as in a YAML file."""

    def __init__(self, directory: str, variables: Variables, findings: Findings):
        self._directory, self._variables, self._findings = directory, variables, findings
        self._read: dict[str, _Sql] = {}  # by path

    def fill_in(self, resources: Iterable[Declared]) -> None:
        """Write the SQL out as the query of each resource that names a file. Of one whose SQL can't be known
        nothing more is judged."""
        for resource in resources:
            if (
                resource.type is None
                or not isinstance(resource.body, dict)
                or QUERY_FILE not in resource.body
            ):
                continue
            property_ = resource_kind(resource.address.kind, resource.type).query_property
            if property_ is not None and not self._write_out(resource, property_):
                resource.type = None

    def _write_out(self, resource: Declared, property_: str) -> bool:
        value = {QUERY_FILE: resource.body[QUERY_FILE]}
        at = resource.location((QUERY_FILE,))
        if property_ in resource.body:
            self._findings.add(
                "MZ020",
                f"Both `{property_}` and `{QUERY_FILE}`",
                f"{resource.label}: its SQL is written in one of them.",
                "remove one of them.",
                location=resource.location((QUERY_FILE,), at_key=True),
            )
            return False
        if not is_valid(QUERY_FILE, value):
            BodyCheck(self._findings, resource.location, resource.label).report(QUERY_FILE, value)
            return False
        file = SourceFile.within(self._directory, str(Path(self._directory, value[QUERY_FILE])))
        file = replace(file, is_sql=True)
        sql = self._sql(file, property_, at)
        if sql is None or sql.filled is None:
            return False
        place = partial(_as_written, sql.written, self._variables.values)
        resource.files[property_] = replace(at, file=file, path=(property_,)), place
        resource.body = {property_: sql.filled, **resource.body}
        del resource.body[QUERY_FILE]
        return True

    def _sql(self, file: SourceFile, property_: str, named: Location) -> _Sql | None:
        """None where it can't be read, which is reported where it is `named`."""
        if file.full_path not in self._read:
            text = read_text(file, self._findings, named)
            if text is None:
                return None
            written = as_block(text)
            self._read[file.full_path] = _Sql(written, self._filled(file, property_, written))
        return self._read[file.full_path]

    def _filled(self, file: SourceFile, property_: str, written: str) -> str | None:
        at = Location(file, (property_,))
        if EACH in written:
            self._findings.add(
                "MZ251",
                f"{EACH}…}} has no meaning here",
                f"{file.path} is one text for all views that name it.",
                f'name a file for each key (`{QUERY_FILE}: "sql/${{each.key}}.sql"`), or write the SQL as '
                f"`{property_}`.",
                location=replace(at, offset=written.index(EACH), length=len(EACH)),
            )
            return None
        body = {property_: written}
        fill(
            Document(file, body, [(body, property_)] if "${" in written else []),
            self._variables,
            self._findings,
        )
        return None if (file.full_path, at.path) in self._findings.unusable else body[property_]


def _as_written(written: str, values: Mapping[str, Any], offset: int) -> int:
    """Where it is written what stands at an offset of the text with its variables filled in."""
    for match in VARIABLE.finditer(written):
        longer = len(as_text(values[match[1]])) - len(match[0])
        if offset < match.start():
            break
        if offset < match.end() + longer:
            return match.start()
        offset -= longer
    return offset
