"""The backends under test: how to open each (also again, as another process would), and how to break it."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.resources import ProjectSettings
from mzplan.store.store import Store, open_store
from tests.support import full_disk, refusal

Make = Callable[[], Store]


def opened(directory: str, state: Mapping[str, Any]) -> Store:
    """Open a store as a command does. A function of a module, so that a spawned process can import it."""
    return open_store(
        ProjectSettings(directory=directory, project="shop", warehouse="w", state=state, instances={})
    )


def lock_refusal(store: Store, wait: float = 0.2) -> Diagnostic:
    """Return the error of a command that waits for the lock in vain."""
    found = refusal(store.lock("destroy", wait=wait).__enter__)
    assert found.exit_code == ExitCode.LOCKED
    return found


@dataclass(frozen=True)
class Case:
    """A backend. `make` opens it. During `refusing()`, it refuses writes. `frees`: whether its lock ends with
    the process that holds it."""

    make: Make
    refusing: Callable[[], contextlib.AbstractContextManager[object]]
    frees: bool = True


def local(folder: Path) -> Case:
    return Case(partial(opened, str(folder), {"backend": "local", "path": "state"}), partial(full_disk, 2000))


def postgres(folder: Path, server: Any, database: str) -> Case:
    """Use a separate role, which owns only the objects that it creates."""
    import psycopg

    role = f"state_{database}"
    with psycopg.connect(server.dsn(database), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw-{role}'".encode())
        admin.execute(f"GRANT CREATE ON DATABASE {database} TO {role}".encode())
    (folder / "pw").write_text(f"pw-{role}\n")
    state = {
        "backend": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": database,
        "user": role,
        "password": "${file:pw}",
    }

    @contextlib.contextmanager
    def read_only() -> Iterator[None]:
        # The role's setting applies only to new sessions, so open sessions are terminated.
        set_ = f"ALTER ROLE {role} SET default_transaction_read_only = "
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        with psycopg.connect(server.dsn(database), autocommit=True) as admin:
            admin.execute(f"{set_} on".encode())
            admin.execute(end.encode(), (role,))
            yield
            admin.execute(f"{set_} off".encode())
            admin.execute(end.encode(), (role,))

    return Case(partial(opened, str(folder), state), read_only)


@dataclass
class ObjectServer:
    """An S3 server in a thread of this process. It serves one request at a time, so conditional writes are
    atomic, as on the real server."""

    refuse: bool = False  # as with a full disk
    read_only: bool = False  # as with keys that may only read and list
    fails_at: int = -1  # the request of this number (in `requests`) fails
    late: bool = False  # it fails after it was done, as if the answer is lost
    requests: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    _server: Any = None

    def start(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: Any, **__: Any) -> None:
                """Log nothing."""

        inner = DomainDispatcherApplication(create_backend_app)

        def app(environ: Any, start_response: Any) -> Iterable[bytes]:
            self.requests.append(environ["REQUEST_METHOD"])
            self.paths.append(environ["PATH_INFO"])
            if len(self.requests) - 1 == self.fails_at:
                if self.late:
                    b"".join(inner(environ, lambda *_: None))
                status = "500 Internal Server Error" if self.late else "403 Forbidden"  # 403 is not retried
                start_response(status, [("Content-Length", "0")])
                return [b""]
            if self.refuse and environ["REQUEST_METHOD"] in ("PUT", "POST"):
                start_response("507 Insufficient Storage", [("Content-Length", "0")])
                return [b""]
            if self.read_only and environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                start_response("403 Forbidden", [("Content-Length", "0")])
                return [b""]
            return inner(environ, start_response)

        self._server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def bucket(self, name: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")).read()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def object_store(folder: Path, server: ObjectServer, bucket: str) -> Case:
    server.bucket(bucket)
    (folder / "key").write_text("a-secret-key\n")
    state = {
        "backend": "object-store",
        "url": f"s3://{bucket}/teams/shop",
        "endpoint": server.url,
        "region": "us-east-1",
        "access_key_id": "an-id",
        "secret_access_key": "${file:key}",
    }
    full = partial(mock.patch.object, server, "refuse", True)
    return Case(partial(opened, str(folder), state), full, frees=False)
