"""Write mzplan/spark/process/jars.sha256: the checksums of the jars of all lines of Spark.

Downloads them into an empty folder, so that no cache of this machine matters. Review the diff before you
commit it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mzplan.host.spark_lines import LINES, line_of
from mzplan.schema.kinds import resource_kind
from mzplan.spark.process import java
from mzplan.spark.process.session import _launch
from mzplan.spark.process.settings import configuration_of

HEADER = """\
# SHA-256 of each jar that Ivy resolves for mzplan's packages; written by python -m tools.pin_jars.
"""
BODIES = {"files": {"path": "s3://lake", "aws": "cloud"}, "kafka": {"aws": "cloud"}}


def main() -> None:
    needs = [resource_kind("connection", type_).packages(body) for type_, body in BODIES.items()]
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        sets = [chosen for size in range(len(needs) + 1) for chosen in itertools.combinations(needs, size)]
        for line, chosen in itertools.product(LINES, sets):
            further = ([x for one in chosen for x in one[i]] for i in (0, 1))
            wanted = json.dumps([line.spark, folder, *further])
            subprocess.run([sys.executable, "-m", "tools.pin_jars", wanted], check=True)
        for jar in Path(folder).glob("jars/*.jar"):
            found[jar.name] = hashlib.sha256(jar.read_bytes()).hexdigest()
    lines = [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    Path(java.__file__).with_name("jars.sha256").write_text(HEADER + "".join(lines), encoding="utf-8")
    print(f"{len(found)} jars")


def _resolve(line: str, folder: str, packages: list[str], excluded: list[str]) -> None:
    further = {"spark.jars.packages": tuple(packages), "spark.jars.excludes": tuple(excluded)}
    _launch(configuration_of("pin", {"spark.jars.ivy": folder}, {}, further, line_of(line)))


if __name__ == "__main__":
    _resolve(*json.loads(sys.argv[1])) if sys.argv[1:] else main()
