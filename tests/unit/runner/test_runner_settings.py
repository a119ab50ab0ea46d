"""The settings of runners are planned, reviewed and committed like all other declarations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.features.state.edit_plans import plan_rollback
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import MetricsPlace, Retries, RunEventSettings, RunnerSettings
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.manual_changes import plan_between, plan_pause
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from mzplan.runner.loop import Runner
from mzplan.runner.telemetry import RunEvents, Telemetry
from mzplan.store.formats import decode_state, encode_state
from tests.unit.runner.test_runner import World, make_state
from tests.unit.small_projects import at, commit, commit_plan, shop

KEPT = "retain_dropped: 30d\n"
EDITS = {
    "retain_dropped: 0s\n": ("retain_dropped", "30d", "0s"),
    KEPT + "lineage: {url: 'https://evil.example'}\n": ("lineage.url", None, "https://evil.example"),
    KEPT + "lineage: {namespace: other}\n": ("lineage.namespace", None, "other"),
    KEPT + "retries: {first: 5s}\n": ("retries.first", "1s", "5s"),
    KEPT + "retries: {budget: 3}\n": ("retries.budget", None, 3),
    KEPT + "instances: {local: {type: embedded, metrics: {port: 9100, host: 0.0.0.0}}}\n": (
        "instances.local.metrics.host",
        None,
        "0.0.0.0",
    ),
    KEPT + "instances: {local: {type: dry}}\n": ("instances.local.type", "embedded", "dry"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, KEPT)
    (tmp_path / "pipeline.yaml").write_text(
        "connections: {k: {type: kafka, brokers: ['a:9092']}}\n"
        "sources: {orders: {connection: k, topic: t, format: {type: json, schema: id BIGINT}}}\n"
    )
    return tmp_path


def write(folder: Path, more: str) -> None:
    (folder / "mzplan.yaml").write_text(f"version: 1\nproject: shop\n{more}")


@pytest.mark.parametrize("edit", EDITS)
def test_each_runner_setting_is_in_the_plan_and_its_digest(folder: Path, edit: str) -> None:
    state = commit(load_configuration(str(folder)))
    before = build_plan(load_configuration(str(folder)), state)
    assert before.is_empty
    write(folder, edit)
    plan = build_plan(load_configuration(str(folder)), state)
    path, old, new = EDITS[edit]
    assert not plan.is_empty and plan.changes == ()
    shown = {one["path"]: (one["before"], one["after"]) for one in plan_to_json(plan)["settings"]}
    assert shown[path] == (old, new)
    for text in (render_plan(plan), render_plan_markdown(plan), render_plan_page(plan)):
        assert path in text and str(new) in text
        assert "No changes" not in text
    assert digest_of_plan(plan) != digest_of_plan(before)
    assert decode_plan(encode_plan(plan)) == plan
    after = commit_plan(plan, state)
    assert decode_state(encode_state(after), "it") == after
    assert build_plan(load_configuration(str(folder)), after).is_empty
    # The history shows the change, and a rollback undoes it.
    assert plan_between(state, after).settings_changes == plan.settings_changes
    back = commit_plan(plan_rollback(after, state), after)
    assert (back.settings, back.instances) == (state.settings, state.instances)


def test_a_key_is_masked_and_only_its_reference_is_stored(folder: Path) -> None:
    state = commit(load_configuration(str(folder)))
    write(folder, KEPT + "lineage: {url: 'https://ol.example', api_key: '${env:OL_KEY}'}\n")
    plan = build_plan(load_configuration(str(folder)), state)
    (field,) = (one for one in plan.settings_changes if one.path == "lineage.api_key")
    assert field.sensitive and field.after is None
    assert "lineage.api_key: (sensitive)" in render_plan(plan)
    assert b"${env:OL_KEY}" in encode_state(commit_plan(plan, state))


def test_an_older_state_with_default_settings_has_no_change(folder: Path) -> None:
    write(folder, "")
    configuration = load_configuration(str(folder))
    old = replace(commit(configuration), settings=None)
    assert b'"settings"' not in encode_state(old) and decode_state(encode_state(old), "it") == old
    plan = build_plan(configuration, old)
    assert plan.is_empty and plan.settings_changes == ()
    write(folder, KEPT)
    plan = build_plan(load_configuration(str(folder)), old)
    assert [(one.path, one.after) for one in plan.settings_changes] == [("retain_dropped", "30d")]
    # Manual changes don't read the files, so they don't change the settings.
    paused = commit_plan(plan_pause(old, [at("source.orders")]), old)
    assert paused.settings is None
    assert plan_rollback(commit_plan(plan, old), old).settings is None


def test_a_targeted_apply_leaves_runner_settings_alone() -> None:
    state = commit(shop())
    wanted = replace(shop(), settings=RunnerSettings(retain_dropped=0.0))
    plan = build_plan(wanted, state, targets=[at("source.orders")])
    assert plan.is_empty and commit_plan(plan, state).settings == RunnerSettings()
    assert not build_plan(wanted, state).is_empty


@pytest.mark.parametrize(
    "hostile",
    [
        *('"retain_dropped": -1', '"retries": {"first": 0}', '"metrics": {"local": {"port": 70000}}'),
        *('"lineage": {"interval": 0}', '"lineage": {"url": 7}', '"retries": {"budget": 0}'),
    ],
)
def test_a_state_with_impossible_settings_is_refused(hostile: str) -> None:
    data = encode_state(commit(shop()))
    line = next(one for one in data.decode().splitlines() if '"settings"' in one)
    changed = data.decode().replace(line, f'  "settings": {{{hostile}}},').encode()
    with pytest.raises(MzplanError, match="MZ030"):
        decode_state(changed, "it", checked=False)


# --- a runner


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.pool.shutdown()


def with_settings(state: State, **given: Any) -> State:
    return replace(state, settings=RunnerSettings(**given))


def test_a_runner_uses_the_committed_settings(world: World) -> None:
    world.commit(with_settings(make_state(1), retain_dropped=300.0, retries=Retries(first=2.0, budget=4)))
    world.settle()
    found = world.runner.controller.parameters
    assert (found.retain_dropped, found.backoff) == (300.0, Retries(first=2.0, last=60.0, budget=4))
    world.commit(with_settings(make_state(2), retain_dropped=600.0))
    world.settle()
    found = world.runner.controller.parameters
    assert (found.retain_dropped, found.backoff) == (600.0, Retries())


def test_the_runners_own_file_counts_only_without_committed_settings(world: World) -> None:
    runner = world.runner
    own = RunnerSettings(retain_dropped=1.0)
    world.runner = Runner(runner.controller, runner.gates, default_settings=own)
    world.commit(make_state(1))
    world.settle()
    assert world.runner.controller.parameters.retain_dropped == 1.0
    world.commit(with_settings(make_state(2)))
    world.settle()
    assert world.runner.controller.parameters.retain_dropped == 7 * 86_400.0


class Served:
    """Stands in for a metrics server."""

    def __init__(self, place: MetricsPlace, log: list[str]):
        self.place, self.log = place, log
        log.append(f"serve {place.host}:{place.port}")

    def close(self) -> None:
        self.log.append(f"close {self.place.port}")


def test_metrics_and_run_events_follow_the_committed_settings() -> None:
    log: list[str] = []

    def report(wanted: RunEventSettings) -> RunEvents:
        log.append(f"events to {wanted.url or 'nobody'}")
        return RunEvents()

    beside = Telemetry("local", lambda place: Served(place, log), report)  # type: ignore[arg-type, return-value]
    beside.configure(RunnerSettings())
    beside.configure(RunnerSettings())
    assert log == ["events to nobody"]
    log.clear()
    beside.configure(RunnerSettings(metrics={"local": MetricsPlace(port=1), "other": MetricsPlace(port=2)}))
    beside.configure(
        RunnerSettings(metrics={"local": MetricsPlace(port=3)}, run_events=RunEventSettings(url="http://o"))
    )
    beside.close_server()
    assert log == ["serve 127.0.0.1:1", "close 1", "serve 127.0.0.1:3", "events to http://o", "close 3"]
    log.clear()
    fixed = Telemetry("local", lambda place: Served(place, log), report, MetricsPlace(port=9))  # type: ignore[arg-type, return-value]
    fixed.configure(RunnerSettings(metrics={"local": MetricsPlace(port=1)}))
    assert log[0] == "serve 127.0.0.1:9"
