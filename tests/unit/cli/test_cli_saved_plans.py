"""Saved plans: `plan --out`, `show`, and `apply FILE` after a review."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli_runs import STATE, add_settings, apply, edit, mzplan, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write(tmp_path / "p")
    apply(folder)
    return folder


def saved(folder: Path, *arguments: str) -> Path:
    path = folder.parent / "p.plan"
    assert mzplan(folder, "plan", "--out", str(path), *arguments).code == 0
    return path


def test_a_reviewed_plan_is_applied_once_even_after_an_unrelated_commit(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    shown = mzplan(folder, "show", str(path))
    assert shown.out == mzplan(folder, "plan").out
    assert mzplan(folder, "show", str(path), "--json").json() == mzplan(folder, "plan", "--json").json()
    assert mzplan(folder, "pause", "sink.few").code == 0
    ran = mzplan(folder, "apply", str(path), "--json")
    assert ran.code == 0 and ran.json()["serial"] == 3
    state = (folder / STATE).read_text()
    assert "b:9092" in state and '"override":"paused"' in state
    again = mzplan(folder, "apply", str(path), "--json")
    assert again.code == 5 and "done already" in again.error()["detail"]


def test_apply_reports_the_lineage_and_a_renamed_query(tmp_path: Path) -> None:
    folder = write(tmp_path)
    first = mzplan(folder, "apply", "--auto-approve", "--json").json()
    assert first["lineage"] == json.loads((folder / STATE).read_text())["lineage"] != ""
    before = {c["address"]: c["query"]["run_id_after"] for c in first["changes"] if "query" in c}
    edit(folder, "few: {type", "some: {lifecycle: {moved_from: few}, type")
    (moved,) = mzplan(folder, "apply", "--auto-approve", "--json").json()["changes"]
    assert (moved["action"], moved["address"]) == ("move", "sink.some")
    assert moved["query"]["run_id_before"] == before["sink.few"] is not None


def test_apply_tells_the_runners_its_parallelism(folder: Path) -> None:
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


def declare_variables(folder: Path) -> None:
    """Declare the variable `env`, which describes the source, and the unused variable `more`."""
    add_settings(folder, "variables: {env: {}, more: {default: 1}}\n")
    edit(folder, "topic: orders", 'topic: "orders", description: "${var.env}"')


def test_a_saved_plan_keeps_its_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_variables(folder)
    path = saved(folder, "--var", "env=prod", "--var", "more=secret-perhaps")
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
    assert mzplan(folder, "apply", str(path), "--var", "more=other").code == 0
    assert '"description":"prod"' in (folder / STATE).read_text()


def test_a_variables_file_in_the_project_need_not_be_named_again(folder: Path) -> None:
    declare_variables(folder)
    values = folder / "prod.yaml"
    values.write_text("env: prod\n")
    path = saved(folder, "--var-file", str(values))
    values.write_text("env: prod\nsinks: {more: {type: console, from: orders}}\n")
    assert mzplan(folder, "apply", str(path), "--json").error()["code"] == "MZ004"
    values.write_text("env: prod\n")
    assert mzplan(folder, "apply", str(path), "--json").code == 0
    assert '"description":"prod"' in (folder / STATE).read_text()
    # Without a saved plan, the file may have been forgotten, so this is an error.
    assert mzplan(folder, "plan", "--var", "env=prod", "--json").error()["code"] == "MZ004"


def test_a_saved_plan_finds_its_own_state(tmp_path: Path) -> None:
    folder = write(tmp_path / "p")
    add_settings(folder, 'state: {path: "state-${var.stage}"}\nvariables: {stage: {default: dev}}\n')
    path = saved(folder, "--var", "stage=prod")
    assert mzplan(folder, "apply", str(path), "--var", "stage=dev").code == 5
    assert not list(folder.glob("state-*/mzplan.state.json"))
    assert mzplan(folder, "apply", str(path)).code == 0
    assert [found.parent.name for found in folder.glob("state-*/mzplan.state.json")] == ["state-prod"]
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 2  # dev has nothing yet


def test_a_secret_in_a_variable_never_reaches_a_plan(tmp_path: Path) -> None:
    folder = write(tmp_path / "p")
    add_settings(folder, "state: {path: st, options: {token: '${var.token}'}}\nvariables: {token: {}}\n")
    ran = mzplan(folder, "plan", "--out", str(tmp_path / "p.plan"), "--var", "token=hunter2hunter2")
    assert ran.code == 1 and "MZ016" in ran.err and "hunter2" not in ran.out + ran.err
    assert not (tmp_path / "p.plan").exists()
    path = saved(folder, "--var", "token=${env:TOKEN}")
    assert json.loads(path.read_bytes())["plan"]["variables"] == {"token": "${env:TOKEN}"}
    assert mzplan(folder, "apply", str(path)).code == 0


def test_an_edited_or_foreign_plan_is_refused(folder: Path, tmp_path: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    path = saved(folder)
    before = (folder / STATE).read_bytes()
    text = path.read_text()
    path.write_text(text.replace("b:9092", "e:9092"))
    assert mzplan(folder, "apply", str(path)).code == 5
    path.write_text(text)
    other = write(tmp_path / "other")
    apply(other)
    ran = mzplan(other, "apply", str(path), "--json")
    assert ran.code == 5 and "another state" in ran.error()["detail"]
    assert (folder / STATE).read_bytes() == before
    assert mzplan(folder, "apply", str(path)).code == 0


def test_equal_inputs_give_equal_bytes(folder: Path) -> None:
    edit(folder, "a:9092", "b:9092")
    other = folder.parent / "other.plan"  # of a process with another seed of hashes
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "plan", "--out", str(other)]
    subprocess.run(command, check=True, capture_output=True)
    assert saved(folder).read_bytes() == other.read_bytes()


def test_plan_and_drift_write_markdown_for_reviews(folder: Path) -> None:
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


def test_a_state_edited_by_hand_is_drift(folder: Path) -> None:
    path = folder / STATE
    whole = path.read_text()
    path.write_text(whole.replace('"topic":"orders"', '"topic":"other"'))
    found = mzplan(folder, "drift", "--json", "--detailed-exitcode")
    assert found.code == 3
    kinds = {(d["address"], d["kind"]) for d in found.json()["drift"]}
    assert ("source.orders", "unmanaged-change") in kinds
    assert mzplan(folder, "apply", "--auto-approve").code == 1  # no command acts on it
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
    path = saved(folder)  # a review also reads the plan's file
    assert "\x1b" not in mzplan(folder, "show", str(path)).out
    shown = mzplan(folder, "show", str(path), "--json").json()["drift"]
    assert {(d["address"], d["kind"]) for d in shown} == kinds
