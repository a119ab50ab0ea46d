"""The descriptions under which a sink's steps began, and under which an interrupted step is finished."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.controller.executor import QueryName
from mzplan.model.diagnostics import error
from mzplan.schema.description import Description
from mzplan.spark.interrupted_steps import InterruptedSteps
from mzplan.spark.query import RunningQuery
from mzplan.warehouse.checkpoints import MAX_DESCRIPTIONS, Checkpoint, DescriptionHistory, StepDescription
from tests import stored_steps
from tests.support import refusal
from tests.unit.connectors.queries import described

ODD, ALL = {"where": "id % 2 = 1"}, {"where": "id > 0"}


def begun(step: int, rows: dict[str, Any], digest: str = "1:a") -> StepDescription:
    return StepDescription(step=step, digest=digest, rows=rows)


def test_the_history_is_bounded_and_forgets_steps_after_a_restored_backup() -> None:
    history = DescriptionHistory((begun(0, ODD), begun(4, ALL, "1:b"), begun(9, ODD)))
    for step in (9, 12):
        assert history.extended_by(begun(step, ODD)) == history
    assert history.extended_by(begun(6, ALL, "1:b")) == DescriptionHistory(history.entries[:2])
    assert history.extended_by(begun(4, ODD)) == DescriptionHistory((begun(0, ODD),))
    many = DescriptionHistory()
    for step in range(MAX_DESCRIPTIONS + 20):
        many = many.extended_by(begun(step, ODD, f"1:{step}"))
    assert len(many.entries) == MAX_DESCRIPTIONS
    assert many.description_of(19) is None and many.description_of(20) is not None


ENDED: Any = SimpleNamespace(exception=lambda: SimpleNamespace(isEmpty=lambda: True), isActive=lambda: False)


class Spark:
    """Runs one micro-batch of a sink. With `fails`, the batch fails with this error of its target."""

    def __init__(self, checkpoint: Checkpoint, fails: str = ""):
        self.checkpoint, self.fails = checkpoint, fails
        self.bodies: list[Any] = []

    def run_once(self, description: Description, finishing: RunningQuery) -> Any:
        self.bodies.append(description.body)
        if self.fails:
            finishing.fail(error("MZ059", "PostgreSQL refused a batch", self.fails))
        else:
            stored_steps.commit(Path(self.checkpoint.spark), self.checkpoint.log.newest())
        return SimpleNamespace(_jsq=ENDED)

    def begin(self, description: Description, steps: InterruptedSteps | None = None) -> str | None:
        """Start the sink. Return its warning."""
        running = RunningQuery(QueryName.of("shop", description), "a server")
        (steps or InterruptedSteps()).begin(description, self.checkpoint, running, self.run_once)
        return running.warning


def sink(digest: str, **body: Any) -> Description:
    return described("sink.out", "postgres", body, digest=digest)


def interrupted(folder: Path) -> Checkpoint:
    """Return a checkpoint whose step 1 is planned but not done."""
    checkpoint = Checkpoint(str(folder))
    for step in (0, 1):
        stored_steps.offsets(Path(checkpoint.spark), step, {})
    stored_steps.commit(Path(checkpoint.spark), 0)
    checkpoint.record_descriptions(DescriptionHistory((begun(0, ODD),)))
    return checkpoint


def test_a_changed_sink_first_finishes_the_interrupted_step(tmp_path: Path) -> None:
    spark = Spark(interrupted(tmp_path))
    for _ in range(2):
        assert spark.begin(sink("1:b", table="new", select=["id"], **ALL)) is None
        assert spark.bodies == [{"table": "new", **ODD}]
        history = DescriptionHistory((begun(0, ODD), begun(2, {"select": ["id"], **ALL}, "1:b")))
        assert spark.checkpoint.descriptions() == history


@pytest.mark.parametrize(
    ("query", "finished_by"),
    [
        ("SELECT s.id FROM sales s JOIN cities USING (id)", None),  # orders was renamed
        ("SELECT s.id -- hi\nFROM orders s  JOIN cities USING (id);", None),
        ("SELECT s.id FROM cities s JOIN orders USING (id)", "earlier"),
        ("SELECT s.id FROM sales s JOIN cities USING (id) WHERE id > 1", "earlier"),
    ],
)
def test_renamed_inputs_of_a_view_do_not_change_its_query(
    tmp_path: Path, query: str, finished_by: str | None
) -> None:
    """The earlier SQL uses names of collections that no longer exist in the session."""
    checkpoint, earlier = interrupted(tmp_path), {"query": "SELECT s.id FROM orders s JOIN cities USING (id)"}
    checkpoint.record_descriptions(DescriptionHistory((begun(0, earlier),)))
    spark, body = Spark(checkpoint), {"query": query, "schema": "id BIGINT"}
    assert spark.begin(described("view.v", "sql", body, digest="1:b")) is None
    assert spark.bodies == ([{**body, **earlier}] if finished_by else [])


def test_a_change_without_effect_on_rows_finishes_no_step(tmp_path: Path) -> None:
    spark = Spark(interrupted(tmp_path))
    assert spark.begin(sink("1:b", table="new", compare="fail", **ODD)) is None
    assert spark.bodies == []
    assert spark.checkpoint.descriptions() == DescriptionHistory((begun(0, ODD), begun(1, ODD, "1:b")))


def test_a_failing_step_does_not_block_its_fix(tmp_path: Path) -> None:
    """For example, PostgreSQL refuses the step's rows, and a changed `select` is the fix."""
    spark = Spark(interrupted(tmp_path), fails="value too long")
    for _ in range(2):
        warning = spark.begin(sink("1:b", **ALL)) or ""
        assert "[MZ131]" in warning and "Step 1 of sink.out" in warning and "value too long" in warning
    # Until the step is done, its first description stays recorded: the failure may be temporary.
    assert len(spark.bodies) == 2
    history = spark.checkpoint.descriptions()
    assert history == DescriptionHistory((begun(0, ODD), begun(2, ALL, "1:b")))
    # For verify, the step may have been written under either description.
    assert history.description_of(1) == begun(0, ODD) and history.change_at(1) == begun(2, ALL, "1:b")
    assert history.change_at(0) is None and history.change_at(3) is None


def test_no_query_starts_while_the_runner_stops(tmp_path: Path) -> None:
    spark = Spark(interrupted(tmp_path), fails="interrupted")
    steps = InterruptedSteps()
    steps.close()
    assert refusal(lambda: spark.begin(sink("1:b", **ALL), steps)).code == "MZ063"
    assert spark.checkpoint.descriptions() == DescriptionHistory((begun(0, ODD),))
