"""Plans: what a Configuration, or a manual operation, would change in a State.

Pure: nothing here reads a store or a server, and nothing depends on a resource's type. The effect of a change
comes from the schemas (mzplan.schema.kinds) and from digests (mzplan.schema.description). This package must
not import mzplan.config or mzplan.store: mzplan.operations connects them.
"""

from mzplan.plan.commit import apply_changes
from mzplan.plan.planner import build_plan

__all__ = ["apply_changes", "build_plan"]
