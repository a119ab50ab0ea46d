"""What Spark runs with: the installed release line, its jars, which are compared with the pins before any of
them runs, and the driver's Python."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import PackageNotFoundError
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from packaging.requirements import Requirement

from mzplan.host import spark_lines
from mzplan.host.spark_lines import LINES, NEWEST, OLDEST, SparkLine, installed_spark
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.kinds import resource_kind
from mzplan.spark.process import java, session, settings
from mzplan.spark.process.java import jar_name, local_jars, pinned_digests, require_pinned
from mzplan.spark.process.task_python import tasks_like_the_driver
from tests.support import refusal
from tools.pin_jars import BODIES

ROOT = Path(__file__).parents[3]
OURS = "org.x:tool:1.0"
NAME = "org.x_tool-1.0.jar"
BEFORE = jar_name(OLDEST.before_spark or "")
RIGHT = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of b"x"
SHOW = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], sys.argv[1], sep='|')"
SPARKS = "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10-src.zip:/s/jars/spark-core_2.13-4.0.5.jar"


# --- the release line


def spark_at(folder: Path, release: str) -> None:
    (folder / "jars").mkdir(parents=True)
    (folder / "jars" / f"spark-core_2.13-{release}.jar").touch()


def test_the_package_allows_exactly_the_supported_lines() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = map(Requirement, pyproject["project"]["optional-dependencies"]["runner"])
    wanted = next(one for one in named if one.name == "pyspark")
    assert all(wanted.specifier.contains(release) for line in LINES for release in line.tested)
    first, last = (int(line.spark.partition(".")[2]) for line in (OLDEST, NEWEST))
    assert not wanted.specifier.contains(f"4.{last + 1}.0") and not wanted.specifier.contains("3.5.9")
    assert [line.spark for line in LINES] == [f"4.{minor}" for minor in range(first, last + 1)]


@pytest.mark.parametrize("release", ["3.5.6", "4.3.0", "?"])
def test_another_spark_is_refused(release: str) -> None:
    told = refusal(partial(spark_lines.line_of, release))
    assert told.code == "MZ240" and release in told.summary
    assert "4.0, 4.1 and 4.2" in told.detail and f"pyspark=={NEWEST.tested[-1]}" in told.hint


def test_spark_home_or_else_the_package_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_at(tmp_path / "theirs", "4.1.3")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "theirs"))
    assert installed_spark() == "4.1.3" and spark_lines.installed_line().spark == "4.1"
    monkeypatch.delenv("SPARK_HOME")
    spark_at(tmp_path / "package", "4.2.0")
    monkeypatch.setattr(spark_lines, "_package", lambda: tmp_path / "package")
    assert installed_spark() == "4.2.0"
    monkeypatch.setattr(spark_lines, "_package", lambda: tmp_path)  # a client without jars
    monkeypatch.setattr(spark_lines, "version", lambda name: "4.0.5")
    assert installed_spark() == "4.0.5"
    monkeypatch.setattr(spark_lines, "version", Mock(side_effect=PackageNotFoundError))
    assert installed_spark() is None


def test_hadoop_packages_follow_the_line() -> None:
    named = ("org.apache.hadoop:hadoop-aws:3.4.1", "software.amazon.msk:aws-msk-iam-auth:2.3.0")
    assert OLDEST.compatible(named) == named
    assert NEWEST.compatible(named) == ("org.apache.hadoop:hadoop-aws:3.5.0", named[1])


# --- jars


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ivy's folder with one of two pinned jars."""
    pins = tmp_path / "jars.sha256"
    pins.write_text(f"# pins\n{RIGHT}  {NAME}\n{RIGHT}  {BEFORE}\n")
    monkeypatch.setattr(java, "_PINS", pins)
    for folder in ("jars", "cache/org.x/tool/jars"):
        (tmp_path / folder).mkdir(parents=True)
        name = NAME if folder == "jars" else "tool-1.0.jar"
        (tmp_path / folder / name).write_bytes(b"x")
    return tmp_path


def refused(files: list[Path], packages: str = OURS) -> Diagnostic:
    found = refusal(partial(require_pinned, files, packages))
    assert found.code == "MZ114"
    return found


def test_a_jar_that_is_not_the_pinned_one_is_refused(ivy: Path) -> None:
    jar = ivy / "jars" / NAME
    require_pinned([jar], OURS)
    jar.write_bytes(b"y")
    found = refused([jar])
    assert NAME in found.summary and RIGHT in found.detail
    assert refused([jar], f"{OURS},org.other:own:2.0"), "whoever else asks for some"
    subprocess.run(shlex.split(found.hint.partition(", and")[0]), check=True)
    assert not list(ivy.rglob("*.jar")), "the suggested command removes every copy"
    jar = ivy / "a b;id" / "jars" / NAME
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"y")
    assert shlex.split(refused([jar]).hint.partition(", and")[0]) == ["rm", str(jar)]


def test_only_requested_jars_are_accepted(ivy: Path) -> None:
    evil, own = (ivy / "jars" / f"{name}.jar" for name in ("org.evil_more-1.0", "org.other_own-2.0"))
    for jar in (evil, own):
        jar.write_bytes(b"z")
    assert evil.name in refused([ivy / "jars" / NAME, evil]).summary
    require_pinned([ivy / "jars" / NAME, own], f"org.other:own:2.0,{OURS}")
    require_pinned([own], OURS, has_others=True)


def test_only_local_jars_of_spark_s_list_are_checked() -> None:
    given = "file:///a/b%20c.jar,/d.jar,hdfs://there/e.jar,spark://driver/f.jar"
    assert local_jars(given) == [Path("/a/b c.jar"), Path("/d.jar")]
    assert local_jars(None) == []


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.spark)
def test_every_package_that_a_schema_names_is_pinned(line: SparkLine) -> None:
    packages = (resource_kind("connection", type_).packages(body)[0] for type_, body in BODIES.items())
    named = {*chain.from_iterable(packages)}
    assert len(named) > 4
    assert {*map(jar_name, (*line.packages, *line.compatible(named)))} <= pinned_digests().keys()
    assert line.before_spark is None or line.before_spark in line.packages


def test_our_lz4_is_on_the_class_path_before_spark_s(ivy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once Ivy has downloaded it, Java starts again."""
    jar = ivy / "jars" / BEFORE
    paths, ended = [], []

    def launch(conf: Any) -> Any:
        paths.append(conf.get("spark.driver.extraClassPath"))
        jar.write_bytes(b"x")  # as Ivy downloads it
        gateway = MagicMock()
        gateway.jvm.java.lang.System.getProperty.return_value = jar.as_uri()
        return gateway

    monkeypatch.setattr(session, "_launch", launch)
    monkeypatch.setattr(session, "_end", ended.append)
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda **given: None)
    given = {"spark.jars.ivy": str(ivy), "spark.driver.extraClassPath": "/own"}
    conf = settings.configuration_of("a", given, {}, line=OLDEST)
    session._start(conf, OLDEST)
    assert paths[-1] == f"{jar}:/own" and (len(paths), len(ended)) == (2, 1)


def test_java_options_come_after_our_own() -> None:
    """mzplan's options set a stack that is large enough to stop queries. Java uses the last of two values."""
    name = "spark.driver.extraJavaOptions"

    def options_with(given: dict[str, str]) -> str:
        return settings.configuration_of("a", {}, given, line=OLDEST).get(name) or ""

    options = options_with({name: "-XX:+UseSerialGC"})
    assert options.startswith("-Xss8m -XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile=")
    assert options.endswith(" -XX:+UseSerialGC")
    own = "-Dlog4j.configurationFile=/own.xml"
    assert options_with({name: own}) == f"-Xss8m -XX:+ExitOnOutOfMemoryError {own}"


# --- the script that makes Spark's Python workers use the driver's interpreter and packages


@pytest.mark.parametrize(("before", "left"), [(f"{SPARKS}:", "/mine:/too"), ("", "/mine:/other.zip")])
def test_tasks_use_the_driver_s_packages_instead_of_spark_s_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, left: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    folder = tmp_path / "a folder's"
    folder.mkdir()
    with tasks_like_the_driver(folder):
        python = os.environ["PYSPARK_PYTHON"]
    command, environment = [python, "-c", SHOW, "a word"], {"PYTHONPATH": f"{before}{left}"}
    shown = subprocess.check_output(command, env=environment, text=True)
    assert shown.strip() == f"{sys.prefix}|{left}|a word"
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_user_s_interpreter_stays_and_a_noexec_disk_needs_the_driver_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    with tasks_like_the_driver(tmp_path):
        assert os.environ["PYSPARK_PYTHON"] == "python3.12"
    assert os.environ["PYSPARK_PYTHON"] == "python3.12" and not list(tmp_path.iterdir())
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a file system mounted noexec
    with tasks_like_the_driver(tmp_path):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_cleaner_of_temporary_files_leaves_the_folder_alone() -> None:
    """systemd-tmpfiles asks for such a lock before it looks into a folder, and passes over one that it
    can't have."""
    handle = os.open(session._scratch(), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)
