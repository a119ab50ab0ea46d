"""Changes one query in Spark Declarative Pipelines and in mzplan, over the same orders.

`python -m examples.declarative_pipelines.compare` needs `pip install 'pyspark[pipelines]'` and no server. It
works in a copy of this folder, build/declarative_pipelines, and takes two to three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyarrow import dataset

HERE = Path(__file__).parent
EDIT = ('"amount"', '"tax"'), ("sum(amount)", "sum(tax)")
SPEC = "name: totals\nstorage: {storage}\nlibraries:\n  - glob: {{include: pipeline/totals.py}}\n"
# The first run reads one order, the second run reads two. The last order ends the first minute.
BEFORE = [{"id": 1, "amount": 10, "tax": 1, "ts": "2026-01-01 10:00:10"}]
AFTER = [
    {"id": 2, "amount": 100, "tax": 7, "ts": "2026-01-01 10:00:20"},
    {"id": 3, "amount": 1, "tax": 1, "ts": "2026-01-01 10:05:00"},
]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path("build/declarative_pipelines"))
    root: Path = parser.parse_args().root.resolve()
    shutil.rmtree(root, ignore_errors=True)
    for name in ("pipeline", "project"):
        shutil.copytree(HERE / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "spark-pipeline.yml").write_text(SPEC.format(storage=(root / "storage").as_uri()))
    add(root, "1", BEFORE)

    print("Spark Declarative Pipelines", flush=True)
    print(f"  sum(amount): {run_pipeline(root)}", flush=True)
    apply(root)
    for file in (root / "pipeline/totals.py", root / "project/pipeline.yaml"):
        text = file.read_text()
        for old, new in EDIT:
            text = text.replace(old, new)
        file.write_text(text)
    add(root, "2", AFTER)
    print(f"  sum(tax):    {run_pipeline(root)}")
    for minute, total in totals(root):
        print(f"  {minute}  {total}")
    print("  The amounts of that minute are 110, and the taxes are 8.")

    print("mzplan")
    for line in planned(root):
        print(f"  {line}")
    return 0


def add(root: Path, name: str, orders: list[dict[str, object]]) -> None:
    """Add a file of orders to the folder that both read."""
    (root / "inbox").mkdir(exist_ok=True)
    (root / "inbox" / f"{name}.json").write_text("\n".join(map(json.dumps, orders)))


def run_pipeline(root: Path) -> str:
    """Run the pipeline over the new orders. Return its last words."""
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    # With Hive's catalog, the next run finds the table.
    command = [program, "--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.sql.session.timeZone=UTC", "--conf", "spark.sql.shuffle.partitions=1"]
    command += ["run", "--spec", "spark-pipeline.yml"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    (root / "pipeline.log").write_text(ran.stdout + ran.stderr)
    if ran.returncode != 0:
        raise SystemExit(f"spark-pipelines failed. Its log is {root / 'pipeline.log'}.")
    return "COMPLETED" if "COMPLETED" in ran.stdout + ran.stderr else "no word of its end"


def totals(root: Path) -> list[tuple[str, int]]:
    """Return the rows of the pipeline's table."""
    rows = dataset.dataset(root / "spark-warehouse/totals", format="parquet").to_table().to_pylist()
    return sorted((f"{row['minute']:%H:%M}", row["total"]) for row in rows)


def apply(root: Path) -> None:
    ran = mzplan(root, "apply", "--auto-approve")
    if ran.returncode != 0:
        raise SystemExit(ran.stdout + ran.stderr)


def planned(root: Path) -> list[str]:
    """Return what the plan says about the view."""
    lines = mzplan(root, "plan").stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if "view.totals" in line and line[0] in "~±")
    view = [line for line in lines[start:] if line][: lines[start:].index("")]
    return [*view, lines[-1]]


def mzplan(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mzplan", "-C", str(root / "project"), *words]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
