"""`proto_file`: the definitions of Protobuf records, read as text.

The texts become part of the body, so plans show them, states hold them, and runners read records by what was
reviewed. protoc compiles them in validation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mzplan.config.checks.query_files import as_block
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Location, SourceFile
from mzplan.config.yaml.parser import read_text
from mzplan.model.words import joined
from mzplan.schema.validators import is_valid

FILE, TEXTS = "proto_file", "proto"
_FORMAT = "format"  # the property of a source that has both
_SUFFIX = ".proto"
_MAX = 256 * 1024  # characters of a file and its imports
_WELL_KNOWN = "google/protobuf/"  # protoc has these files
_MAX_FILES = 100
_TOKEN = re.compile(
    r"""//[^\n]*|/\*(?:.*?\*/|.*\Z)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[A-Za-z_][A-Za-z0-9_]*""",
    re.DOTALL,
)


class ProtoFiles:
    """The Protobuf definitions of a project. Each file is read once."""

    def __init__(self, directory: str, findings: Findings):
        self._directory, self._findings = directory, findings
        self._read: dict[str, str | None] = {}  # by path relative to the project

    def fill_in(self, resources: Iterable[Declaration]) -> None:
        """Set `proto` of each format that names a file.

        A resource whose definition can't be known isn't checked further.
        """
        for resource in resources:
            format_ = resource.body.get(_FORMAT) if resource.type is not None else None
            if not isinstance(format_, dict):
                continue
            if TEXTS in format_:
                place = resource.location((_FORMAT, TEXTS))
                self._findings.add("MZ004.sets", place, label=resource.label, name=TEXTS, property=FILE)
                resource.type = None
            elif FILE in format_ and is_valid(_FORMAT, format_):  # otherwise the schema reports it
                texts = self._texts(format_[FILE], resource.location((_FORMAT, FILE)), resource.label)
                if texts is None:
                    resource.type = None
                else:
                    resource.body = {**resource.body, _FORMAT: {**format_, TEXTS: texts}}

    def _texts(self, path: str, named: Location, label: str) -> dict[str, str] | None:
        """Return a file and all its imports, by the names in imports; None if that was reported."""
        file = PurePosixPath(os.path.normpath(path).replace(os.sep, "/"))
        missing: list[tuple[int, str, str]] = []  # in each folder: the files that are there, then an import
        for folder in file.parents:
            texts: dict[str, str] = {}
            lacking = self._collect(folder, str(file.relative_to(folder)), named, texts)
            if lacking is None:
                return texts
            if not lacking[0]:
                return None  # reported
            missing.append((len(texts), *lacking))
        _, name, importer = max(missing, key=lambda found: found[0])
        folders = joined((f"{folder}/" for folder in file.parents), "or")
        self._findings.add("MZ415.import", named, label=label, file=importer, name=name, folders=folders)
        return None

    def _collect(
        self, folder: PurePosixPath, name: str, named: Location, texts: dict[str, str]
    ) -> tuple[str, str] | None:
        """Add a file below a folder, and its imports, to the texts.

        Return the name of an import that isn't there, and the file that imports it; ("", "") if a file can't
        be used, which is reported; None if all are there."""
        waiting = [(name, name)]
        while waiting:
            name, importer = waiting.pop()
            if name in texts:
                continue
            path = os.path.normpath(folder / name)
            # protoc refuses names with `.` or `..` in imports.
            if texts and (os.path.normpath(name) != name or name.startswith(("/", ".."))):
                return name, importer
            if texts and not self._is_there(path):
                return name, importer
            text = self._text(path, named)
            if text is None:
                return "", ""
            texts[name] = text
            size = sum(map(len, texts.values()))
            if size > _MAX or len(texts) > _MAX_FILES:
                self._findings.add("MZ415.too-long", named, file=path, size=size, most=_MAX, files=_MAX_FILES)
                return "", ""
            waiting += [(other, name) for other in _imports(text)]
        return None

    def _is_there(self, path: str) -> bool:
        try:
            return Path(self._directory, path).is_file()
        except OSError:  # a name that no file can have
            return False

    def _text(self, path: str, named: Location) -> str | None:
        """Return a file's text; None if it can't be read, which is reported."""
        if path not in self._read:
            file = SourceFile.within(self._directory, str(Path(self._directory, path)))
            text = read_text(replace(file, suffix=_SUFFIX), self._findings, named)
            self._read[path] = as_block(text) if text is not None else None
        return self._read[path]


def _imports(text: str) -> Iterator[str]:
    """Yield the names in a file's imports, except those that protoc has."""
    tokens = [match[0] for match in _TOKEN.finditer(text) if not match[0].startswith("/")]
    for index, token in enumerate(tokens):
        if token != "import":
            continue
        rest = tokens[index + 1 : index + 3]
        name = next((word for word in rest if word not in ("public", "weak")), "")
        if name[:1] in ('"', "'") and not name[1:].startswith(_WELL_KNOWN):
            yield name[1:-1]
