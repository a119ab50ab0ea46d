"""`environments:` of mzplan.yaml: one configuration in several places, none of which reaches another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from mzplan.config import load_configuration, load_project
from mzplan.host.local_folder import runtime_file
from mzplan.model.diagnostics import MzplanError
from mzplan.runner import embedded
from mzplan.store.store import open_store
from tests.unit.cli_runs import PIPELINE, mzplan, write
from tests.unit.config_files import brief, errors

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
    return shop(tmp_path / "shop")


def shop(folder: Path, settings: str = SETTINGS) -> Path:
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(settings)
    (folder / "pipeline.yaml").write_text(PIPELINE % "${var.broker}")
    return folder


def sharing(folder: Path, one: str, other: str, top: str = "", **given: Any) -> list[str]:
    """What is wrong with two environments, as their YAML says."""
    text = f"version: 1\nproject: shop\n{top}environments:\n  one: {{{one}}}\n  other: {{{other}}}\n"
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
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broker(variables: dict[str, str] | None = None, *files: Path, environment: str = "prod") -> Any:
        found = load_configuration(folder, variables, files, environment=environment)
        (one,) = [r.body["brokers"][0] for r in found.resources.values() if r.address.is_connection]
        return one.removesuffix(":9092")

    assert broker(environment="dev") == "a" and broker() == "p"
    monkeypatch.setenv("MZPLAN_VAR_BROKER", "from_env")
    assert broker() == "from_env"
    file = tmp_path / "b.vars.yaml"
    file.write_text("broker: from_file\n")
    assert broker(None, file) == "from_file"
    assert broker({"broker": "from_option"}, file) == "from_option"
    # What the environment itself says is no value from outside: a plan does not list it.
    monkeypatch.delenv("MZPLAN_VAR_BROKER")
    assert load_configuration(folder, environment="prod").variables == {}
    assert load_configuration(folder, {"broker": "a"}, environment="prod").variables == {"broker": "a"}


def test_which_environment_is_meant_is_never_guessed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mzplan(folder, "--env", "prd", "plan", "--json")
    assert found.code == 64 and found.error()["code"] == "MZ245"
    assert "dev" in found.error()["detail"] and found.error()["hint"] == 'did you mean "prod"?'
    assert mzplan(folder, "--env", "", "plan").code == 64
    monkeypatch.setenv("MZPLAN_ENV", "prod")
    assert mzplan(folder, "plan", "--json").json()["environment"] == "prod"
    assert mzplan(folder, "plan", "--env", "dev", "--json").json()["environment"] == "dev"
    monkeypatch.delenv("MZPLAN_ENV")
    assert mzplan(folder, "plan", "--json").json()["environment"] == "dev"
    (folder / "mzplan.yaml").write_text(SETTINGS.replace("    default: true\n", ""))
    found = mzplan(folder, "plan", "--json")
    assert found.code == 64 and found.error()["hint"].startswith("name one: mzplan --env dev")
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\nvariables: {broker: {default: a}}\n")
    found = mzplan(folder, "--env", "prod", "plan", "--json")
    assert found.code == 64 and "no `environments:`" in found.error()["detail"]


def test_mistakes_of_entries_have_their_place(tmp_path: Path) -> None:
    text = """\
        version: 1
        project: shop
        variables: {port: {default: 5432}, user: {}}
        environments:
          dev: {default: true, state: {path: a}, warehouse: wa}
          prod:
            default: true
            variables: {prot: 1}
            warehouse: wb
            state: {backend: postgres, host: h, port: "${var.port}", database: d, user: "${var.user}"}
          qa: {state: {path: c, password: secret}, warehouse: wc, colour: red}
        """
    found = brief(errors(tmp_path, {"mzplan.yaml": text}, environment="dev", variables={"user": "u"}))
    assert found == [
        'mzplan.yaml:7:14 MZ245 Two environments are the default: "dev" and "prod"',
        'mzplan.yaml:8:17 MZ015 Unknown variable "prot"',
        'mzplan.yaml:11:35 MZ016 Secret written out in "password"',
        'mzplan.yaml:11:59 MZ004 Unknown key "colour"',
    ]


@pytest.mark.parametrize("odd", ["{a: 1}", "[[a]]", "5", "null"])
def test_what_is_no_path_is_a_mistake_and_no_defect(tmp_path: Path, odd: str) -> None:
    for key in (f"state: {{path: {odd}}}", f"warehouse: {odd}"):
        for where, environment in ((key, ""), (f"environments: {{dev: {{{key}}}}}", "dev")):
            text = f"version: 1\nproject: shop\n{where}\n"
            found = errors(tmp_path / key, {"mzplan.yaml": text}, environment=environment)
            assert [d.code for d in found] == ["MZ005"], where


def test_what_is_no_address_is_no_defect(tmp_path: Path) -> None:
    for key in ("warehouse: 's3://[::1/w'", "state: {path: 'file://[::1/s'}"):
        write(tmp_path / key[:5])
        with (tmp_path / key[:5] / "mzplan.yaml").open("a") as file:
            file.write(f"environments: {{one: {{default: true, {key}}}}}\n")
        assert mzplan(tmp_path / key[:5], "plan").code == 0


def test_the_value_of_an_unknown_variable_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "mzplan.yaml").open("a") as file:
        file.write("environments: {one: {default: true, variables: {token: hunter22}}}\n")
    found = mzplan(tmp_path, "plan")
    assert "MZ015" in found.err and "hunter22" not in found.err


@pytest.mark.parametrize("odd", ["[1]", "5", "null", "text"])
def test_an_entry_that_is_no_mapping_is_a_mistake(tmp_path: Path, odd: str) -> None:
    text = f"version: 1\nproject: shop\nenvironments:\n  a: {{warehouse: w}}\n  b: {odd}\n"
    for environment in ("a", "b"):
        found = errors(tmp_path, {"mzplan.yaml": text}, environment=environment)
        assert "MZ005" in [d.code for d in found if str(d.range).startswith("mzplan.yaml:5:")], environment


def test_another_one_may_need_what_only_it_is_given(tmp_path: Path) -> None:
    text = """\
        version: 1
        project: shop
        variables: {port: {default: 1}}
        environments:
          dev: {state: {path: a}, warehouse: wa}
          prod: {warehouse: "s3://${var.port}", state: {path: "${nothing}"}}
        """
    assert errors(tmp_path, {"mzplan.yaml": text}, environment="dev") == []
    assert [d.code for d in errors(tmp_path, {"mzplan.yaml": text}, environment="prod")] == ["MZ017"]


# --- what is never shared

S3 = "state: {backend: object-store, url: "
PG = "state: {backend: postgres, user: u, database: d, "


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("warehouse: w1", "warehouse: w2"),  # both have the default state
        ("state: {path: s1}", "state: {path: s2}"),  # both have the default warehouse
        ("warehouse: w1, state: {path: s}", "warehouse: w2, state: {path: ./s/}"),
        ("warehouse: w1, state: {path: s}", "warehouse: w2, state: {path: link}"),
        ("warehouse: w1, state: {path: s}", "warehouse: w2, state: {path: x/../s}"),
        ("warehouse: w1, state: {path: s}", "warehouse: w2, state: {path: s/inner}"),
        ("warehouse: w, state: {path: s1}", "warehouse: w/inner/, state: {path: s2}"),
        ("warehouse: w, state: {path: s1}", "warehouse: 'file:{here}/w', state: {path: s2}"),
        ("warehouse: w, state: {path: s1}", "warehouse: other, state: {path: w/state}"),
        ("warehouse: w1, state: {path: 's/${var.x}'}", "warehouse: w2, state: {path: 's/${var.x}'}"),
        ("warehouse: 's3://b/w', state: {path: s1}", "warehouse: 's3a://b/w/', state: {path: s2}"),
        ("warehouse: 's3://b', state: {path: s1}", "warehouse: 's3n://b//w/./x', state: {path: s2}"),
        ("warehouse: 'hdfs://nn:8020/w', state: {path: s1}", "warehouse: 'hdfs://nn/w', state: {path: s2}"),
        ("warehouse: 'hdfs:///w', state: {path: s1}", "warehouse: 'hdfs://nn:9/w', state: {path: s2}"),
        (
            f"warehouse: w1, {S3}'s3://b/s'}}",
            f"warehouse: w2, {S3}'s3://b/s', endpoint: 'https://s3.cn-north-1.amazonaws.com.cn'}}",
        ),
        (
            "warehouse: 'abfss://c@acc.dfs.core.windows.net/w', state: {path: s1}",
            "warehouse: 'wasbs://c@acc.blob.core.windows.net/w', state: {path: s2}",
        ),
        (f"warehouse: w1, {S3}'s3://b/s'}}", f"warehouse: w2, {S3}'s3a://b/s/', region: eu-west-1}}"),
        (f"warehouse: w1, {S3}'s3://b/s'}}", "warehouse: 's3a://b/', state: {path: s}"),
        (
            f"warehouse: w1, {S3}'s3://b/s', endpoint: 'http://LOCALHOST:9000/'}}",
            f"warehouse: w2, {S3}'s3://b/s', endpoint: 'http://127.0.0.1:9000'}}",
        ),
        (f"warehouse: w1, {PG}host: db.lan}}", f"warehouse: w2, {PG}host: DB.lan., port: 5432}}"),
        (f"warehouse: w1, {PG}host: localhost}}", f"warehouse: w2, {PG}host: '::1', schema: mzplan}}"),
        (f"warehouse: w1, {PG}host: 'a,b'}}", f"warehouse: w2, {PG}host: b, password: '${{env:P}}'}}"),
    ],
)
def test_one_place_is_seen_however_it_is_spelled(tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "link").symlink_to("s")
    other = other.replace("{here}", str(tmp_path))
    found = sharing(tmp_path, one, other, "variables: {x: {}}\n", variables={"x": "1"})
    assert len(found) == 1 and '"one" and "other"' in found[0], found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("warehouse: w, state: {path: s}", "warehouse: w2, state: {path: s2}"),
        ("warehouse: 's3://b/w', state: {path: s}", "warehouse: 's3://b/w2', state: {path: s2}"),
        ("warehouse: 's3://b/w', state: {path: s}", "warehouse: 'gs://b/w', state: {path: s2}"),
        (f"warehouse: w1, {PG}host: h}}", f"warehouse: w2, {PG}host: h, schema: other}}"),
        (f"warehouse: w1, {PG}host: h}}", f"warehouse: w2, {PG}host: h, port: 5433}}"),
        (
            f"warehouse: w1, {S3}'s3://b/s'}}",
            f"warehouse: w2, {S3}'s3://b/s', endpoint: 'http://minio:9000'}}",
        ),
        # One's own state may lie in its own warehouse.
        ("warehouse: w, state: {path: w/s}", "warehouse: w2, state: {path: w2/s}"),
    ],
)
def test_places_of_their_own(tmp_path: Path, one: str, other: str) -> None:
    assert sharing(tmp_path, one, other) == []


def test_what_variables_make_one_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_shared_place_is_shown_where_it_is(tmp_path: Path) -> None:
    text = """\
        version: 1
        project: shop
        environments:
          one: {state: {path: s1}, warehouse: lake}
          other:
            state: {path: s2}
            warehouse: ./lake/other
        """
    (found,) = errors(tmp_path, {"mzplan.yaml": text}, environment="one")
    assert str(found.range) == "mzplan.yaml:7:5" and "mzplan.yaml:4:28" in found.detail
    assert found.code == "MZ246"
    assert found.summary.endswith("the warehouse of one is inside the warehouse of the other")
    assert "one has lake (" in found.detail and "other has ./lake/other." in found.detail


# --- the state knows whose it is


def test_a_state_is_of_one_environment(folder: Path, tmp_path: Path) -> None:
    """--state-config may name anything: the state itself says that it is another one's."""
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    state = json.loads((folder / "state" / "dev" / "mzplan.state.json").read_text())
    assert state["environment"] == "dev"
    shared = tmp_path / "shared.yaml"
    shared.write_text(f"state: {{path: {tmp_path / 'elsewhere'}}}\n")
    config = ("--state-config", str(shared))
    assert mzplan(folder, "apply", "--auto-approve", *config).code == 0
    for command in (["apply", "--auto-approve"], ["status"], ["pause", "source.orders"], ["state", "list"]):
        found = mzplan(folder, "--env", "prod", *command, "--json", *config)
        assert (found.code, found.error()["code"]) == (7, "MZ034"), command
    pulled = tmp_path / "pulled.json"
    assert mzplan(folder, "state", "pull", "--out", str(pulled)).code == 0
    found = mzplan(folder, "--env", "prod", "state", "push", str(pulled), "--force", "--json")
    assert (found.code, found.error()["code"]) == (7, "MZ034")


def test_an_environment_may_be_renamed(folder: Path) -> None:
    assert mzplan(folder, "--env", "prod", "apply", "--auto-approve").code == 0
    (folder / "mzplan.yaml").write_text(SETTINGS.replace("  prod:", "  live:"))
    assert mzplan(folder, "--env", "live", "plan", "--detailed-exitcode").code == 0
    assert mzplan(folder, "--env", "live", "pause", "source.orders").code == 0
    state = json.loads((folder / "state" / "p" / "mzplan.state.json").read_text())
    assert state["environment"] == "live" and state["serial"] == 2


def test_a_state_of_before_there_were_environments_is_taken_over(folder: Path) -> None:
    before = (
        SETTINGS[: SETTINGS.index("environments:")] + "state: {path: state/dev}\nwarehouse: ./warehouse/dev\n"
    )
    (folder / "mzplan.yaml").write_text(before)
    assert mzplan(folder, "apply", "--auto-approve", "--var", "where=x").code == 0
    (folder / "mzplan.yaml").write_text(SETTINGS)
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 0


# --- state-config


def test_state_config_says_the_state_of_the_chosen_environment(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(SETTINGS.replace("state/dev", str(tmp_path / "d")))
    assert load_project(folder, state_config=base).state["path"] == str(tmp_path / "d")
    assert load_project(folder, environment="prod", state_config=base).state["path"] == "state/p"
    # One that is not in it has no state there; what is not said must not be guessed.
    base.write_text("environments: {qa: {state: {path: q}}}\nstate: {path: s}\n")
    with pytest.raises(MzplanError, match='has no environment "dev"'):
        load_project(folder, state_config=base)
    # That of another one is not taken, whatever it is called.
    base.write_text(f"state: {{path: {folder}/state/p/}}\n")
    with pytest.raises(MzplanError, match="share a state"):
        load_project(folder, state_config=base)
    base.write_text(f"state: {{path: {tmp_path}/s}}\n")
    assert load_project(folder, state_config=base).environment == "dev"


# --- plans


def test_the_plan_of_one_is_not_applied_to_another(folder: Path, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan")
    made = mzplan(folder, "--env", "prod", "plan", "--out", plan)
    assert "Environment: prod" in made.out and f"mzplan --env prod apply {plan}" in made.err
    assert mzplan(folder, "show", plan, "--json").json()["environment"] == "prod"
    found = mzplan(folder, "apply", plan, "--json")
    assert (found.code, found.error()["code"]) == (5, "MZ036")
    assert "mzplan --env prod apply" in found.error()["hint"]
    assert not (folder / "state").exists()
    assert mzplan(folder, "--env", "prod", "apply", plan).code == 0
    assert not (folder / "state" / "dev").exists()


def test_the_same_commit_is_promoted(folder: Path, tmp_path: Path) -> None:
    """Planned and applied for one, then planned for the next: other digests, other comments, same changes."""
    comments, digests = {}, set()
    for name in ("dev", "prod"):
        comment, plan = tmp_path / f"{name}.md", str(tmp_path / name)
        made = mzplan(
            folder, "--env", name, "plan", "--out", plan, "--markdown", str(comment), "--json"
        ).json()
        assert made["summary"]["create"] == 4
        digests.add(made["digest"])
        assert mzplan(folder, "--env", name, "apply", plan, "--digest", made["digest"]).code == 0
        comments[name] = comment.read_text()
        assert comments[name].startswith(f"<!-- mzplan:plan:shop:{name} -->\n")
        assert f"## mzplan plan: `shop`, environment `{name}`" in comments[name]
        status = mzplan(folder, "--env", name, "status", "--json").json()
        assert status["environment"] == name and status["serial"] == 1
        assert mzplan(folder, "--env", name, "status").out.startswith(f"Serial 1, environment {name}\n")
    assert len(digests) == 2
    drift = tmp_path / "drift.md"
    assert mzplan(folder, "drift", "--markdown", str(drift)).code == 0
    assert drift.read_text().startswith("<!-- mzplan:drift:shop:dev -->\n")
    page = tmp_path / "plan.html"
    assert mzplan(folder, "--env", "prod", "plan", "--html", str(page)).code == 0
    assert "<title>Plan of shop, environment prod</title>" in page.read_text()


def test_an_interrupted_edit_is_finished_by_its_own_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of another one knows nothing of it: it would forget what is committed."""
    from mzplan.operations import alter_journal

    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(PIPELINE % "x")
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(alter_journal, "settle", lambda *_: None)  # as if killed after the commit
        alter = "ALTER CONNECTION k SET (BROKER = 'y:9092') WITH (VALIDATE = false)"
        assert mzplan(folder, "alter", alter, "--auto-approve").code == 0
    assert "y:9092" not in pipeline.read_text()
    found = mzplan(folder, "--env", "prod", "apply", "--auto-approve", "--json")
    assert (found.code, found.error()["code"]) == (7, "MZ076") and "--env dev apply" in found.error()["hint"]
    assert mzplan(folder, "--env", "prod", "plan", "--detailed-exitcode").code == 0
    assert mzplan(folder, "--env", "dev", "apply", "--auto-approve").code == 0
    assert "y:9092" in pipeline.read_text()


# --- validate


def test_validate_looks_at_every_environment(folder: Path) -> None:
    found = mzplan(folder, "validate")
    assert found.out == "Valid in each environment: dev (4 resources), prod (4 resources).\n"
    assert mzplan(folder, "validate", "--env", "prod").out == "Valid: 4 resources.\n"
    more = folder / "more.yaml"
    more.write_text("sinks: {more: {type: console, from: orders, instance: local}}\n")
    found = mzplan(folder, "validate", "--json")
    assert found.code == 1 and found.error()["summary"].endswith("(environment prod)")
    assert mzplan(folder, "validate", "--env", "dev").code == 0
    more.write_text("sinks: {more: {type: console, from: nobody}}\n")  # in both: said once
    assert not mzplan(folder, "validate", "--json").error()["summary"].endswith(")")


# --- runners


def test_runners_of_two_environments_live_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Started:
        def __init__(self, command: list[str], **_: object):
            started.append(command)
            raise OSError

    monkeypatch.setattr("mzplan.runner.embedded.subprocess.Popen", Started)
    dev, prod = load_project(folder), load_project(folder, environment="prod")
    for settings in (dev, prod):
        with pytest.raises(OSError):
            embedded.start(settings, open_store(settings), "local")
    assert [command[-2:] for command in started] == [["--env", "dev"], ["--env", "prod"]]
    names = [runtime_file(s, "local", suffix).name for s in (dev, prod) for suffix in ("sock", "log")]
    assert names == ["local-dev.sock", "local-dev.log", "local-prod.sock", "local-prod.log"]
    other = load_project(folder, {"broker": "q"}, environment="prod")
    assert runtime_file(other, "local", "sock").name.startswith("local-prod.")
    assert runtime_file(other, "local", "sock") != runtime_file(prod, "local", "sock")


def test_what_lies_in_any_warehouse_is_no_configuration(folder: Path) -> None:
    for place in ("warehouse/dev", "warehouse/prod", "state/dev", "state/p"):
        (folder / place).mkdir(parents=True)
        (folder / place / "part.yaml").write_text("sources: {x: {type: nonsense}}\n")
    assert mzplan(folder, "plan").code == 0
    assert mzplan(folder, "--env", "prod", "plan").code == 0


def test_the_shell_completes_environments(folder: Path) -> None:
    from mzplan.cli.arguments import ENVIRONMENT
    from mzplan.cli.main import cli

    context = cli.make_context("mzplan", ["-C", str(folder), "plan"], resilient_parsing=True)
    option = click.Option(["--env"])
    assert [item.value for item in ENVIRONMENT.shell_complete(context, option, "p")] == ["prod"]


def test_a_project_without_environments_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    settings = load_project(tmp_path)
    assert (settings.environment, settings.environments, settings.variant) == ("", (), "")
