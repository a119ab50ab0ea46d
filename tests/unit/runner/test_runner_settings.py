"""The settings of runners are planned, reviewed and committed like all other declarations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.config import load_configuration, load_project
from mzplan.controller.observations import InstanceOverview
from mzplan.features.state.edit_plans import plan_rollback
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import MetricsPlace, Retries, RunEventSettings, RunnerSettings, Webhook
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.manual_changes import plan_between, plan_pause
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_page import render_plan_page
from mzplan.runner.loop import Runner
from mzplan.runner.telemetry import RunEvents, Telemetry
from mzplan.store.formats import decode_state, encode_state
from tests.unit.cli_runs import PIPELINE
from tests.unit.runner.test_runner import World, make_state
from tests.unit.small_projects import at, commit, commit_plan, shop

KEPT = "retain_dropped: 30d\n"
EDITS = {
    "retain_dropped: 0s\n": ("retain_dropped", "30d", "0s"),
    KEPT + "lineage: {url: 'https://evil.example'}\n": ("lineage.url", None, "https://evil.example"),
    KEPT + "retries: {budget: 3}\n": ("retries.budget", None, 3),
    KEPT + "instances: {local: {type: embedded, metrics: {port: 9100, host: 0.0.0.0}}}\n": (
        "instances.local.metrics.host",
        None,
        "0.0.0.0",
    ),
    KEPT + "runner: {survive_store_outage: 5m}\n": ("runner.survive_store_outage", "1h", "5m"),
    KEPT + "notify: [{url: '${env:HOOK}', on: [failed, drift]}]\n": ("notify[0].on", None, "failed, drift"),
    KEPT + "instances: {local: {type: dry}}\n": ("instances.local.type", "embedded", "dry"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, KEPT)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE % "a")
    return tmp_path


def write(folder: Path, more: str) -> None:
    (folder / "mzplan.yaml").write_text(f"version: 1\nproject: shop\n{more}")


SETTINGS = """\
instances:
  a: {type: cluster, metrics: {port: 9100}}
  b: {type: cluster, metrics: {port: 9101, host: 0.0.0.0}}
  c: {type: embedded}
retries: {first: 5s, last: 2m}
lineage: {url: 'https://ol/x', api_key: '${env:K}', timeout: 2s, interval: 1m, namespace: '${var.where}'}
variables: {where: {default: prod}}
"""


def test_settings_are_read_from_the_project(tmp_path: Path) -> None:
    write(tmp_path, SETTINGS)
    assert load_project(str(tmp_path)).runner == RunnerSettings(
        metrics={"a": MetricsPlace(port=9100), "b": MetricsPlace(port=9101, host="0.0.0.0")},
        retries=Retries(first=5.0, last=120.0),
        run_events=RunEventSettings(
            url="https://ol/x", api_key="${env:K}", timeout=2.0, interval=60.0, namespace="prod"
        ),
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("retries: {budget: 0}", "MZ005"),
        ("retries: {first: soon}", "MZ005"),
        ("instances: {a: {type: cluster, metrics: {port: 0}}}", "MZ005"),
        ("lineage: {url: 'ftp://x'}", "MZ005"),
        ("lineage: {url: 'https://me:secret-1@ol'}", "MZ016"),
        ("lineage: {url: 'https://${env:HOST}'}", "MZ005"),
        ("lineage: {url: 'https://ol', api_key: written-out}", "MZ016"),
        ("lineage: {api_key: '${env:K}'}", "MZ006"),
        ("lineage: {url: 'https://ol', timeout: 0s}", "MZ005"),
        ("lineage: {host: ol}", "MZ004"),
        ("notify: [{url: 'https://hooks.example/secret-1'}]", "MZ016"),
        ("notify: [{url: '${env:HOOK}', on: [everything]}]", "MZ005"),
        ("notify: [{on: [failed]}]", "MZ006"),
    ],
)
def test_wrong_settings_are_an_error(tmp_path: Path, text: str, code: str) -> None:
    write(tmp_path, f"{text}\n")
    with pytest.raises(MzplanError) as caught:
        load_project(str(tmp_path))
    assert {one.code for one in caught.value.diagnostics} == {code}
    assert "secret-1" not in str(caught.value) and "written-out" not in str(caught.value)


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
    assert shown[path] == (old, new) and path in render_plan_page(plan)
    assert digest_of_plan(plan) != digest_of_plan(before)
    assert decode_plan(encode_plan(plan)) == plan
    after = commit_plan(plan, state)
    assert decode_state(encode_state(after), "it") == after
    assert build_plan(load_configuration(str(folder)), after).is_empty
    # The history shows the change, and a rollback undoes it.
    assert plan_between(state, after).settings_changes == plan.settings_changes
    back = commit_plan(plan_rollback(after, state), after)
    assert (back.settings, back.instances) == (state.settings, state.instances)


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


# --- a runner


def with_settings(state: State, **given: Any) -> State:
    return replace(state, settings=RunnerSettings(**given))


def test_a_runner_uses_the_committed_settings(world: World) -> None:
    world.apply(with_settings(make_state(1), retain_dropped=300.0, retries=Retries(first=2.0, budget=4)))
    found = world.runner.controller.parameters
    assert (found.retain_dropped, found.backoff) == (300.0, Retries(first=2.0, last=60.0, budget=4))
    world.apply(with_settings(make_state(2), retain_dropped=600.0))
    found = world.runner.controller.parameters
    assert (found.retain_dropped, found.backoff) == (600.0, Retries())
    # Its own file counts only without committed settings.
    own = RunnerSettings(retain_dropped=1.0)
    world.runner = Runner(world.runner.controller, world.runner.gates, default_settings=own)
    for state, retained in ((make_state(3), 1.0), (with_settings(make_state(4)), 7 * 86_400.0)):
        world.apply(state)
        assert world.runner.controller.parameters.retain_dropped == retained


def test_metrics_and_run_events_follow_the_committed_settings() -> None:
    log: list[str] = []

    def serve(place: MetricsPlace) -> Any:
        log.append(f"serve {place.host}:{place.port}")
        return SimpleNamespace(close=lambda: log.append(f"close {place.port}"))

    def report(wanted: RunEventSettings) -> RunEvents:
        log.append(f"events to {wanted.url or 'nobody'}")
        return RunEvents()

    def at(**ports: int) -> dict[str, MetricsPlace]:
        return {name: MetricsPlace(port=port) for name, port in ports.items()}

    telemetry = Telemetry("local", serve, report)
    for _ in range(2):
        telemetry.configure(RunnerSettings(metrics=at(local=1, other=2)))
    telemetry.configure(RunnerSettings(metrics=at(local=3), run_events=RunEventSettings(url="http://o")))
    telemetry.close_server()
    assert log == [
        *("serve 127.0.0.1:1", "events to nobody"),
        *("close 1", "serve 127.0.0.1:3", "events to http://o", "close 3"),
    ]
    log.clear()
    hooks = (Webhook(url="${env:A}", on=("failed",)), Webhook(url="${env:B}", on=("failed",)))

    def notifier(hook: Webhook) -> Any:
        log.append(f"tell {hook.url}")
        return SimpleNamespace(close=lambda seconds: log.append(f"stop {hook.url}"))

    log.clear()
    notifying = Telemetry("local", serve, report, notifier=notifier)
    for _ in range(2):
        notifying.configure(RunnerSettings(notify=hooks))
    notifying.configure(RunnerSettings(notify=hooks[1:]))
    notifying.close(lost=False)
    told = log[1:]
    assert told == [
        f"{one} ${{env:{name}}}"
        for one, name in zip(("tell", "tell", "stop", "stop", "tell", "stop"), "ABABBB", strict=True)
    ]
    log.clear()
    from_command_line = Telemetry("local", serve, report, MetricsPlace(port=9))
    from_command_line.configure(RunnerSettings(metrics=at(local=1)))
    assert log[0] == "serve 127.0.0.1:9"


def test_a_metrics_server_that_cannot_start_is_started_again_later() -> None:
    now, tries, free = [0.0], [], []

    def serve(place: MetricsPlace) -> Any:
        tries.append(now[0])
        return SimpleNamespace(close=lambda: None) if free else None

    telemetry = Telemetry("local", serve, lambda _: RunEvents(), MetricsPlace(port=9), lambda: now[0])
    telemetry.configure(RunnerSettings())
    for now[0] in (1.0, 59.0, 60.0, 61.0):
        telemetry.observe(InstanceOverview())
    free.append("the port")
    for now[0] in (120.0, 180.0, 240.0):
        telemetry.observe(InstanceOverview())
    assert tries == [0.0, 60.0, 120.0]
