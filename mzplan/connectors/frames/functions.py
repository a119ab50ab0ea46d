"""Spark's column functions, imported at their first use.

So a module with expressions among other things, such as a connector with its probe, loads without pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        from pyspark.sql import functions

        return getattr(functions, name)
