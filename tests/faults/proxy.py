"""A TCP proxy whose connections can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards connections to `target` (a port of this machine) until it is closed. `cut` ends all there are,
    without a word, and refuses new ones until `mend`. `watched`: clients' messages with these bytes are
    counted; number `lost_at` (from 0; -1: none) ends its connection, before it is forwarded or, with `late`,
    when its answer is there; with `lasting`, all are cut then."""

    def __init__(self, target: int):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self.watched, self.lost_at, self.late, self.lasting = b"", -1, False, False
        self.count = 0
        self._awaited: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for line in self._open:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._is_cut:
                    client.close()
                    server.close()
                    continue
                self._open |= {client, server}
            for way in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._forward, args=way, daemon=True).start()

    def _is_lost(self, data: bytes) -> bool:
        if not self.watched or self.watched not in data:
            return False
        self.count += 1
        return self.count - 1 == self.lost_at

    def _forward(self, one: socket.socket, other: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                is_lost = is_client and self._is_lost(data)
                if one in self._awaited or (is_lost and not self.late):
                    if self.lasting:
                        self.cut()
                    break
                if is_lost:
                    self._awaited.add(other)
                other.sendall(data)
        for line in (one, other):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {one, other}
        one.close()
