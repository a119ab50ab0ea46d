"""Durable endpoints: the connector interface (seed 003), and helpers to implement it.

- `interface`: the protocols.
- `replay`: the rule for outputs whose steps are written again.
- `steplog`: a durable record of steps, for inputs whose upstream has positions of its own.
- `arrow`: the types of columns.
- `testing`: contract suites that any connector runs in one line.

This package never imports pyspark. It imports pyarrow only inside functions, because the command line asks
plug-ins for their schemas and must start fast.
"""

from mzplan.endpoints.interface import (
    MAX_STEP,
    DurableInputEndpoint,
    DurableInputFactory,
    InputConsumer,
    OutputEndpoint,
    OutputFactory,
    ParallelOutputFactory,
    PartedInputEndpoint,
    Step,
    StepError,
    SupportsClose,
    SupportsJoinedSteps,
    SupportsProbe,
    SupportsRowCount,
    SupportsServerList,
    SupportsWritten,
    checked_step,
)

__all__ = [
    "MAX_STEP",
    "DurableInputEndpoint",
    "DurableInputFactory",
    "InputConsumer",
    "OutputEndpoint",
    "OutputFactory",
    "ParallelOutputFactory",
    "PartedInputEndpoint",
    "Step",
    "StepError",
    "SupportsClose",
    "SupportsJoinedSteps",
    "SupportsProbe",
    "SupportsRowCount",
    "SupportsServerList",
    "SupportsWritten",
    "checked_step",
]
