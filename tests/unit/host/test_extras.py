"""Missing packages of extras are reported in time, with the command that installs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, packages_distributions
from pathlib import Path

import pytest

from mzplan.host.extras import MODULES, RUNNER, missing_extras_reported, require_extra
from mzplan.schema import plugins
from tests.support import refusal
from tests.unit.cli_runner import following
from tests.unit.cli_runs import Ran, mzplan, write

ROOT = Path(__file__).parents[3]
LINE = "pip install 'mzplan[runner]'"


WITHOUT = "import sys; sys.modules.update(dict.fromkeys({modules})); from mzplan.cli.main import main; main()"


def run_without(modules: tuple[str, ...], *arguments: str) -> Ran:
    """Run `mzplan` in another process, in which these modules aren't installed."""
    command = [sys.executable, "-c", WITHOUT.format(modules=modules), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return Ran(done.returncode, done.stdout, done.stderr)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", one)[0] for one in requirements}


def test_each_extra_brings_the_packages_that_mzplan_reports_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of = packages_distributions()
    base, brought = names(project["dependencies"]), {}
    for extra, requirements in project["optional-dependencies"].items():
        brought[extra] = names(requirements) - {"mzplan"}
        assert not brought[extra] & base
        assert {of[module][0].replace("_", "-") for module in MODULES[extra]} == brought[extra]
    assert brought.keys() == MODULES.keys()
    assert len(set().union(*brought.values())) == sum(map(len, brought.values()))  # each is in one extra
    (rest,) = (one for one in project["optional-dependencies"][RUNNER] if one.startswith("mzplan["))
    assert set(rest[len("mzplan[") : -1].split(",")) == MODULES.keys() - {RUNNER, "ui"}


@pytest.mark.parametrize("extra", MODULES)
def test_missing_package_is_reported_with_the_install_command(
    extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_extra(extra)
    module = MODULES[extra][-1]
    monkeypatch.setitem(sys.modules, module, None)  # as if it weren't installed
    for attempt in (lambda: __import__(module), lambda: require_extra(extra)):
        found = refusal(missing_extras_reported()(attempt))
        assert (found.code, found.hint) == ("MZ096", f"pip install 'mzplan[{extra}]'")
        assert module in found.summary


def test_only_a_package_that_an_extra_brings_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_such_package", "pyarrow.no_such_part"):
        with pytest.raises(ModuleNotFoundError), missing_extras_reported():
            __import__(name)
    # Also one that is installed, but can't be imported.
    (tmp_path / "fastavro.py").write_text("raise ImportError('libavro.so: cannot open shared object')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fastavro", raising=False)
    found = refusal(missing_extras_reported()(lambda: __import__("fastavro")))
    assert found.code == "MZ096" and "mzplan[avro]" in found.hint and "libavro.so" in found.detail
    # A plugin's package is looked for in the same way.
    (tmp_path / "needs_arrow.py").write_text("import pyarrow\nconnector = None\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    entry = EntryPoint(name="arrowed", value="needs_arrow:connector", group=plugins.GROUP)
    monkeypatch.setattr(plugins, "_entries", lambda: (entry,))
    found = refusal(lambda: plugins.find_plugin("arrowed"))
    assert (found.kind, found.hint) == ("missing-package", "pip install 'mzplan[collections]'")


def test_live_validation_reports_each_missing_package_once(tmp_path: Path) -> None:
    folder = write(tmp_path, "cluster", broker="127.0.0.1")
    (folder / "more.yaml").write_text(
        "connections:\n  pg: {type: postgres, host: h, database: d, user: u}\n"
        "  other: {type: kafka, brokers: ['127.0.0.1:1']}\n"
        "sources: {again: {connection: k, topic: again, format: {type: text}}}\n"
        "sinks: {pg: {connection: pg, from: orders, table: t}}\n"
    )
    command = ("apply", "--auto-approve", "--live", "--json")
    done = run_without(("confluent_kafka", "psycopg"), "-C", str(folder), *command)
    found = sorted((d["code"], d["hint"]) for d in done.json()["diagnostics"])
    expected = [("MZ096", f"pip install 'mzplan[{extra}]'") for extra in ("kafka", "postgres")]
    assert (done.code, found) == (1, expected)
    assert mzplan(folder, "state", "list").out.strip() == ""


def test_a_missing_package_of_the_state_backend_is_reported(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with (folder / "mzplan.yaml").open("a") as settings:
        settings.write("state: {backend: object-store, url: 's3://bucket/state'}\n")
    done = run_without(("obstore",), "-C", str(folder), "plan", "--json")
    assert (done.code, done.error()["code"]) == (1, "MZ096")
    assert done.error()["hint"] == "pip install 'mzplan[object-store]'"


TWO = "version: 1\nproject: shop\ninstances: {local: {type: embedded}, ci: {type: dry}}\n"


def test_missing_runner_packages_are_reported_before_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, "embedded")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for command in (("up",), ("run", "--instance", "local"), ("apply", "--auto-approve")):
        done = mzplan(folder, *command, "--json")
        assert (done.code, done.error()["hint"]) == (1, LINE), command
    assert "serial" not in done.json()
    assert mzplan(folder, "state", "list").out.strip() == ""

    # If a runner already leads, the packages for starting one aren't needed.
    with following(folder):
        assert mzplan(folder, "apply", "--auto-approve").code == 0

    # Also, no change is committed on another instance if this instance needs a runner to start.
    (folder / "mzplan.yaml").write_text(TWO)
    clicks = "{connection: k, instance: ci, topic: clicks, format: {type: text}}"
    (folder / "more.yaml").write_text(f"sources: {{clicks: {clicks}}}\n")
    files = {path: path.read_bytes() for path in (*folder.glob("*.yaml"), folder / "state/mzplan.state.json")}
    alter = ("alter", "ALTER CONNECTION k SET (BROKER 'b:9092')", "--auto-approve")
    for command in (("apply", "--auto-approve"), ("pause", "source.orders"), alter):
        done = mzplan(folder, *command, "--json")
        assert (done.code, done.error()["hint"]) == (1, LINE), command
        assert {path: path.read_bytes() for path in files} == files
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 4
