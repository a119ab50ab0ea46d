"""The schemas of records, for tasks: fetched by id, and kept as long as the Python process lives.

This module is sent to the executors whole (see task_code); with a tunnel, they need asyncssh as well.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from mzplan.connectors.formats.avro.decoder import UnknownError
from mzplan.connectors.network.registry_http import RegistryError, Server, get, schema_texts, schema_type

# Seconds between requests to a registry that doesn't answer. Then the task fails, and with it the query,
# which is started again as after any failure.
_WAITS = (0.5, 1.0, 2.0, 4.0)
_KEPT = "_mzplan_schemas"


@dataclass(slots=True, kw_only=True)
class RegistrySchemas:
    """The schemas of one registry. `run`: the query's run; schemas fetched by another run are not used.
    `known`: schemas that need not be fetched. `elsewhere` opens an SSH tunnel to it, and returns its local
    port. `name`: the connection's; `mark` begins an error for people: `mzplan[MZ125]: …`."""

    server: Server
    run: str
    known: Mapping[int, Sequence[str]]
    elsewhere: Callable[[], AbstractContextManager[int]] | None
    name: str
    mark: str
    waits: Sequence[float] = field(default=_WAITS)

    def texts(self, id_: int) -> Sequence[str]:
        """See decoder.Schemas. Raises RuntimeError for a registry that doesn't answer or refuses us."""
        if id_ in self.known:
            return self.known[id_]
        kept = _kept(self.run)
        if id_ not in kept:
            kept[id_] = self._patiently(id_)
        return kept[id_]

    def _patiently(self, id_: int) -> Sequence[str]:
        for wait in (*self.waits, None):
            try:
                return self._fetched(id_)
            except UnknownError:
                raise
            except RegistryError as problem:
                if problem.why == "missing":
                    raise UnknownError(f"its schema {id_} is not in {self.name}") from None
                if wait is None or problem.why in ("refused", "forbidden"):
                    raise RuntimeError(self._error(problem, id_)) from None
            except (OSError, TimeoutError) as problem:
                if wait is None:
                    raise RuntimeError(self._error(RegistryError("unreachable", str(problem)), id_)) from None
            except Exception as problem:  # of the tunnel, whose class is not known here
                if wait is None:
                    text = f"its SSH tunnel can't be opened: {problem}"
                    raise RuntimeError(self._error(RegistryError("unreachable", text), id_)) from None
            time.sleep(wait)
        raise AssertionError("the last wait is None")

    def _fetched(self, id_: int) -> Sequence[str]:
        with contextlib.ExitStack() as opened:
            port = opened.enter_context(self.elsewhere()) if self.elsewhere is not None else None
            found = get(self.server, f"/schemas/ids/{id_}", port)
            if isinstance(found, Mapping) and schema_type(found) != "AVRO":
                raise UnknownError(f"its schema {id_} is of type {schema_type(found)}, and not AVRO")
            return schema_texts(lambda path: get(self.server, path, port), found)

    def _error(self, problem: RegistryError, id_: int) -> str:
        refused = problem.why in ("refused", "forbidden")
        code, what = ("MZ126", "refuses us") if refused else ("MZ125", "can't be reached")
        text = " ".join(problem.text.split())
        return (
            f"{self.mark}[{code}]: schema {id_} is needed, and {self.name} {what}: {text} ({self.server.url})"
        )


def _kept(run: str) -> dict[int, Sequence[str]]:
    """The schemas that this process has fetched in a run. Code that is sent with tasks is created anew for
    each task, with its globals; so they are kept in a module of their own."""
    module: Any = sys.modules.setdefault(_KEPT, ModuleType(_KEPT))
    runs: dict[str, dict[int, Sequence[str]]] = module.__dict__.setdefault("runs", {})
    return runs.setdefault(run, {})
