"""A token that has been made already.

This module is sent to the executors whole (see mzplan.connectors.frames.task_code).
"""

from __future__ import annotations


class OneToken:
    """A token to sign in with, for a client that asks for one (see mzplan.connectors.network.aws)."""

    def __init__(self, token: tuple[str, float]):
        self._token = token

    def __call__(self, _: str) -> tuple[str, float]:
        return self._token
