"""Adapts a connection string to another machine of a cluster, on which a task runs.

Tasks import this module, so it imports no client library.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mzplan.host.network import system_roots


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """The options of a connection string that differ on another machine.

    `tunnel`: opens the SSH tunnel on the machine that calls it, and yields the tunnel's local port.
    `roots`: certificates to trust (PEM).
    `use_system_roots`: trust the certificates that the machine trusts. Only without `roots`.
    """

    tunnel: Callable[[], contextlib.AbstractContextManager[int]] | None = None
    roots: bytes | None = field(default=None, repr=False)
    use_system_roots: bool = False

    @contextlib.contextmanager
    def options(self) -> Iterator[str]:
        """Yield options that override the connection string's, valid inside the `with` block."""
        with contextlib.ExitStack() as opened:
            options = f"port={opened.enter_context(self.tunnel())}" if self.tunnel is not None else ""
            roots: str | None = (system_roots() or "") if self.use_system_roots else None
            if self.roots is not None:  # libpq reads certificates only from a file
                file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="mzplan-", suffix=".pem"))
                file.write(self.roots)
                file.flush()
                roots = file.name
            if roots is not None:
                escaped = roots.replace("\\", "\\\\").replace("'", "\\'")
                options += f" sslrootcert='{escaped}'"
            yield options
