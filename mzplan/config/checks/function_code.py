"""The modules of functions in the project's folder: read as text, and never imported.

The text becomes part of the body, so plans show it, states hold it, and runners run what was committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mzplan.config.checks.query_files import as_block
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Location, SourceFile
from mzplan.config.yaml.parser import read_text, span_at
from mzplan.model.words import did_you_mean, shown
from mzplan.schema.kinds import resource_kind
from mzplan.schema.user_functions import CODE, MAX_CODE, SUFFIX, FunctionName, function_of, names_in
from mzplan.schema.validators import is_valid


class FunctionCode:
    """The modules of a project's functions. Each is read and parsed once."""

    def __init__(self, directory: str, findings: Findings):
        self._directory, self._findings = directory, findings
        self._read: dict[str, tuple[str, set[str] | None] | None] = {}  # by path: the text and its names

    def fill_in(self, resources: Iterable[Declaration]) -> None:
        """Set `code` of each resource whose function is in a file.

        A resource whose code can't be known isn't checked further.
        """
        for resource in resources:
            if resource.type is None:
                continue
            property_ = resource_kind(resource.address.kind, resource.type).function_property
            if property_ is None:
                continue
            if CODE in resource.body:
                self._findings.add(
                    "MZ004.sets",
                    resource.location((CODE,)),
                    label=resource.label,
                    name=CODE,
                    property=property_,
                )
                resource.body = {name: value for name, value in resource.body.items() if name != CODE}
            function = function_of(resource.address.kind, resource.type, resource.body)
            if function is not None and function.is_in_project and not self._write_out(resource, function):
                resource.type = None

    def _write_out(self, resource: Declaration, function: FunctionName) -> bool:
        property_ = str(resource_kind(resource.address.kind, str(resource.type)).function_property)
        named = resource.location((property_,))
        if not is_valid("user_function", {property_: str(function)}):
            return True  # reported by the schema
        text = self.text_of(function, resource.label, named)
        if text is None:
            return False
        resource.derived[CODE] = ((property_,), 0)
        resource.body = {**resource.body, CODE: text}
        return True

    def text_of(self, function: FunctionName, label: str, named: Location) -> str | None:
        """Return the text of a function's module; None if it can't be used, which is reported.

        `label`, `named`: the resource that names the function, for messages, and the place of the name.
        """
        file = SourceFile.within(self._directory, str(Path(self._directory, function.module)))
        module = self._module(replace(file, suffix=SUFFIX), named)
        if module is None:
            return None
        text, names = module
        if names is not None and function.name not in names:
            self._findings.add(
                "MZ360.no-function",
                named,
                file=file.path,
                name=function.name,
                label=label,
                near=did_you_mean(function.name, sorted(names), shown),
            )
            return None
        return text

    def _module(self, file: SourceFile, named: Location) -> tuple[str, set[str] | None] | None:
        """Return the text of a file and the names in it; None if it can't be used, which is reported."""
        if file.full_path not in self._read:
            self._read[file.full_path] = self._parsed(file, named)
        return self._read[file.full_path]

    def _parsed(self, file: SourceFile, named: Location) -> tuple[str, set[str] | None] | None:
        text = read_text(file, self._findings, named)
        if text is None:
            return None
        text = as_block(text)
        if len(text) > MAX_CODE:
            self._findings.add("MZ360.too-long", named, file=file.path, size=len(text), most=MAX_CODE)
            return None
        try:
            return text, names_in(text)
        except SyntaxError as problem:
            lines = text.splitlines(keepends=True)[: max((problem.lineno or 1) - 1, 0)]
            column = max((problem.offset or 1) - 1, 0)
            span = span_at("".join(lines) + " " * column)
            self._findings.add("MZ360.syntax", Location(file), span=span, reason=problem.msg)
            return None
