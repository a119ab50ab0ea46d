"""An object store in this process, whose n-th request fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import obstore
from obstore import exceptions
from obstore.store import MemoryStore

from mzplan.store.backends.objects import ObjectStoreBackend

WRITES = ("put", "delete")


@dataclass
class FailingObjects:
    """Request number `at` (from 0) fails; -1: none. `late`: after it was done. `answer`: what the library
    makes of it: `refused` (no right), `error` (the server's), `cut` (no answer), `asked again` (it was done,
    and the second time its condition did not hold). `lasting`: all after it have no answer, undone.
    `fails`: the request itself, its first one, in place of its number."""

    at: int = -1
    late: bool = False
    answer: str = "cut"
    lasting: bool = False
    fails: str = ""
    requests: list[str] = field(default_factory=list)
    store: MemoryStore = field(default_factory=MemoryStore)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """While it lasts, every object store is this one."""
        with contextlib.ExitStack() as patched:
            patched.enter_context(mock.patch.object(ObjectStoreBackend, "_open", lambda _: self.store))
            for name in ("get", "head", "list", *WRITES):
                patched.enter_context(mock.patch.object(obstore, name, self._asked(name)))
            yield

    def _asked(self, name: str) -> Callable[..., Any]:
        real = getattr(obstore, name)

        def asked(store: Any, key: str, *more: Any, **options: Any) -> Any:
            number = len(self.requests)
            self.requests.append(f"{name} {key}")
            if self.at < 0 and self.requests[-1] == self.fails:
                self.at = number
            if self.at < 0 or number < self.at or (number > self.at and not self.lasting):
                return real(store, key, *more, **options)
            if number == self.at and self.late:
                real(store, key, *more, **options)
            raise self._problem(name, first=number == self.at, conditional=options.get("mode"))

        return asked

    def _problem(self, name: str, first: bool, conditional: Any) -> Exception:
        if not first or self.answer == "cut" or (self.answer == "asked again" and name != "put"):
            return exceptions.GenericError("HTTP error: error sending request")
        if self.answer == "refused":
            return exceptions.PermissionDeniedError("status code: 403 Forbidden")
        if self.answer == "error" or conditional == "overwrite":
            return exceptions.GenericError("status code: 500 Internal Server Error")
        exists = conditional == "create"
        return (exceptions.AlreadyExistsError if exists else exceptions.PreconditionError)("status code: 412")
