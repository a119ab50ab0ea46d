"""mzplan.host.spark_lines: the installed release line of Spark, and its packages and settings."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from mzplan.host import spark_lines
from mzplan.host.spark_lines import LINES, NEWEST, OLDEST, installed_line, installed_spark, line_of
from mzplan.model.diagnostics import MzplanError

ROOT = Path(__file__).parents[3]


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
    with pytest.raises(MzplanError) as caught:
        line_of(release)
    (told,) = caught.value.diagnostics
    assert told.code == "MZ240" and release in told.summary
    assert "4.0, 4.1 and 4.2" in told.detail and f"pyspark=={NEWEST.tested[-1]}" in told.hint


def test_spark_home_or_else_the_package_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_at(tmp_path / "theirs", "4.1.3")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "theirs"))
    assert installed_spark() == "4.1.3" and installed_line().spark == "4.1"
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
