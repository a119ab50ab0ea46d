"""Finds the Java that runs the broker, and downloads the broker's jars once for all projects of a user."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.servers.errors import ServerError

KAFKA_VERSION = "3.9.1"
MINIMUM_JAVA = 17
_DOWNLOAD_TIMEOUT_S = 900
_GET_JAVA = (
    f"install a JDK {MINIMUM_JAVA} or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to one"
)

# Our own settings have one resolver, at Ivy's built-in address. The default settings of Ivy and Spark ask
# ~/.m2 first, and fail if it has a .pom without its .jar. The download needs no POM.
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


def _ivy_module() -> str:
    """Return an Ivy module that depends on each jar in kafka-jars.txt, but not on their dependencies."""
    lines = Path(__file__).with_name("kafka-jars.txt").read_text().splitlines()
    jars = [line.split() for line in lines if not line.startswith("#")]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '<info organisation="mzplan.examples" module="kafka-broker"/>',
            "<dependencies>",
            *(
                f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->default" '
                'transitive="false"/>'
                for org, name, version in jars
            ),
            "</dependencies>",
            "</ivy-module>",
        ]
    )


def find_java() -> Path:
    """Return the path of ``java``: from JAVA_HOME, or the first on the PATH.

    Raises ServerError if there is none, or if it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"in JAVA_HOME ({home})" if home else "on the PATH"
    if found is None or not os.access(found, os.X_OK):
        raise ServerError(f"Kafka needs Java {MINIMUM_JAVA} or newer, and there is none {where}; {_GET_JAVA}")
    said = subprocess.run([found, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)  # 1.8.0_392 is Java 8
    if version is None:
        raise ServerError(f"Kafka needs Java, and {found} does not run; {_GET_JAVA}", said.strip())
    if int(version[1]) < MINIMUM_JAVA:
        raise ServerError(
            f"Kafka needs Java {MINIMUM_JAVA} or newer, and {found} is Java {version[1]}; {_GET_JAVA}"
        )
    return Path(found)


def jar_folder() -> Path:
    """Return the folder for the broker's jars: below $MZPLAN_CACHE or ~/.cache/mzplan, by version."""
    cache = os.environ.get("MZPLAN_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "mzplan") / f"kafka-{KAFKA_VERSION}"


def broker_is_here() -> bool:
    """Return whether the broker has been downloaded."""
    return jar_folder().is_dir()


def broker_jars(java: Path) -> Path:
    """Return the folder of the broker's jars (46 MB); download them if necessary. Raises ServerError."""
    folder = jar_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():  # another process may have downloaded it while we waited for the lock
            _download(java, folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel releases it when this process ends
        yield


def _download(java: Path, folder: Path) -> None:
    """Download into a folder beside ``folder``, then rename it, so that ``folder`` is always complete."""
    prefix = f".{folder.name}-"
    for leftover in folder.parent.glob(f"{prefix}*"):  # from a killed download; we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as name:
        work = Path(name)
        settings = work / "ivysettings.xml"
        settings.write_text(_IVY_SETTINGS)
        module = work / "ivy.xml"
        module.write_text(_ivy_module())
        log = folder.with_name(f"{folder.name}.log")
        command = [
            *(java, f"-Divy.default.ivy.user.dir={work}", "-jar", _ivy_jar()),
            *("-settings", os.environ.get("MZPLAN_IVY_SETTINGS") or settings),
            *("-cache", work / "cache", "-ivy", module, "-confs", "default"),
            *("-retrieve", f"{work}/lib/[artifact]-[revision].[ext]"),
        ]
        try:
            with log.open("w") as out:
                done = subprocess.run(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=_DOWNLOAD_TIMEOUT_S,
                )
            whole = done.returncode == 0 and (work / "lib" / f"kafka_2.13-{KAFKA_VERSION}.jar").exists()
        except subprocess.TimeoutExpired:
            whole = False
        if not whole:
            raise ServerError(
                f"the Kafka broker could not be downloaded: {_first_problem(log)}; check the network and try "
                "again (behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=… -Dhttps.proxyPort=…, for a "
                f"mirror point MZPLAN_IVY_SETTINGS to an Ivy settings file); the whole report is {log}"
            )
        (work / "lib").rename(folder)


def _ivy_jar() -> Path:
    # Don't import pyspark to find it, because that takes a second.
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or []) if spec else []
    found = [jar for place in places for jar in Path(place).glob("jars/ivy-*.jar")]
    if not found:
        raise ServerError("Ivy, which downloads the Kafka broker, comes with PySpark: pip install pyspark")
    return found[0]


def _first_problem(log: Path) -> str:
    """Return the most useful line of Ivy's report. Without a network, it begins with "module not found"."""
    lines = [line.strip(" \t:") for line in log.read_text(errors="replace").splitlines()]
    for sign in ("access error", "FAILED", "not found", "rror", "xception"):
        for line in lines:
            if sign in line:
                return line
    return f"it did not end within {_DOWNLOAD_TIMEOUT_S} s, or without a word"
