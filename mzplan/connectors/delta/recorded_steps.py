"""What a Delta table has recorded of the steps of a sink: for `mzplan verify`."""

from __future__ import annotations

from mzplan.connectors.api.protocols import Recorded, ResolvedQuery
from mzplan.connectors.api.recorded_steps import held
from mzplan.connectors.network.folders import folder_of
from mzplan.endpoints.interface import Step, Written
from mzplan.warehouse.collection_log import CollectionLog


class DeltaRecorded(Recorded):
    """Reads the table's log: each commit names the query and its step. For an append, the rows of the files
    that the commit has added; for a MERGE, only the number of rows in its source."""

    def __init__(self, query: ResolvedQuery, query_id: str | None):
        self.keys = query.body["key"] if query.body["mode"] == "upsert" else ()
        commits = CollectionLog(folder_of(query)).after(-1)
        found = [(one.transaction, one) for one in commits if one.transaction is not None]
        self._commits = {made[1]: commit for made, commit in found if made[0] == query_id}

    def step(self, step: Step) -> Written | None:
        commit = self._commits.get(step)
        if commit is None:
            return None
        if self.keys:
            return Written(rows=commit.merged) if commit.merged is not None else None
        return held(commit.files)
