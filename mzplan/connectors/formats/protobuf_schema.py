"""Protobuf definitions, compiled by protoc in a process of its own.

The texts may come from a registry or a checkout, which aren't trusted. So protoc runs in a temporary folder,
without the values of secrets.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.decoder import SchemaError
from mzplan.connectors.formats.protobuf_bundled import BUNDLED
from mzplan.model.words import did_you_mean, first_names, shown

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

OWN = "_mzplan_schema.proto"
"""The name of the schema that a registry keeps without a name."""
_NAME = re.compile(r"(?!.*(?:^|/)\.\.?(?:/|$))[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*\.proto")
_PROTOCS_OWN = "google/protobuf/"  # the folder of the files that come with protoc
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR")  # variables for protoc
_MAX_NAME = 200  # characters
_SECONDS = 20.0
_MAX_NAMES = 8  # messages to list
Texts = tuple[tuple[str, str], ...]
"""Files by the names under which others import them. The last one has the message."""


class ProtocError(RuntimeError):
    """Raised if protoc fails for another reason than the definition. The message is for people."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The messages of a file."""

    file: FileDescriptor

    def message(self, name: str) -> Descriptor:
        """Return the message of this full name; the file's first message for "". Raises SchemaError."""
        messages = {message.full_name: message for message in self._messages()}
        if not messages:
            raise SchemaError("it defines no message")
        if not name:
            return next(iter(messages.values()))
        if name not in messages:
            near = did_you_mean(name, sorted(messages), shown)
            listed = f"it has {first_names(list(messages), _MAX_NAMES)}"
            raise SchemaError(f"it has no message {name}: {near.rstrip() or listed}")
        return messages[name]

    def names_at(self, path: Sequence[int]) -> set[str]:
        """Return the full names of the messages that may be meant; empty if there is none.

        `path`: a message's index in the file or, after others, in the message around it. Some serializers
        count the entries of maps as messages (Go, Python), some don't (Java)."""
        found = (self._at(path, lambda message: message.nested_types), self._at(path, _nested))
        return {message.full_name for message in found if message and not message.GetOptions().map_entry}

    def _at(
        self, path: Sequence[int], nested: Callable[[Descriptor], Sequence[Descriptor]]
    ) -> Descriptor | None:
        messages: Sequence[Descriptor] = list(self.file.message_types_by_name.values())
        message = None
        for index in path:
            if not 0 <= index < len(messages):
                return None
            message = messages[index]
            messages = nested(message)
        return message

    def _messages(self) -> Iterator[Descriptor]:
        below = list(self.file.message_types_by_name.values())
        while below:
            message = below.pop(0)
            yield message
            below.extend(_nested(message))


def _nested(message: Descriptor) -> list[Descriptor]:
    """Return the messages in a message, without the entries of its maps."""
    return [inner for inner in message.nested_types if not inner.GetOptions().map_entry]


def texts_of(schemas: Mapping[str, str]) -> Texts:
    """Return a registry's texts, of which the last has no name."""
    return tuple((name or OWN, text) for name, text in schemas.items())


def texts_of_project(format_: Mapping[str, Any]) -> Texts:
    """Return the texts of a format's `proto_file`, as committed."""
    texts, path = format_["proto"], posixpath.normpath(format_["proto_file"])
    own = max((name for name in texts if path == name or path.endswith(f"/{name}")), key=len)
    return (*((name, text) for name, text in texts.items() if name != own), (own, texts[own]))


@lru_cache(maxsize=64)
def definitions(texts: Texts) -> Definitions:
    """Return the messages of the last text. Raises SchemaError and ProtocError."""
    compiled = _compiled(texts)  # imports the package that installs the others
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(compiled).file:
            pool.Add(file)
        return Definitions(pool.FindFileByName(texts[-1][0]))
    except (TypeError, KeyError) as problem:  # what protoc accepts, and this version of the library doesn't
        raise SchemaError(f"it can't be used: {problem}") from None


def _compiled(texts: Texts) -> bytes:
    """Return the files, and what they import, as a FileDescriptorSet. Raises SchemaError and ProtocError."""
    own = texts[-1][0]
    given = {name: text for name, text in texts if not name.startswith(_PROTOCS_OWN)}
    contents = _checked({**BUNDLED, **given})
    with (
        as_file(files("grpc_tools").joinpath("_proto")) as well_known,
        tempfile.TemporaryDirectory(prefix="mzplan-") as folder,
    ):
        for name, content in contents.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        result = Path(folder, "result")
        # -P: Python imports no module from the current folder.
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}"]
        command += ["--include_imports", f"--descriptor_set_out={result}", own]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_SECONDS, check=False, cwd=folder, env=environment
            )
        except subprocess.TimeoutExpired:
            raise ProtocError(f"protoc didn't read the definition within {_SECONDS:.0f} s") from None
        if done.returncode or not result.exists():
            raise _failure(done.returncode, done.stderr.decode(errors="replace"), folder)
        return result.read_bytes()


def _checked(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files' bytes. Raises SchemaError for names and texts that no file can have."""
    for name in texts:
        if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
            raise SchemaError(f"{shown(name)} can't be the name of a file")
        if any(other.startswith(f"{name}/") for other in texts):
            raise SchemaError(f"{shown(name)} is the name of a file and of a folder")
    try:
        return {name: text.encode() for name, text in texts.items()}
    except UnicodeEncodeError:
        raise SchemaError("it is not valid Unicode") from None


def _failure(code: int, printed: str, folder: str) -> Exception:
    """Return protoc's first error, without its place if the text has no name."""
    lines = [line.replace(f"{folder}/", "") for line in printed.splitlines() if ": warning: " not in line]
    lines = [line for line in lines if ".proto:" in line]
    if code < 0 or not lines:
        return ProtocError(f"protoc ended with {code}: {' '.join(printed.split())[-_MAX_NAME:]}")
    return SchemaError(f"it is not valid Protobuf: {lines[0].replace(f'{OWN}:', 'line ', 1).rstrip('.')}")
