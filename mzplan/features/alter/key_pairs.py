"""Key pairs that ROTATE KEYS creates: project files that connections use as secrets.

    keys/<connection>-<n>        a private key, mode 0600
    keys/<connection>-<n>.pub    its public key, for the server
    keys/.gitignore              keeps private keys out of git

A key is written before the edit that names it, so a crash leaves at most an unused file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import Body, PropertyEdit
from mzplan.secrets.references import Secrets

if TYPE_CHECKING:
    from mzplan.schema.kinds import ResourceKind

FOLDER = "keys"
_REFERENCE = re.compile(r"\$\{file:(keys/[a-z0-9_]+-\d+)\}\Z")
_IGNORE = "# Private keys stay here.\n*\n!*.pub\n!.gitignore\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """The public half of a connection's key. `text`: None if the private key can't be read here."""

    property: str
    reference: str
    text: str | None


def next_keys(directory: str, connection: str, body: Body) -> Iterator[str]:
    """Yield unused names for new keys of a connection (`keys/bastion-3`, …).

    Skips the names of existing files, and names in the body, whose files may be on another machine.
    """
    names = [path.stem for path in Path(directory, FOLDER).glob(f"{connection}-*")]
    names += [match[1] for value in body.values() if (match := _REFERENCE.match(str(value)))]
    numbers = [name.rpartition("-")[2] for name in names]
    number = max((int(number) for number in numbers if number.isdecimal()), default=0)
    while True:
        number += 1
        yield f"{FOLDER}/{connection}-{number}"


def key_reference(name: str) -> str:
    """Return `${file:keys/bastion-3}` for `keys/bastion-3`."""
    return f"${{file:{name}}}"


class NewKeys:
    """The key files that a statement creates. The context removes files that aren't kept."""

    def __init__(self, directory: str):
        self._folder = GuardedFolder(Path(directory))
        self._made: list[str] = []

    def make(self, edits: tuple[PropertyEdit, ...]) -> None:
        """Write a new pair for each edit that names a missing one. Raises MzplanError MZ035."""
        for edit in edits:
            match = _REFERENCE.match(str(edit.value))
            if match is not None and not os.path.lexists(self._folder.path(match[1])):
                self._make(match[1])

    def __enter__(self) -> NewKeys:
        return self

    def __exit__(self, *problem: object) -> None:
        self._discard()

    def keep(self) -> None:
        """Keep the files: from now on, files or a commit may refer to them."""
        self._made.clear()

    def _discard(self) -> None:
        for name in self._made:
            with contextlib.suppress(OSError):
                self._folder.delete(name)
        self._made.clear()

    def _make(self, name: str) -> None:
        import asyncssh

        key = asyncssh.generate_private_key("ssh-ed25519", comment=f"mzplan {name.rpartition('/')[2]}")
        try:
            self._folder.make_private(FOLDER)
            with contextlib.suppress(FileExistsError):
                self._folder.create(f"{FOLDER}/.gitignore", _IGNORE.encode())
            for file, half, mode in (
                (name, key.export_private_key(), 0o600),
                (f"{name}.pub", key.export_public_key(), 0o644),
            ):
                self._folder.create(file, half, mode=mode)
                self._made.append(file)
        except OSError as problem:
            self._discard()
            raise error(
                "MZ035.new-key", strerror=problem.strerror or problem, path=self._folder.path(name)
            ) from None


def public_keys(body: Body, kind: ResourceKind, directory: str) -> tuple[PublicKey, ...]:
    """Return the public keys of a connection with rotatable keys, the primary first."""
    secrets = Secrets(directory)
    return tuple(
        PublicKey(property=name, reference=body[name], text=_public(secrets, body[name]))
        for name in kind.rotates_keys or ()
        if name in body
    )


def _public(secrets: Secrets, reference: str) -> str | None:
    import asyncssh

    with contextlib.suppress(MzplanError, asyncssh.KeyImportError, ValueError):
        key = asyncssh.import_private_key(secrets.resolve(reference))
        return key.export_public_key().decode().strip()
    return None
