"""`environments:` of mzplan.yaml: one configuration in several places that share nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration, load_project
from mzplan.host.checkout import runtime_file
from mzplan.model.diagnostics import MzplanError
from mzplan.operations import alter_journal
from mzplan.runner import embedded
from mzplan.store.store import open_store
from tests.unit.cli_runs import PIPELINE, mzplan
from tests.unit.config_files import PROJECT, errors, write

SETTINGS = """\
version: 1
project: shop
variables: {broker: {default: a}, rows: {default: 3}, where: {}}
instances: {local: {type: dry}}
environments:
  dev:
    default: true
    variables: {where: here}
    state: {path: state/dev}
    warehouse: ./warehouse/dev
  prod:
    variables: {broker: p, where: there}
    state: {path: "state/${var.broker}"}
    warehouse: ./warehouse/prod
    instances: {big: {type: dry}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files: dict[str, str | bytes] = {"mzplan.yaml": SETTINGS, "pipeline.yaml": PIPELINE % "${var.broker}"}
    return write(tmp_path / "shop", files)


def sharing(folder: Path, one: str, other: str, top: str = "", **given: Any) -> list[str]:
    """What is wrong with two environments, as their YAML says."""
    text = f"{PROJECT}{top}environments:\n  one: {{{one}}}\n  other: {{{other}}}\n"
    return [d.summary for d in errors(folder, {"mzplan.yaml": text}, environment="one", **given)]


# --- which one


def test_an_environment_has_its_own_settings(folder: Path) -> None:
    dev, prod = load_project(folder), load_project(folder, environment="prod")
    assert (dev.environment, dev.state["path"], dev.warehouse) == ("dev", "state/dev", "./warehouse/dev")
    assert (prod.environment, prod.state["path"], prod.warehouse) == ("prod", "state/p", "./warehouse/prod")
    assert [*dev.instances] == ["local"] and [*prod.instances] == ["big"]
    assert dev.environments == prod.environments == ("dev", "prod")
    wanted = load_configuration(folder, environment="prod")
    brokers = [r.body["brokers"] for r in wanted.resources.values() if r.address.is_connection]
    assert brokers == [["p:9092"]] and wanted.warehouse == "./warehouse/prod"
    assert {r.instance for r in wanted.resources.values() if r.address.is_query} == {"big"}


def test_outside_wins_over_the_environment_and_that_over_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def brokers(environment: str, variables: dict[str, str] | None = None) -> Any:
        found = load_configuration(folder, variables, environment=environment)
        (one,) = [r.body["brokers"] for r in found.resources.values() if r.address.is_connection]
        return one, found.variables  # of these, only values from outside, which a plan lists

    assert brokers("dev") == (["a:9092"], {}) and brokers("prod") == (["p:9092"], {})
    assert brokers("prod", {"broker": "option"}) == (["option:9092"], {"broker": "option"})
    monkeypatch.setenv("MZPLAN_VAR_BROKER", "env")
    assert brokers("prod") == (["env:9092"], {"broker": "env"})


# --- what is never shared

S3 = "{backend: object-store, url: "
HERE = f"{S3}'s3://b/s', endpoint: "
PG = "{backend: postgres, user: u, database: d, "


def places(warehouse: str, state: str) -> str:
    return f"warehouse: {warehouse}, state: {state}"


def warehouses(one: str, other: str) -> tuple[str, str]:
    return places(one, "{path: s1}"), places(other, "{path: s2}")


def states(one: str, other: str) -> tuple[str, str]:
    return places("w1", one), places("w2", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        warehouses("w", "w/inner/"),
        warehouses("w", "'file:{here}/w'"),
        warehouses("'s3://b/w'", "'s3a://b/w/'"),
        warehouses("'s3://b'", "'s3n://b//w/./x'"),
        warehouses("'hdfs://nn:8020/w'", "'hdfs://nn/w'"),
        warehouses("'hdfs:///w'", "'hdfs://nn:9/w'"),
        warehouses("'abfss://c@acc.dfs.core.windows.net/w'", "'wasbs://c@acc.blob.core.windows.net/w'"),
        states("{path: s}", "{path: x/../s}"),
        states("{path: s}", "{path: link}"),
        states("{path: s}", "{path: s/inner}"),
        states("{path: 's/${var.x}'}", "{path: 's/${var.x}'}"),
        states(f"{S3}'s3://b/s'}}", f"{S3}'s3a://b/s/', region: eu-west-1}}"),
        states(f"{S3}'s3://b/s'}}", f"{S3}'s3://b/s', endpoint: 'https://s3.cn-north-1.amazonaws.com.cn'}}"),
        states(f"{HERE}'http://LOCALHOST:9000/'}}", f"{HERE}'http://127.0.0.1:9000'}}"),
        states(f"{PG}host: db.lan}}", f"{PG}host: DB.lan., port: 5432}}"),
        states(f"{PG}host: localhost}}", f"{PG}host: '::1', schema: mzplan}}"),
        states(f"{PG}host: 'a,b'}}", f"{PG}host: b, password: '${{env:P}}'}}"),
        ("warehouse: w1", "warehouse: w2"),  # both have the default state
        ("state: {path: s1}", "state: {path: s2}"),  # both have the default warehouse
        (places("w", "{path: s1}"), places("other", "{path: w/state}")),
        (places("w1", f"{S3}'s3://b/s'}}"), places("'s3a://b/'", "{path: s}")),
    ],
)
def test_a_shared_place_is_found_however_it_is_spelled(tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "link").symlink_to("s")
    other = other.replace("{here}", str(tmp_path))
    (found,) = sharing(tmp_path, one, other, "variables: {x: {}}\n", variables={"x": "1"})
    assert '"one" and "other"' in found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        warehouses("'s3://b/w'", "'s3://b/w2'"),
        warehouses("'s3://b/w'", "'gs://b/w'"),
        states(f"{PG}host: h}}", f"{PG}host: h, schema: other}}"),
        states(f"{PG}host: h}}", f"{PG}host: h, port: 5433}}"),
        states(f"{S3}'s3://b/s'}}", f"{S3}'s3://b/s', endpoint: 'http://minio:9000'}}"),
        warehouses("'s3://[::1/w'", "w"),  # no address at all
        # One's own state may lie in its own warehouse.
        (places("w", "{path: w/s}"), places("w2", "{path: w2/s}")),
    ],
)
def test_places_of_their_own_are_not_shared(tmp_path: Path, one: str, other: str) -> None:
    assert sharing(tmp_path, one, other) == []


def test_a_place_that_variables_make_shared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the value comes from outside: with it for both, and with it for the chosen one alone."""
    top = 'variables: {stage: {}, user: {default: me}}\nstate: {path: "s/${var.stage}"}\n'
    top += 'warehouse: "w/${var.stage}-${var.user}"\n'
    one, other = "variables: {stage: one}", "variables: {stage: other}"
    assert sharing(tmp_path, one, other, top) == []
    assert sharing(tmp_path, one, other, top, variables={"user": "you"}) == []
    shared = ['Environments "one" and "other" share a state']
    assert sharing(tmp_path, one, other, top, variables={"stage": "other"}) == shared
    assert sharing(tmp_path, one, other, top, variables={"stage": "third"}) == shared
    monkeypatch.setenv("MZPLAN_VAR_STAGE", "third")
    assert sharing(tmp_path, one, other, top) == shared


# --- the state records its environment


def test_a_state_belongs_to_one_environment(folder: Path, tmp_path: Path) -> None:
    """--state-config may name anything: the state itself says that it is another one's."""
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    state = json.loads((folder / "state" / "dev" / "mzplan.state.json").read_text())
    assert state["environment"] == "dev"
    shared = tmp_path / "shared.yaml"
    shared.write_text(f"state: {{path: {tmp_path / 'elsewhere'}}}\n")
    config = ("--state-config", str(shared))
    assert mzplan(folder, "apply", "--auto-approve", *config).code == 0
    pulled = str(tmp_path / "pulled.json")
    assert mzplan(folder, "state", "pull", "--out", pulled).code == 0
    commands = [[*command.split(), *config] for command in ("apply --auto-approve", "status", "state list")]
    for command in (*commands, ["pause", "source.orders", *config], ["state", "push", pulled, "--force"]):
        found = mzplan(folder, "--env", "prod", *command, "--json")
        assert (found.code, found.error()["code"]) == (7, "MZ034"), command


# --- state-config


def test_state_config_sets_the_state_of_the_chosen_environment(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(SETTINGS.replace("state/dev", str(tmp_path / "d")))
    assert load_project(folder, state_config=base).state["path"] == str(tmp_path / "d")
    assert load_project(folder, environment="prod", state_config=base).state["path"] == "state/p"
    # An environment that the file leaves out has no state there: none is guessed.
    base.write_text("environments: {qa: {state: {path: q}}}\nstate: {path: s}\n")
    with pytest.raises(MzplanError, match='has no environment "dev"'):
        load_project(folder, state_config=base)
    # The state of another environment is refused, however it is spelled.
    base.write_text(f"state: {{path: {folder}/state/p/}}\n")
    with pytest.raises(MzplanError, match="share a state"):
        load_project(folder, state_config=base)
    base.write_text(f"state: {{path: {tmp_path}/s}}\n")
    assert load_project(folder, state_config=base).environment == "dev"


# --- plans


def test_one_commit_is_promoted_from_an_environment_to_the_next(folder: Path, tmp_path: Path) -> None:
    """Planned and applied for one, then planned for the next: other digests, other comments, same changes.
    A plan is applied to its own environment only."""
    digests = set()
    for name, other in (("dev", "prod"), ("prod", "dev")):
        comment, page, plan = (tmp_path / f"{name}.{suffix}" for suffix in ("md", "html", "plan"))
        outputs = ("--out", str(plan), "--markdown", str(comment), "--html", str(page))
        made = mzplan(folder, "--env", name, "plan", *outputs)
        assert f"Environment: {name}" in made.out and f"mzplan --env {name} apply {plan}" in made.err
        shown = mzplan(folder, "show", str(plan), "--json").json()
        assert (shown["environment"], shown["summary"]["create"]) == (name, 4)
        digests.add(shown["digest"])
        states = {path: path.read_bytes() for path in folder.rglob("mzplan.state.json")}
        found = mzplan(folder, "--env", other, "apply", str(plan), "--json")
        assert (found.code, found.error()["code"]) == (5, "MZ036")
        assert f"mzplan --env {name} apply" in found.error()["hint"]
        assert {path: path.read_bytes() for path in folder.rglob("mzplan.state.json")} == states
        assert mzplan(folder, "--env", name, "apply", str(plan), "--digest", shown["digest"]).code == 0
        assert comment.read_text().startswith(f"<!-- mzplan:plan:shop:{name} -->\n")
        assert f"## mzplan plan: `shop`, environment `{name}`" in comment.read_text()
        assert f"<title>Plan of shop, environment {name}</title>" in page.read_text()
        assert mzplan(folder, "--env", name, "drift", "--markdown", str(comment)).code == 0
        assert comment.read_text().startswith(f"<!-- mzplan:drift:shop:{name} -->\n")
        assert mzplan(folder, "--env", name, "status").out.startswith(f"Serial 1, environment {name}\n")
    assert len(digests) == 2


def test_an_interrupted_edit_is_finished_by_its_own_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of another one knows nothing of it: it would forget what is committed."""
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(PIPELINE % "x")
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(alter_journal, "finish_edit", lambda *_: None)  # as if killed after the commit
        alter = "ALTER CONNECTION k SET (BROKER = 'y:9092') WITH (VALIDATE = false)"
        assert mzplan(folder, "alter", alter, "--auto-approve").code == 0
    assert "y:9092" not in pipeline.read_text()
    found = mzplan(folder, "--env", "prod", "apply", "--auto-approve", "--json")
    assert (found.code, found.error()["code"]) == (7, "MZ076") and "--env dev apply" in found.error()["hint"]
    assert mzplan(folder, "--env", "prod", "plan", "--detailed-exitcode").code == 0
    assert mzplan(folder, "--env", "dev", "apply", "--auto-approve").code == 0
    assert "y:9092" in pipeline.read_text()


# --- runners


def test_each_environment_has_a_runner_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command) or 1 / 0)
    dev, prod = load_project(folder), load_project(folder, environment="prod")
    for settings in (dev, prod):
        with pytest.raises(ZeroDivisionError):
            embedded.start(settings, open_store(settings), "local")
    assert [command[-2:] for command in started] == [["--env", "dev"], ["--env", "prod"]]
    names = [runtime_file(s, "local", suffix).name for s in (dev, prod) for suffix in ("sock", "log")]
    assert names == ["local-dev.sock", "local-dev.log", "local-prod.sock", "local-prod.log"]
    other = load_project(folder, {"broker": "q"}, environment="prod")
    assert runtime_file(other, "local", "sock").name.startswith("local-prod.")
    assert runtime_file(other, "local", "sock") != runtime_file(prod, "local", "sock")
