"""Traces: what a runner does, in which order, when something happens to it.

Each file in `traces/` has scenarios, and each scenario is a list of steps. A step has one event (a method of
Stage) and, under `does`, all that the runners did until they came to rest: actions of the engine, accepted
descriptions, entries of the journal, and every change of a query's condition in the Status.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.runner.stage import Stage

FOLDER = Path(__file__).parent / "traces"


def scenarios() -> list[Any]:
    files = sorted(FOLDER.glob("*.yaml"))
    return [
        pytest.param(steps, id=f"{file.stem}: {title}")
        for file in files
        for title, steps in yaml.safe_load(file.read_text()).items()
    ]


@pytest.mark.parametrize("steps", scenarios())
def test_trace(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number, step in enumerate(steps, 1):
            ((event, argument),) = ((name, value) for name, value in step.items() if name != "does")
            stage.play(event, argument)
            done = stage.take()
            shown = "\n".join(f"  - {line}" for line in done)
            assert done == step.get("does", []), f"step {number}, {event}:\n  does:\n{shown}"
