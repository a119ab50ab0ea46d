"""The user's Python functions: where they come from, which version runs, and why one failed."""

from mzplan.connectors.user_code.connector import CONNECTOR

__all__ = ["CONNECTOR"]
