"""A private PostgreSQL server on 127.0.0.1, ready for logical replication."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from examples.servers.errors import ServerError
from examples.servers.pgbinaries import programs_for, reachable
from examples.servers.ports import HOST, answers, free_port, require_free
from examples.servers.process import Account, children_of, unprivileged_account, wait_until_gone
from examples.servers.server import Server, remove_tree

# For a small but durable server: fsync stays on, because tests kill it and expect its data back.
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "on",
    "logging_collector": "off",
}


class PostgresServer(Server):
    """A server with one superuser, ``user``, who connects only over TCP with a password (SCRAM).

    ``port``: by default the earlier port of this ``workdir``, or a free one.
    ``settings``: settings of postgresql.conf that override ours; read at each start, so they may change.

    PostgreSQL refuses to run as root. Started by root, it runs as ``postgres`` or ``nobody``. If that user
    can't enter ``workdir``, the data is in a temporary folder, to which ``workdir/cluster`` is a link.
    ``remove_data`` deletes both.
    """

    name = "postgres"
    user = "mzplan"

    def __init__(
        self, workdir: Path, port: int | None = None, *, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(workdir)
        self.settings = dict(settings or {})
        facts = self._facts()
        self.port: int = port or facts.get("port") or free_port()
        self.password: str = facts.get("password") or secrets.token_urlsafe(12)

    def dsn(self, database: str = "postgres") -> str:
        """Return the database's URI, with user and password."""
        return f"postgresql://{self.user}:{self.password}@{HOST}:{self.port}/{quote(database)}"

    def create_database(self, name: str, encoding: str = "UTF8") -> str:
        """Create an empty database and return its DSN. Raises ServerError, for example if it exists."""
        statement = "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0"
        self._run(
            f"create database {name}", sql.SQL(statement).format(sql.Identifier(name), sql.Literal(encoding))
        )
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and its replication slots, even if they are in use. Raises ServerError."""
        # FORCE ends all sessions except sessions that stream from a slot.
        self._run(
            f"drop database {name}",
            sql.SQL(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE database = {} AND active"
            ).format(sql.Literal(name)),
            sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)),
        )

    def start(self, *, port: int | None = None, detached: bool = False, timeout_s: float = 120.0) -> None:
        """Start the server and wait until it answers a query.

        ``port``: a new port, with the same data.
        ``detached``: the server continues after this process ends.
        Does nothing if the server runs. Raises ServerError if it can't start, or if it already runs on
        another port.
        """
        if self.pid is not None:
            if port is not None and port != self.port:
                raise ServerError(f"PostgreSQL already runs, on port {self.port}; stop it before it can move")
            return
        self.port = port or self.port
        require_free(self.port, "PostgreSQL")
        self._keep_facts(port=self.port, password=self.password)
        account = unprivileged_account()
        cluster = self._cluster_folder(account)
        programs = programs_for(account, copy_to=cluster / "programs")
        data = cluster / "data"
        if not data.exists():
            self._initialise(programs, data, account)
        settings = {**_SETTINGS, "port": str(self.port), **self.settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process.spawn(
            [programs / "postgres", "-D", data, *options],
            detached=detached,
            cwd=data,
            account=account,
            env=_environment(),
            when_orphaned="QUIT",  # fast, but leaves no child processes or shared memory
        )
        self._wait_until_ready(self._problem, timeout_s=timeout_s)

    def stop(self) -> None:
        """End all sessions and shut down cleanly; after 30 s, quit at once."""
        self._process.end((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 30.0))

    def kill(self) -> None:
        """Send SIGKILL to the postmaster, as in a crash. The next start recovers from the log."""
        pid = self.pid
        # The children end when they notice that it is gone. Until then, a new postmaster refuses to start.
        children = children_of(pid) if pid is not None else []
        super().kill()
        if not wait_until_gone(children, timeout_s=30.0):
            raise ServerError(f"processes of the killed PostgreSQL server do not end: {children}")

    def remove_data(self) -> None:
        """Stop the server and delete all its databases. Keep the log, the port and the password."""
        self.stop()
        remove_tree(self.workdir / "cluster")

    def _cluster_folder(self, account: Account | None) -> Path:
        """Return the folder for the data, which the server's user owns and may enter."""
        link = self.workdir / "cluster"
        if link.exists():
            return link.resolve()
        link.unlink(missing_ok=True)  # a link to a temporary folder that a reboot has deleted
        if account is None or reachable(self.workdir):
            link.mkdir(mode=0o755)
        else:
            folder = Path(tempfile.mkdtemp(prefix="mzplan-postgres-"))
            link.symlink_to(folder)
        if account is not None:
            os.chown(link, account.uid, account.gid)
        return link.resolve()

    def _initialise(self, programs: Path, data: Path, account: Account | None) -> None:
        """Make the data folder, under another name first, so that ``data`` is always complete."""
        fresh, password_file = data.with_name("data.new"), data.with_name("password")
        shutil.rmtree(fresh, ignore_errors=True)
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        if account is not None:
            os.chown(password_file, account.uid, account.gid)
        command = [
            *(programs / "initdb", "-D", fresh, "-U", self.user, f"--pwfile={password_file}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            cwd=data.parent,
            env=_environment(),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
        password_file.unlink()
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise ServerError(f"PostgreSQL could not set up its data folder {data}", said)
        fresh.rename(data)

    def _problem(self) -> str | None:
        if not answers(self.port):
            return "its port is not open"
        try:
            psycopg.connect(self.dsn(), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            return str(error).strip()
        return None

    def _run(self, what: str, *statements: sql.Composed) -> None:
        try:
            with psycopg.connect(self.dsn(), autocommit=True, connect_timeout=10) as connection:
                for statement in statements:
                    connection.execute(statement)
        except psycopg.Error as error:
            raise ServerError(f"can't {what}: {str(error).strip()}") from error


def _environment() -> dict[str, str]:
    """Return our environment without PGDATA, PGPORT and others, which the server's programs would read."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
