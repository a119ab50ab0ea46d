"""AWS as moto plays it, in a thread of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import requests
from moto.server import ThreadedMotoServer


@contextmanager
def moto_server() -> Iterator[str]:
    """Its endpoint. Whom it lets in is a setting of the whole process, and is given back."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    yield endpoint
    who_is_let_in(endpoint, "inf")
    server.stop()


def who_is_let_in(endpoint: str, unchecked: str) -> None:
    """So many requests are not checked from here on ("inf": none is)."""
    requests.post(f"{endpoint}/moto-api/reset-auth", data=unchecked.encode(), timeout=5)
