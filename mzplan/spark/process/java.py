"""Finds Java, and verifies the jars that Ivy resolves for Spark against those that mzplan was tested with.

Ivy checks a download only against checksums of the same server, and a POM may name any further jar. So
jars.sha256 pins the SHA-256 of every jar for any supported Spark (`python -m tools.pin_jars` writes it).
host/spark_lines.py lists the packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mzplan.model.diagnostics import MzplanError, error

MINIMUM_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 1.8.0_392 is Java 8
_TIMEOUT_S = 120  # it takes a fraction of a second, but a stalled machine may need much longer


def require_java() -> str:
    """Return the path of a `java` that Spark 4 runs on.

    Looks where Spark's launcher looks: in JAVA_HOME if it is set, else on the PATH. Raises MzplanError MZ061
    if Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"in JAVA_HOME ({home})" if home else "on the PATH"
    if java is None or not os.access(java, os.X_OK):
        raise error("MZ061.not-found", minimum=MINIMUM_JAVA, where=where)
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        version = _VERSION.search(process.stderr + process.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version is None:
        raise error("MZ061.does-not-run", java=java, where=where)
    if int(version[1]) < MINIMUM_JAVA:
        raise error("MZ061.too-old", version=version[1], minimum=MINIMUM_JAVA, java=java)
    return java


_PINS = Path(__file__).with_name("jars.sha256")


def pinned_digests() -> dict[str, str]:
    """Return the SHA-256 (64 hex digits) of each pinned jar `organisation_name-version.jar`."""
    lines = _PINS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def jar_name(package: str) -> str:
    """Return Ivy's name for the jar of `org:name:1.0`: `org_name-1.0.jar`."""
    organisation, name, version = (*package.strip().split(":"), "", "")[:3]
    return f"{organisation}_{name}-{version}.jar"


def local_jars(uris: str | None) -> list[Path]:
    """Return the local files in Spark's comma-separated list of jars (`spark.jars`)."""
    parts = (urlsplit(uri) for uri in (uris or "").split(",") if uri)
    return [Path(unquote(part.path)) for part in parts if part.scheme in ("", "file", "local")]


def is_as_pinned(jar: Path) -> bool:
    """Return whether the file exists and has the SHA-256 pinned for its name."""
    try:
        return _sha256(jar) == pinned_digests().get(jar.name)
    except OSError:
        return False


def require_pinned(jars: Sequence[Path], packages: str | None, has_others: bool = False) -> None:
    """Check that mzplan was tested with these jars (70 MB: 0.1 s).

    `packages`: the packages that Ivy was asked for. `has_others`: whether the user named further jars.
    Raises MzplanError MZ114 for a jar whose content differs from the pin, and for a jar that nobody
    asked for. Jars that the user asked for aren't checked.
    """
    pins = pinned_digests()
    requested = [jar_name(package) for package in (packages or "").split(",") if package]
    has_others = has_others or any(name not in pins for name in requested)
    for jar in jars:
        wanted = pins.get(jar.name)
        if wanted is None and not has_others:
            raise _unexpected(jar)
        if wanted is not None and (digest := _sha256(jar)) != wanted:
            raise _changed(jar, digest, wanted)


def _sha256(jar: Path) -> str:
    with jar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _changed(jar: Path, digest: str, wanted: str) -> MzplanError:
    return error(
        "MZ114.changed-jar", name=jar.name, jar=jar, digest=digest, wanted=wanted, removal=_remove(jar)
    )


def _unexpected(jar: Path) -> MzplanError:
    return error("MZ114.unneeded-jar", name=jar.name, jar=jar)


def _remove(jar: Path) -> str:
    """Return the command that removes a jar and the copy in Ivy's cache."""
    organisation, _, rest = jar.name.partition("_")
    cache = jar.parent.parent / "cache" / organisation
    name = next((p.name for p in sorted(cache.glob("*"), reverse=True) if rest.startswith(f"{p.name}-")), "")
    return shlex.join(["rm", "-r", str(jar), str(cache / name)] if name else ["rm", str(jar)])
