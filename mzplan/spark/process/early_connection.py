"""Connects a new Python process to Spark before it imports anything.

For a Python source, Spark starts a process and waits ten seconds for it to connect; no setting changes that.
PySpark connects only after its imports, which take longer on a busy machine. So the process starts without
any packages, connects, and then becomes the ordinary interpreter, with the open connection.

    python -I -S early_connection.py -m MODULE          connects, then executes:
    python -m mzplan.spark.process.early_connection MODULE FD   runs the module's `main` on the connection
"""

from __future__ import annotations

import os
import socket
import sys

_PORT, _PATH = "PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH"
_BUFFER = 65536


def connect() -> socket.socket:
    """Connect to Spark, and send the secret and the number of this process, as PySpark does."""
    if path := os.environ.get(_PATH):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
    else:
        is_ipv6 = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
        connection = socket.create_connection(("::1" if is_ipv6 else "127.0.0.1", int(os.environ[_PORT])))
        secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
        connection.sendall(len(secret).to_bytes(4, "big") + secret)
        if connection.recv(6, socket.MSG_WAITALL) != b"\0\0\0\2ok":
            raise ConnectionRefusedError("Spark refused the connection")
    connection.sendall(os.getpid().to_bytes(4, "big"))
    return connection


def become_worker(module: str) -> None:
    """Replace this process by the ordinary interpreter, which runs the module on a new connection."""
    descriptor = connect().detach()
    os.set_inheritable(descriptor, True)
    os.execv(
        sys.executable,
        [sys.executable, "-m", "mzplan.spark.process.early_connection", module, str(descriptor)],
    )


def run(module: str, descriptor: int) -> None:
    """Run a PySpark worker's `main` on an open connection."""
    from importlib import import_module

    with socket.socket(fileno=descriptor) as connection:
        os.set_inheritable(descriptor, False)
        stream = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", _BUFFER)))
        import_module(module).main(stream, stream)


if __name__ == "__main__":
    if sys.argv[1] == "-m":
        become_worker(sys.argv[2])
    else:
        run(sys.argv[1], int(sys.argv[2]))
