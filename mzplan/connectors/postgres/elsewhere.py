"""A connection string on another machine than the one that it was made on: a task's, on a cluster.

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mzplan.host.network import system_roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What a connection string means on another machine than the one that it was made on. `tunnel` opens the
    SSH tunnel there, and gives its local port. `roots`: the certificates to trust (PEM); None with `checks`:
    those that the machine trusts itself."""

    tunnel: Callable[[], contextlib.AbstractContextManager[int]] | None = None
    roots: bytes | None = field(default=None, repr=False)
    checks: bool = False

    @contextlib.contextmanager
    def options(self) -> Iterator[str]:
        """The options that replace those of the connection string, while it is used."""
        with contextlib.ExitStack() as opened:
            options = f"port={opened.enter_context(self.tunnel())}" if self.tunnel is not None else ""
            roots: str | None = (system_roots() or "") if self.checks else None
            if self.roots is not None:  # libpq takes them from a file alone
                file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="mzplan-", suffix=".pem"))
                file.write(self.roots)
                file.flush()
                roots = file.name
            if roots is not None:
                escaped = roots.replace("\\", "\\\\").replace("'", "\\'")
                options += f" sslrootcert='{escaped}'"
            yield options
