"""What a plan says of runners whose Spark is another one than wrote the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import State, Status
from mzplan.operations.project import Project

_UPGRADE = "docs/how-to/upgrade-spark.md says what goes on, and what goes back."


def version_notices(project: Project, state: State, statuses: Mapping[str, Status]) -> Iterator[Diagnostic]:
    """MZ242: for each instance, that its runner is another Spark than its queries were last written with, or
    that the one which a command would start here is."""
    for name, status in sorted(statuses.items()):
        if status.versions is None:
            continue
        before = {str(seen.written_with) for seen in status.observations.values() if seen.written_with}
        if before:
            yield _notice(name, f"runs {status.versions}", " or ".join(sorted(before)))
        instance = state.instances.get(name)
        if instance is None or instance.type != "embedded" or project.store.leases.leader(name) is not None:
            continue
        from mzplan.host.spark_lines import installed_spark

        here = installed_spark()
        if here is not None and here != status.versions.spark:
            yield _notice(name, f"will run Spark {here}, which is installed here", str(status.versions))


def _notice(instance: str, runs: str, before: str) -> Diagnostic:
    return Diagnostic(
        severity="notice",
        code="MZ242",
        summary=f"Instance {instance} {runs}; its checkpoints were last written with {before}",
        detail="A runner goes on from a checkpoint of any line that it knows.",
        hint=_UPGRADE,
    )
