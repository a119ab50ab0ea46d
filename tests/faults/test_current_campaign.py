"""Random queries as current views of a runner that is killed while their inputs change, at random moments and
at failpoints: after each step, a view has the rows that its query returns in batch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaigns import SIZE
from tests.faults.current_campaign import Campaign
from tests.faults.doomed import ASKED, points

VIEWS = 8
Runner = subprocess.Popen[bytes]


def dies_in_a_step(campaign: Campaign, runner: Runner) -> Runner:
    time.sleep(campaign.chance.uniform(0, 3))
    campaign.kill(runner)
    campaign.change()
    return campaign.runner()


def dies_with_other_queries(campaign: Campaign, runner: Runner) -> Runner:
    campaign.edit()
    assert campaign.project.run("apply", *ASKED).returncode == 8, campaign.log()
    return dies_in_a_step(campaign, runner)


def dies_at_a_failpoint(campaign: Campaign, runner: Runner) -> Runner:
    campaign.kill(runner)
    # Without a changed query, no step is planned by mzplan.
    campaign.dies_at(campaign.chance.choice(points("view")[1:]))
    return campaign.runner()


def dies_while_it_starts(campaign: Campaign, runner: Runner) -> Runner:
    campaign.kill(runner)
    starting = campaign.runner()
    time.sleep(campaign.chance.uniform(8, 25))
    campaign.kill(starting)
    return campaign.runner()


ROUNDS: tuple[Callable[[Campaign, Runner], Runner], ...] = (
    dies_with_other_queries,
    dies_at_a_failpoint,
    dies_while_it_starts,
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5 * SIZE))
def test_each_step_has_the_rows_of_its_query(tmp_path: Path, seed: int) -> None:
    campaign = Campaign(tmp_path / "p", seed, VIEWS)
    try:
        campaign.declare()
        runner = campaign.runner()
        assert campaign.project.run("apply", *ASKED).returncode == 8, campaign.log()
        campaign.fill()
        runner = dies_in_a_step(campaign, runner)
        campaign.settles()
        for strikes in ROUNDS:
            campaign.change()
            runner = strikes(campaign, runner)
            campaign.settles()
        campaign.stop(runner)
        _agrees(campaign)
    finally:
        campaign.close()


def _agrees(campaign: Campaign) -> None:
    command = [sys.executable, "-m", "tests.faults.current_oracle", str(campaign.project.folder)]
    queries = json.dumps(campaign.queries)
    done = subprocess.run(command, input=queries, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {
        address: (campaign.views[address.removeprefix("view.")], compared)
        for address, compared in found.items()
        if compared["wrong"] or not compared["verified"]
    }
    assert not wrong, json.dumps(wrong, indent=1)
    refreshes = sum((Counter(compared["steps"]) for compared in found.values()), Counter[str]())
    print(f"{len(found)} views, steps: {dict(refreshes)}")
    assert refreshes["incremental"] > refreshes["full"]
