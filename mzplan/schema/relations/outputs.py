"""The kinds of output of a relational view: how its query is checked, and what it can't be set with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.schema.current.rules import check_current
from mzplan.schema.relations.analysis import NAMES, PASSES, Pass
from mzplan.schema.relations.names import resolve_names
from mzplan.schema.relations.parse import is_relational

_OVER_TABLES = "its query reads tables as they are, and keeps no state"
_ONLY_CURRENT = "only a view with `output: current` computes its rows again"


@dataclass(frozen=True, slots=True)
class Output:
    """A kind of output.

    - `streams`: whether the query reads collections as streams, whose rows never change. Otherwise, it
      computes its rows again where its inputs change.
    - `passes`: the analysis of the query.
    - `excluded`: the properties that the view can't set, with the reasons.
    """

    streams: bool
    passes: Sequence[Pass]
    excluded: Mapping[str, str]

    @property
    def naming_passes(self) -> Sequence[Pass]:
        """Return the passes that find the columns of a query, also of one without settings of its own."""
        return [run for run in self.passes if run in NAMES]


_OF_STREAMS = Output(True, PASSES, {"refresh": _ONLY_CURRENT, "full_above": _ONLY_CURRENT})
CURRENT = Output(
    False,
    (resolve_names, check_current),
    {
        "snapshots": "it reads each of its inputs as it is, and follows all of them",
        "watermarks": "no row of its inputs is late for it",
        "partitions": _OVER_TABLES,
        "on_query_change": _OVER_TABLES,
    },
)
_OUTPUTS: Mapping[str, Output] = {
    "append": _OF_STREAMS,
    "update": _OF_STREAMS,
    "current": CURRENT,
}


def recomputes(body: Mapping[str, Any]) -> bool:
    """Return whether this is the body of a view whose rows always follow from its newest query."""
    return is_relational(body) and not output_of(body).streams


def output_of(body: Mapping[str, Any]) -> Output:
    """Return the kind of output of a view's body; that of a view that adds rows for an invalid value."""
    return _OUTPUTS.get(str(body.get("output")), _OF_STREAMS)
