"""The steps of a collection that its readers still need."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from unittest.mock import Mock

from mzplan.controller.frontiers import FrontierTable
from mzplan.controller.maintenance import Maintenance, Survey
from mzplan.controller.storage import Extent
from mzplan.controller.terms import LagSteps
from tests.contract.controllers import local_source, sink_of


def test_a_survey_of_a_former_generation_expires_nothing_that_the_new_one_reads() -> None:
    """A commit may replace a reader while a survey is under way."""
    source = local_source("a")
    sink = sink_of(source, "k")
    maintenance = Mock(first_recent=Mock(return_value=None))
    table = FrontierTable(cast(Maintenance, maintenance))
    table.instance = "local"
    table.follow([source, sink])
    table.set_policies([("a", LagSteps(steps=10))])
    table.advance([("a", 200)])
    former, policy = table.by_id["k"].place, LagSteps(steps=10)
    survey = Survey(
        id="a",
        place=table.by_id["a"].place,
        extent=Extent(since=0, upper=200),
        first_unread={former: 195},
        policy=policy,
        first_recent=None,
        hold_limit=0,
    )
    table.follow([source, replace(sink, description=replace(sink.description, generation=2))])
    maintenance.survey.return_value = [survey]
    table.maintain()
    assert (table.by_id["a"].since, table.by_id["a"].holds["k"]) == (0, 0)
    now = replace(survey, first_unread={table.by_id["k"].place: 150})
    maintenance.survey.return_value = [now]
    table.maintain()
    assert (table.by_id["a"].since, table.by_id["a"].holds["k"]) == (150, 150)
    # A former generation that is still in service has read less than the new one, which waits.
    table.advance([("a", 300)])
    both = {table.by_id["k"].place: 280, former: 240}
    maintenance.survey.return_value = [replace(survey, extent=Extent(since=0, upper=300), first_unread=both)]
    table.maintain([sink.description])
    assert (table.by_id["a"].since, table.by_id["a"].holds["k"]) == (240, 240)
