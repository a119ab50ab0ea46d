"""The file format of the journal of an `mzplan alter` edit in progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.stored import SPARSE

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedFile:
    """A file of an edit.

    `path`: relative to the project, with links resolved.
    `before`, `after_digest`: the digests of the old and the new content.
    """

    path: str
    before: str
    after: str = field(repr=False)
    after_digest: str

    @property
    def content(self) -> bytes:
        return self.after.encode()

    @property
    def is_whole(self) -> bool:
        return self.after != "" and digest_of(self.content) == self.after_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal(EditedFile):
    """An edit in progress: its first file, and the other files in `also`.

    `statement`: as given; it was checked to hold no secret.
    `serial`, `digest`: of the state that is committed with the edit.
    `environment`: the environment of the store; "" in a project without environments.
    """

    statement: str
    serial: int
    digest: str
    also: tuple[EditedFile, ...] = field(default=(), metadata=SPARSE)
    environment: str = field(default="", metadata=SPARSE)

    @property
    def files(self) -> tuple[EditedFile, ...]:
        return (self, *self.also)

    def encode(self) -> bytes:
        fields = encode(self)
        fields = {"format_version": FORMAT_VERSION, "statement": fields.pop("statement"), **fields}
        return json.dumps({**fields, "checksum": _checksum(fields)}, indent=2).encode()

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """Decode a journal. Raises ValueError if it's invalid or damaged, or has another format version."""
        content = parse_json(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its checksum doesn't match its content")
        if content.get("format_version") != FORMAT_VERSION:
            raise ValueError("another version of mzplan wrote it")
        journal = decode(cls, content)
        if not all(file.is_whole for file in journal.files):
            raise ValueError("the new content doesn't match its digest")
        return journal


def edited_file(path: str, before: bytes, after: bytes) -> EditedFile:
    """Return a file of an edit. Raises ValueError if the new content isn't UTF-8."""
    return EditedFile(
        path=path, before=digest_of(before), after=after.decode(), after_digest=digest_of(after)
    )


def _checksum(fields: Mapping[str, object]) -> str:
    return digest_of(json.dumps(fields, sort_keys=True).encode())


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
