"""mzplan.spark.jars: the jars that Ivy resolved are compared with the pins before any of them runs."""

from __future__ import annotations

import shlex
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from mzplan.host.spark_lines import LINES, OLDEST, SparkLine
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.kinds import resource_kind
from mzplan.spark import jars, session, settings
from mzplan.spark.jars import jar_name, local_jars, pinned_digests, require_pinned
from tools.pin_jars import BODIES

OURS = "org.x:tool:1.0"
NAME = "org.x_tool-1.0.jar"
BEFORE = jar_name(OLDEST.before_spark or "")
RIGHT = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of b"x"


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ivy's folder with one pinned jar."""
    pins = tmp_path / "jars.sha256"
    pins.write_text(f"# pins\n{RIGHT}  {NAME}\n")
    monkeypatch.setattr(jars, "_PINS", pins)
    for folder in ("jars", "cache/org.x/tool/jars"):
        (tmp_path / folder).mkdir(parents=True)
        name = NAME if folder == "jars" else "tool-1.0.jar"
        (tmp_path / folder / name).write_bytes(b"x")
    return tmp_path


def refusal(files: list[Path], packages: str = OURS) -> Diagnostic:
    with pytest.raises(MzplanError) as caught:
        require_pinned(files, packages)
    (found,) = caught.value.diagnostics
    assert found.code == "MZ114"
    return found


def test_a_jar_that_is_not_the_pinned_one_is_refused(ivy: Path) -> None:
    jar = ivy / "jars" / NAME
    require_pinned([jar], OURS)
    jar.write_bytes(b"y")
    found = refusal([jar])
    assert NAME in found.summary and RIGHT in found.detail
    assert refusal([jar], f"{OURS},org.other:own:2.0"), "whoever else asks for some"
    subprocess.run(shlex.split(found.hint.partition(", and")[0]), check=True)
    assert not list(ivy.rglob("*.jar")), "the suggested command removes every copy"
    jar = ivy / "a b;id" / "jars" / NAME
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"y")
    assert shlex.split(refusal([jar]).hint.partition(", and")[0]) == ["rm", str(jar)]


def test_only_requested_jars_are_accepted(ivy: Path) -> None:
    evil, own = (ivy / "jars" / f"{name}.jar" for name in ("org.evil_more-1.0", "org.other_own-2.0"))
    for jar in (evil, own):
        jar.write_bytes(b"z")
    assert evil.name in refusal([ivy / "jars" / NAME, evil]).summary
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


def test_our_lz4_is_on_the_class_path_before_spark_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once Ivy has downloaded it, Java starts again."""
    monkeypatch.setattr(jars, "_PINS", tmp_path / "pins")
    (tmp_path / "pins").write_text(f"{RIGHT}  {BEFORE}\n")
    jar = tmp_path / "jars" / BEFORE
    paths, ended = [], []

    def launch(conf: Any) -> Any:
        paths.append(conf.get("spark.driver.extraClassPath"))
        jar.parent.mkdir(exist_ok=True)
        jar.write_bytes(b"x")  # as Ivy downloads it
        gateway = MagicMock()
        gateway.jvm.java.lang.System.getProperty.return_value = jar.as_uri()
        return gateway

    monkeypatch.setattr(session, "_launch", launch)
    monkeypatch.setattr(session, "_end", ended.append)
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda **given: None)
    given = {"spark.jars.ivy": str(tmp_path), "spark.driver.extraClassPath": "/own"}
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
