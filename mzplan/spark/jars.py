"""The jars that Ivy resolves for Spark: which ones, and whether they are those that mzplan was tested with.

Ivy compares a download with checksums of the same server only, and a POM may name any further jar. Here each
jar that is used, on any line of Spark, has its SHA-256 in jars.sha256 (`python -m tools.pin_jars` writes it).
Which ones those are, host/spark_lines.py says.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mzplan.model.diagnostics import MzplanError, error

_PINS = Path(__file__).with_name("jars.sha256")


def pinned() -> dict[str, str]:
    """SHA-256 (64 hex digits) by the name that Ivy gives a jar: `organisation_name-version.jar`."""
    lines = _PINS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {name: digest for digest, name in pairs}


def jar_name(package: str) -> str:
    """`org:name:1.0` as Ivy names its jar: `org_name-1.0.jar`."""
    organisation, name, version = (*package.strip().split(":"), "", "")[:3]
    return f"{organisation}_{name}-{version}.jar"


def local_jars(uris: str | None) -> list[Path]:
    """The files of this machine in Spark's comma-separated list of jars (`spark.jars`)."""
    parts = (urlsplit(uri) for uri in (uris or "").split(",") if uri)
    return [Path(unquote(part.path)) for part in parts if part.scheme in ("", "file", "local")]


def is_as_pinned(jar: Path) -> bool:
    """Whether the file is there, and is what jars.sha256 says of its name."""
    try:
        return _sha256(jar) == pinned().get(jar.name)
    except OSError:
        return False


def require_pinned(jars: Sequence[Path], packages: str | None, others: bool = False) -> None:
    """See that jars are those that mzplan was tested with (70 MB: 0.1 s). `packages`: what Ivy was asked for;
    `others`: whether somebody else has named jars, too.

    Raises MzplanError MZ114 for a jar with another content than the pinned one, and for one that nobody has
    asked for. What somebody else has asked for is his: it is not checked.
    """
    pins = pinned()
    asked = [jar_name(package) for package in (packages or "").split(",") if package]
    others = others or any(name not in pins for name in asked)
    for jar in jars:
        wanted = pins.get(jar.name)
        if wanted is None and not others:
            raise _unexpected(jar)
        if wanted is not None and (digest := _sha256(jar)) != wanted:
            raise _changed(jar, digest, wanted)


def _sha256(jar: Path) -> str:
    with jar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _changed(jar: Path, found: str, wanted: str) -> MzplanError:
    return error(
        "MZ114",
        f"{jar.name} is not the jar that mzplan was tested with",
        f"{jar} has SHA-256 {found}; expected is {wanted}. Nothing of it has run.",
        f"{_remove(jar)}, and start again; if the new one differs, too, check spark.jars.repositories and "
        "spark.jars.ivySettings.",
    )


def _unexpected(jar: Path) -> MzplanError:
    return error(
        "MZ114",
        f"{jar.name} came along, and mzplan does not need it",
        f"Ivy resolved {jar} for mzplan's own packages. Nothing of it has run.",
        "check spark.jars.repositories and spark.jars.ivySettings; if you want that jar, name its package in "
        "spark.jars.packages.",
    )


def _remove(jar: Path) -> str:
    """Ivy takes a jar from its cache, beside the folder that Spark loads from: both copies must go."""
    organisation, _, rest = jar.name.partition("_")
    cache = jar.parent.parent / "cache" / organisation
    name = next((p.name for p in sorted(cache.glob("*"), reverse=True) if rest.startswith(f"{p.name}-")), "")
    return shlex.join(["rm", "-r", str(jar), str(cache / name)] if name else ["rm", str(jar)])
