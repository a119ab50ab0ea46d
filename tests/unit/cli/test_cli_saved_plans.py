"""Saved plans: `plan --out`, `show`, and `apply FILE` after a review."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_runs import apply, mzplan, write

STATE = Path("state") / "mzplan.state.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write(tmp_path / "p")
    apply(folder)
    return folder


def edit(folder: Path, before: str, after: str) -> None:
    path = folder / "pipeline.yaml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def saved(folder: Path, *arguments: str) -> Path:
    path = folder.parent / "p.plan"
    assert mzplan(folder, "plan", "--out", str(path), *arguments).code == 0
    return path


def test_what_was_reviewed_is_applied(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    shown = mzplan(folder, "show", str(path))
    assert shown.out == mzplan(folder, "plan").out
    assert mzplan(folder, "show", str(path), "--json").json() == mzplan(folder, "plan", "--json").json()
    assert mzplan(folder, "apply", str(path)).code == 0
    assert "b:9092" in (folder / STATE).read_text()
    again = mzplan(folder, "apply", str(path), "--json")
    assert again.code == 5 and "done already" in again.error()["detail"]


def test_an_unrelated_commit_does_not_invalidate(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    assert mzplan(folder, "pause", "sink.few").code == 0
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 0 and ran.json()["serial"] == 3
    state = (folder / STATE).read_text()
    assert "b:9092" in state and '"override":"paused"' in state


def test_a_plan_without_changes(folder: Path) -> None:
    path = saved(folder)
    assert mzplan(folder, "pause", "sink.few").code == 0
    ran = mzplan(folder, "apply", str(path))
    assert ran.code == 0 and "No changes" in ran.out
    edit(folder, "a:9092", "b:9092")
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 5 and "connection.k would also update" in ran.error()["detail"]


def test_what_apply_tells_of_a_new_project_and_of_a_new_name(tmp_path: Path) -> None:
    folder = write(tmp_path)
    first = mzplan(folder, "apply", "--auto-approve", "--json").json()
    assert first["lineage"] == json.loads((folder / STATE).read_text())["lineage"] != ""
    before = {c["address"]: c["query"]["run_id_after"] for c in first["changes"] if "query" in c}
    edit(folder, "few: {type", "some: {lifecycle: {moved_from: few}, type")
    (moved,) = mzplan(folder, "apply", "--auto-approve", "--json").json()["changes"]
    assert (moved["action"], moved["address"]) == ("move", "sink.some")
    assert moved["query"]["run_id_before"] == before["sink.few"] is not None


def test_how_much_is_started_at_once_is_told_to_the_runners(folder: Path) -> None:
    noted = folder / "state" / "parallelism.json"
    assert mzplan(folder, "apply", "--auto-approve", "--parallelism", "2").code == 0
    assert not noted.exists()  # nothing is committed
    edit(folder, "a:9092", "b:9092")
    assert mzplan(folder, "apply", "--auto-approve", "--parallelism", "2").code == 0
    assert json.loads(noted.read_text()) == {"format_version": 1, "parallelism": 2, "serial": 2}
    edit(folder, "b:9092", "c:9092")
    assert mzplan(folder, "apply", str(saved(folder)), "--parallelism", "3").code == 0
    assert json.loads(noted.read_text())["serial"] == 3
    assert "parallelism.json" in (folder / "state" / ".gitignore").read_text()
    assert mzplan(folder, "apply", "--auto-approve", "--parallelism", "0").code == 64


def test_a_change_of_the_files_does(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    before = (folder / STATE).read_bytes()
    edit(folder, "b:9092", "c:9092")
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 5 and "connection.k would become something else (brokers[0])" in ran.error()["detail"]
    assert (folder / STATE).read_bytes() == before
    edit(folder, "c:9092", "b:9092")
    edit(folder, "rows: 3", "rows: 4")
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 5 and "sink.few would also update" in ran.error()["detail"]


def test_the_variables_of_the_plan_are_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = folder / "mzplan.yaml"
    project.write_text(project.read_text() + "variables: {env: {}, unused: {default: 1}}\n")
    edit(folder, "topic: orders", 'topic: "orders", description: "${var.env}"')
    path = saved(folder, "--var", "env=prod", "--var", "unused=secret-perhaps")
    assert json.loads(path.read_bytes())["plan"]["variables"] == {"env": "prod"}
    assert "Variables: env=prod\n" in mzplan(folder, "show", str(path)).out
    assert mzplan(folder, "show", str(path), "--json").json()["variables"] == {"env": "prod"}
    before = (folder / STATE).read_bytes()
    values = folder.parent / "values.yaml"
    values.write_text("env: test\n")
    for given in (("--var", "env=test"), ("--var-file", str(values))):
        ran = mzplan(folder, "apply", str(path), *given, "--json")
        assert ran.code == 5 and ran.error()["code"] == "MZ036" and given[0] in ran.error()["detail"]
    monkeypatch.setenv("MZPLAN_VAR_ENV", "another")
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 5 and "MZPLAN_VAR_ENV" in ran.error()["detail"]
    assert (folder / STATE).read_bytes() == before
    monkeypatch.setenv("MZPLAN_VAR_ENV", "prod")
    assert mzplan(folder, "apply", str(path), "--var", "unused=other").code == 0
    assert '"description":"prod"' in (folder / STATE).read_text()


def test_a_file_of_variables_in_the_project_need_not_be_named_again(folder: Path) -> None:
    project = folder / "mzplan.yaml"
    project.write_text(project.read_text() + "variables: {env: {}, more: {default: 1}}\n")
    edit(folder, "topic: orders", 'topic: "orders", description: "${var.env}"')
    values = folder / "prod.yaml"
    values.write_text("env: prod\n")
    path = saved(folder, "--var-file", str(values))
    values.write_text("env: prod\nsinks: {more: {type: console, from: orders}}\n")
    assert mzplan(folder, "apply", str(path), "--json").error()["code"] == "MZ004"
    values.write_text("env: prod\n")
    assert mzplan(folder, "apply", str(path), "--json").code == 0
    assert '"description":"prod"' in (folder / STATE).read_text()
    # Only of a plan: without one it is a mistake, as it may have been forgotten.
    assert mzplan(folder, "plan", "--var", "env=prod", "--json").error()["code"] == "MZ004"


def test_the_hint_allows_what_the_plan_replaces(folder: Path) -> None:
    path = folder.parent / "p.plan"
    ran = mzplan(folder, "plan", "--out", str(path), "--replace", "source.orders")
    assert f"mzplan apply {path} --allow-replace\n" in ran.err
    assert mzplan(folder, "apply", str(path), "--allow-replace").code == 0
    edit(folder, "a:9092", "b:9092")
    assert mzplan(folder, "plan", "--out", str(path)).err.endswith(f"mzplan apply {path}\n")


def test_a_plan_finds_the_state_that_it_was_made_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "p")
    settings = folder / "mzplan.yaml"
    settings.write_text(
        settings.read_text() + 'state: {path: "state-${var.stage}"}\nvariables: {stage: {default: dev}}\n'
    )
    path = saved(folder, "--var", "stage=prod")
    assert mzplan(folder, "apply", str(path), "--var", "stage=dev").code == 5
    assert not list(folder.glob("state-*/mzplan.state.json"))
    assert mzplan(folder, "apply", str(path)).code == 0
    assert [found.parent.name for found in folder.glob("state-*/mzplan.state.json")] == ["state-prod"]
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 2  # dev has nothing yet


def test_a_variable_is_no_way_for_a_secret_into_a_plan(tmp_path: Path) -> None:
    folder = write(tmp_path / "p")
    settings = folder / "mzplan.yaml"
    settings.write_text(
        settings.read_text() + "state: {path: st, options: {token: '${var.token}'}}\nvariables: {token: {}}\n"
    )
    ran = mzplan(folder, "plan", "--out", str(tmp_path / "p.plan"), "--var", "token=hunter2hunter2")
    assert ran.code == 1 and "MZ016" in ran.err and "hunter2" not in ran.out + ran.err
    assert not (tmp_path / "p.plan").exists()
    path = saved(folder, "--var", "token=${env:TOKEN}")
    assert json.loads(path.read_bytes())["plan"]["variables"] == {"token": "${env:TOKEN}"}
    assert mzplan(folder, "apply", str(path)).code == 0


def test_tampered_and_foreign_plans_are_refused(folder: Path, tmp_path: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    before = (folder / STATE).read_bytes()
    document = json.loads(path.read_bytes())
    text = path.read_text()
    path.write_text(text.replace("b:9092", "e:9092"))
    assert mzplan(folder, "apply", str(path)).code == 5
    # Even with a checksum that fits: it is not what the files declare.
    plan: Any = json.loads(text.replace("b:9092", "e:9092"))["plan"]
    checksum = hashlib.sha256(json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**document, "checksum": f"sha256:{checksum}", "plan": plan}))
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 5 and ran.error()["code"] == "MZ036"
    path.write_text(text)
    other = write(tmp_path / "other")
    apply(other)
    ran = mzplan(other, "apply", str(path), "--json")
    assert ran.code == 5 and "another state" in ran.error()["detail"]
    assert (folder / STATE).read_bytes() == before
    assert mzplan(folder, "apply", str(path)).code == 0


def test_equal_inputs_give_equal_bytes(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    found = set()
    for seed in ("1", "2", "3"):
        path = folder.parent / f"{seed}.plan"
        subprocess.run(
            [sys.executable, "-m", "mzplan", "-C", str(folder), "plan", "--out", str(path), "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        found.add(path.read_bytes())
    assert len(found) == 1


def test_comments_for_reviews_and_drift_jobs(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    comment, report = folder / "c.md", folder / "d.md"
    ran = mzplan(folder, "plan", "--markdown", str(comment), "--detailed-exitcode", "--json")
    assert ran.code == 2 and ran.json()["summary"]["restart"] == 1
    assert "> **1 query restarts** from its checkpoint (1 elsewhere): `source.orders`" in comment.read_text()
    assert mzplan(folder, "drift", "--markdown", str(report)).code == 0
    assert "**No drift.**" in report.read_text()
    (folder / "state" / "status" / "local.json").unlink()
    ran = mzplan(folder, "drift", "--markdown", str(report), "--json", "--detailed-exitcode")
    assert ran.code == 3
    queries = ["sink.few", "sink.out", "source.orders"]
    cause = {"kind": "missing-query", "detail": "its runner does not report it"}
    one = [{"address": "sink.few", **cause, "addresses": queries}]
    assert ran.json()["drift"] == mzplan(folder, "plan", "--json").json()["drift"] == one
    assert "| `missing-query` | 3 |" in report.read_text()
    for command in ("plan", "drift"):
        ran = mzplan(folder, command, "--markdown", str(folder / "no" / "c.md"), "--json")
        assert ran.code == 1 and ran.error()["code"] == "MZ035"


def test_a_state_that_was_edited_by_hand_is_drift(folder: Path) -> None:
    path = folder / STATE
    whole = path.read_text()
    path.write_text(whole.replace('"topic":"orders"', '"topic":"other"'))
    found = mzplan(folder, "drift", "--json", "--detailed-exitcode")
    assert found.code == 3
    kinds = {(d["address"], d["kind"]) for d in found.json()["drift"]}
    assert ("source.orders", "unmanaged-change") in kinds
    assert mzplan(folder, "apply", "--auto-approve").code == 1  # and nothing acts on it
    path.write_text(whole.replace('"serial": 1', '"serial": 9'))
    (item, *_) = mzplan(folder, "drift", "--json").json()["drift"]
    assert item["address"] == "state" and item["kind"] == "unmanaged-change"
    path.write_text("{")
    assert mzplan(folder, "drift").code == 1


def test_drift_cannot_write_to_the_terminal(folder: Path) -> None:
    """Errors quote records, and anybody may name a foreign query: both are escaped."""
    status = folder / "state" / "status" / "local.json"
    found = json.loads(status.read_text())
    evil = "\x1b]0;owned\x07\nsource.good: fine | `x` </details>"
    found["observations"]["source.orders"].update(condition="failed", error=evil * 50)
    found["foreign"] = [evil]
    status.write_text(json.dumps(found))
    report = folder / "d.md"
    ran = mzplan(folder, "drift", "--markdown", str(report), "--detailed-exitcode")
    assert ran.code == 3 and "\x1b" not in ran.out and len(ran.out.splitlines()) == 2, ran.out
    assert "\x1b" not in report.read_text() and "</details>\n" not in report.read_text().partition("```")[0]
    kinds = {(d["address"], d["kind"]) for d in mzplan(folder, "drift", "--json").json()["drift"]}
    assert kinds == {("source.orders", "failed-query"), ("instance.local", "foreign-query")}
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)  # what a review sees is in the plan's file, too
    assert "\x1b" not in mzplan(folder, "show", str(path)).out
    shown = mzplan(folder, "show", str(path), "--json").json()["drift"]
    assert {(d["address"], d["kind"]) for d in shown} == kinds
