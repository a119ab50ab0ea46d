"""Protobuf definitions, compiled by protoc in a process of its own.

The texts may come from a registry, which is not trusted. protoc reads them in a temporary folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.decoder import SchemaError
from mzplan.model.words import did_you_mean, first_names, shown

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor

OWN = "_mzplan_schema.proto"
"""The name of the schema that a registry keeps without a name."""
_NAME = re.compile(r"(?!.*(?:^|/)\.\.?(?:/|$))[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*\.proto")
_MAX_NAME = 200  # characters
_SECONDS = 20.0
_MAX_NAMES = 8  # messages to list
Texts = tuple[tuple[str, str], ...]
"""Files by the names under which others import them. The last one has the message."""


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

    def name_at(self, path: Sequence[int]) -> str:
        """Return the full name of a message, or "" if there is none.

        `path`: its index in the file or, after others, in the message around it. As in Confluent's
        serializers, the entries of maps aren't counted."""
        messages: Sequence[Descriptor] = list(self.file.message_types_by_name.values())
        name = ""
        for index in path:
            if not 0 <= index < len(messages):
                return ""
            name, messages = messages[index].full_name, _nested(messages[index])
        return name

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
    texts, path = format_["proto"], format_["proto_file"]
    own = max((name for name in texts if path == name or path.endswith(f"/{name}")), key=len)
    return (*((name, text) for name, text in texts.items() if name != own), (own, texts[own]))


@lru_cache(maxsize=64)
def definitions(texts: Texts) -> Definitions:
    """Return the messages of the last text. Raises SchemaError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(_compiled(texts)).file:
            pool.Add(file)
        return Definitions(pool.FindFileByName(texts[-1][0]))
    except (TypeError, KeyError) as problem:  # what protoc accepts, and this version of the library doesn't
        raise SchemaError(f"it can't be used: {problem}") from None


def _compiled(texts: Texts) -> bytes:
    """Return the files, and what they import, as a FileDescriptorSet. Raises SchemaError."""
    for name, _ in texts:
        if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
            raise SchemaError(f"{shown(name)} can't be the name of a file")
    with (
        as_file(files("grpc_tools").joinpath("_proto")) as well_known,
        tempfile.TemporaryDirectory(prefix="mzplan-") as folder,
    ):
        for name, text in texts:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = Path(folder, "result")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}"]
        options = ["--include_imports", f"--descriptor_set_out={result}", texts[-1][0]]
        try:
            done = subprocess.run([*command, *options], capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise SchemaError(f"protoc didn't read it within {_SECONDS:.0f} s") from None
        if done.returncode:
            raise SchemaError(_reason(done.stderr.decode(errors="replace"), folder))
        return result.read_bytes()


def _reason(printed: str, folder: str) -> str:
    """Return protoc's first error, without its place if the text has no name."""
    lines = [line.replace(f"{folder}/", "") for line in printed.splitlines() if ": warning: " not in line]
    first = next((line for line in lines if ".proto:" in line), lines[0] if lines else "protoc failed")
    return f"it is not valid Protobuf: {first.replace(f'{OWN}:', 'line ', 1).rstrip('.')}"
