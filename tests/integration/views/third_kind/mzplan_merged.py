"""A view by a function: it merges the ids of the collections that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Merged:
    """The plug-in's object: see docs/internals/endpoints.md."""

    type = "merged"

    def schemas(self) -> Mapping[str, Any]:
        path = Path(__file__).with_name("view.merged.json")
        return {"view.merged": json.loads(path.read_text(encoding="utf-8"))}

    def compute(self, inputs: Mapping[str, DataFrame], options: Mapping[str, Any]) -> DataFrame:
        from pyspark.sql import functions as f

        tagged = [
            rows.select("id", f.lit(name).alias("origin"), f.lit(options["tag"]).alias("tag"))
            for name, rows in inputs.items()
        ]
        return reduce(lambda union, rows: union.unionByName(rows), tagged)


connector = Merged()
