"""Finds and reads a project's files, without blocking and within limits."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mzplan.config.findings import Findings, SourceFile
from mzplan.model.address import KINDS, Kind
from mzplan.model.diagnostics import Diagnostic, MzplanError

PROJECT_FILE = "mzplan.yaml"
# The keys under which files declare resources.
SECTIONS: dict[str, Kind] = {f"{kind}s": kind for kind in KINDS}
SECTION_OF = {kind: section for section, kind in SECTIONS.items()}
SUFFIXES = (".yaml", ".yml")
VARIABLE_SUFFIXES = (".vars.yaml", ".vars.yml")
TESTS_FOLDER = "tests"  # in the project's folder: `mzplan test` reads it
ROW_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", *SUFFIXES)
_INTERNAL = frozenset((".git", ".mzplan"))
_DECLARES = re.compile(
    rb"^[\"']?(connections|sources|views|sinks)[\"']?[ \t]*:[ \t]*(?:$|[#{&\r])", re.MULTILINE
)
MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
MAX_FILES = 20_000
MAX_ENTRIES = 500_000  # files and folders: a link into a large tree must not take forever
MAX_FOLDER_DEPTH = 64


def project_file(directory: str) -> SourceFile:
    return SourceFile(str(Path(directory) / PROJECT_FILE), PROJECT_FILE, root=directory)


def find_files(
    directory: str,
    excluded: list[str],
    findings: Findings,
    variable_files: Iterable[str | os.PathLike[str]] = (),
) -> list[SourceFile]:
    """Return every *.yaml and *.yml file below the folder, sorted by path.

    Left out are:
    - mzplan.yaml, and files of variables: *.vars.yaml, and `variable_files`
    - the folder of tests
    - hidden files and folders
    - the `excluded` folders (state, warehouse)
    - folders with an mzplan.yaml of their own, which are other projects

    A file counts once, even if links lead to it. Links to folders of the project aren't followed, because
    these folders are visited anyway. Links that lead out of the project are errors: otherwise the author of a
    repository could make mzplan show files of the person who runs it.
    """
    walk = _Walk(directory, {os.path.realpath(path) for path in excluded}, findings)
    paths = list(walk.files(directory, 0))
    if walk.over:
        findings.add("MZ007.project-folder", over=walk.over)
    named = {os.path.realpath(path) for path in variable_files}
    paths = [path for path in paths if not _belongs_to_tests(path, findings, directory)]
    paths = [path for path in paths if not _holds_variables(path, named, findings, directory)]
    real = [path for path in paths if not Path(path).is_symlink()]
    seen = {os.path.realpath(path) for path in real}
    for path in sorted(set(paths) - set(real)):
        if os.path.realpath(path) not in seen:
            seen.add(os.path.realpath(path))
            real.append(path)
    return sorted((SourceFile.within(directory, path) for path in real), key=lambda file: file.path)


def _holds_variables(path: str, named: set[str], findings: Findings, directory: str) -> bool:
    """Return whether a file is a file of variables, and report one that declares resources."""
    if named and os.path.realpath(path) in named:
        return True
    if not path.endswith(VARIABLE_SUFFIXES):
        return False
    file = SourceFile.within(directory, path)
    if declared := _declared_section(file):
        findings.add("MZ015.file-variables", path=file.path, declared=declared)
    return True


def _belongs_to_tests(path: str, findings: Findings, directory: str) -> bool:
    """Return whether a file is in the folder of tests, and report one that declares resources."""
    file = SourceFile.within(directory, path)
    if not file.path.startswith(f"{TESTS_FOLDER}/"):
        return False
    if declared := _declared_section(file):
        findings.add("MZ350.declares", path=file.path, declared=declared)
    return True


def _declared_section(file: SourceFile) -> str:
    """Return the section of a file that declares resources, although mzplan reads none from it; "" for none.

    Without an error, the next plan would delete these resources.
    """
    try:
        declares = _DECLARES.search(read_bytes(file))
    except ReadError:
        return ""  # files for other environments may be unreadable for this user
    return declares[1].decode() if declares else ""


def test_files(directory: str, findings: Findings) -> list[SourceFile]:
    """Return the YAML files directly in the folder of tests, sorted by name; none without the folder."""
    folder = Path(directory) / TESTS_FOLDER
    if not os.path.lexists(folder):
        return []
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(directory)):
        findings.add("MZ001.outside-link", action="read the folder", path=TESTS_FOLDER)
        return []
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as failure:
        findings.report(_cause(failure, "list the folder", TESTS_FOLDER))
        return []
    return [
        SourceFile.within(directory, str(folder / name))
        for name in names
        if name.endswith(SUFFIXES) and not name.startswith(".")
    ]


def rows_file(test_file: SourceFile, path: str) -> SourceFile:
    """Return a file of rows that a test names by its path from the folder of tests."""
    folder = Path(test_file.full_path).parent
    return replace(SourceFile.within(test_file.root, str(folder / path)), suffixes=ROW_SUFFIXES)


class _Walk:
    def __init__(self, directory: str, excluded: set[str], findings: Findings):
        self.directory = directory
        self.findings = findings
        self.root = os.path.realpath(directory)
        self.excluded = excluded - {self.root}
        self.visited: set[str] = set()
        self.entries = 0
        self.count = 0
        self.over = ""

    def files(self, folder: str, depth: int) -> Iterator[str]:
        real = os.path.realpath(folder)
        if real in self.visited or real in self.excluded or self.over:
            return
        self.visited.add(real)
        if depth > MAX_FOLDER_DEPTH:
            self.over = f"{MAX_FOLDER_DEPTH} levels of folders"
            return
        entries = self._entries(folder)
        if depth > 0 and any(entry.name == PROJECT_FILE for entry in entries):
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.endswith(SUFFIXES):
                # Also folders with such a name: reading one reports the error.
                if not (depth == 0 and entry.name == PROJECT_FILE):
                    self.count += 1
                    yield entry.path
            elif self._is_folder(entry):
                yield from self.files(entry.path, depth + 1)
        if self.count > MAX_FILES:
            self.over = f"{MAX_FILES} YAML files"

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as failure:
            # Report it: otherwise the next plan would delete the resources that the folder declares.
            shown = SourceFile.within(self.directory, folder).path
            self._report(_cause(failure, "list the folder", shown))
            return []
        self.entries += len(entries)
        if self.entries > MAX_ENTRIES:
            self.over = f"{MAX_ENTRIES} files and folders"
        return entries

    def _report(self, diagnostic: Diagnostic) -> None:
        self.findings.is_incomplete = True
        self.findings.report(diagnostic)

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            if not entry.is_dir():
                return False
            if not entry.is_symlink():
                return True
        except OSError:
            return False
        target = os.path.realpath(entry.path)
        inside = target == self.root or target.startswith(self.root.rstrip(os.sep) + os.sep)
        around = self.root.startswith(target.rstrip(os.sep) + os.sep)
        if not inside and not around and target not in self.excluded:
            shown = SourceFile.within(self.directory, entry.path).path
            self._report(Diagnostic.of("MZ001.outside-link", action="read the folder", path=shown))
        return False


def read_bytes(file: SourceFile) -> bytes:
    """Return the file's content. Raises ReadError if it can't be read."""
    if file.content is not None:
        return file.content
    if file.root and (file.suffix or file.suffixes or Path(file.full_path).is_symlink()):
        _check_link(file)
    try:
        # O_NONBLOCK, because opening a pipe without a writer would wait forever.
        descriptor = os.open(file.full_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as failure:
        raise ReadError(_cause(failure, "read", file.path)) from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise _read_error("MZ001.folder", file)
        if not stat.S_ISREG(status.st_mode):
            raise _read_error("MZ001.pipe", file)
        if status.st_size > MAX_FILE_BYTES:
            raise _too_large(file, status.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as failure:
        raise ReadError(_cause(failure, "read", file.path)) from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(file, len(data))
    return data


def is_allowed(file: SourceFile) -> bool:
    """Return whether a file isn't a link, or is a link that mzplan may follow."""
    if not Path(file.full_path).is_symlink():
        return True
    try:
        _check_link(file)
    except ReadError:
        return False
    return True


def _check_link(file: SourceFile) -> None:
    """Raise ReadError if a link or a path leads out of the project, or to a file that mzplan wouldn't read.

    Such a file may belong to git or mzplan, or may contain secrets because git ignores it.
    """
    real, project = Path(os.path.realpath(file.full_path)), Path(os.path.realpath(file.root))
    is_inside = real.is_relative_to(project)
    if not is_inside or any(part.casefold() in _INTERNAL for part in real.relative_to(project).parts):
        raise _read_error(
            "MZ001.text-outside"
            if file.suffix
            else "MZ001.rows-outside"
            if file.suffixes
            else "MZ001.outside-link",
            file,
        )
    if real.name.startswith(".") or not real.name.endswith(file.suffix or file.suffixes or SUFFIXES):
        raise _read_error(
            "MZ001.other-text" if file.suffix else "MZ001.not-rows" if file.suffixes else "MZ001.other-link",
            file,
            suffix=file.suffix,
        )


def _too_large(file: SourceFile, size: int) -> ReadError:
    mib = 1024 * 1024
    return _read_error("MZ007.file", file, size=size / mib, most=MAX_FILE_BYTES // mib)


class ReadError(MzplanError):
    """A file can't be read."""


def _read_error(message: str, file: SourceFile, **values: Any) -> ReadError:
    return ReadError(Diagnostic.of(message, action="read", path=file.path, **values))


def _cause(failure: OSError | ValueError, action: str, path: str) -> Diagnostic:
    match failure:
        case FileNotFoundError():
            return Diagnostic.of("MZ001.missing", action=action, path=path)
        case PermissionError():
            return Diagnostic.of("MZ001.denied", action=action, path=path)
        case OSError() if failure.strerror:
            return Diagnostic.of("MZ001.system", action=action, path=path, reason=failure.strerror)
        case _:
            return Diagnostic.of("MZ001.bad-name", action=action, path=path)
