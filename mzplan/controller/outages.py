"""What a controller may do while the store doesn't answer.

Running queries continue, and failed ones restart from their checkpoints: their targets, collections and
checkpoints refuse a runner with a lower epoch. Everything that another runner could see differently waits for
the store: new queries and changes, and the removal and maintenance of storage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mzplan.controller.decision import HeldQuery, Stop, key_of
from mzplan.model.cause import Cause
from mzplan.schema.description import Description
from mzplan.schema.kinds import EXACTLY_ONCE, resource_kind

if TYPE_CHECKING:
    from mzplan.controller.executor import QueryName
    from mzplan.controller.queries import Queries

log = logging.getLogger("mzplan.controller")

OVERTAKEN = "MZ068"  # the code of a target's error that names a higher epoch
STOP_CAUSE = Cause(
    cause="runner", detail="the store doesn't answer, and this sink couldn't reject rows of another runner"
)
WAITS = "waiting for the store to answer"
RESTART_CAUSE = Cause(cause="runner", detail="the store answers again")


def is_fenced(query: Description) -> bool:
    """Whether a query's target rejects rows from a runner with a lower epoch, as exactly-once sinks do.

    Collections always do.
    """
    if not query.address.writes_target:
        return True
    kind = resource_kind("sink", query.type)
    offered = kind.schema.get("x-delivery", ())
    asked = kind.with_defaults(query.body).get("delivery", EXACTLY_ONCE)
    return EXACTLY_ONCE in offered and (len(offered) == 1 or asked == EXACTLY_ONCE)


def hold_in_outage(wanted: Description, accepted: Description | None) -> HeldQuery | None:
    """Return the hold on a committed query during an outage; None if it may run.

    `accepted`: the description that ran last.
    """
    if not is_fenced(wanted) or (accepted is not None and not is_fenced(accepted)):
        return HeldQuery(condition="stopped", stop=STOP_CAUSE, restart=RESTART_CAUSE, reason=WAITS)
    if accepted is not None and key_of(accepted) == key_of(wanted):
        return None
    return HeldQuery(reason=WAITS)


def stop_unfenced(queries: Queries, wake: Callable[[], None]) -> None:
    """Stop the queries that can't reject rows of another runner, each on a thread of its own."""

    def stop(name: QueryName) -> None:
        queries.runs.record_command(Stop(address=name.address, names=(name,), cause=STOP_CAUSE))
        try:
            queries.executor.stop(name)
        except Exception:  # the next round tries again
            log.exception("%s could not be stopped", name.address)
        wake()

    for name in queries.unfenced():
        log.warning("%s stops until the store answers, because it could write rows twice", name.address)
        threading.Thread(target=stop, args=(name,), daemon=True).start()
