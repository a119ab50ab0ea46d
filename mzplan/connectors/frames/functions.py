"""Spark's functions over columns, imported when the first one is used: a module that has expressions among
other things, such as a connector with its probe, is loaded without pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        from pyspark.sql import functions

        return getattr(functions, name)
