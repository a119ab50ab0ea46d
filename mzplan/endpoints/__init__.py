"""Durable endpoints: the connector interface (seed 003), and what a connector needs to fill it.

`interface` has the protocols, `replay` the output rule, `steplog` a durable record of steps for inputs whose
upstream has positions of its own, `arrow` the types of columns, `testing` the contract suites that any
connector runs in one line. May import model, columns and connectors.paths; never pyspark, and pyarrow only
inside functions: the command line asks plug-ins for their schemas, and should not pay for more.
"""

from mzplan.endpoints.interface import (
    MAX_STEP,
    Closes,
    CountsRows,
    DurableInputEndpoint,
    DurableInputFactory,
    HasWritten,
    InputConsumer,
    JoinsSteps,
    OutputEndpoint,
    OutputFactory,
    ParallelOutputFactory,
    PartedInputEndpoint,
    Probes,
    ReachesServers,
    Step,
    StepError,
    checked_step,
)

__all__ = [
    "MAX_STEP",
    "Closes",
    "CountsRows",
    "DurableInputEndpoint",
    "DurableInputFactory",
    "HasWritten",
    "InputConsumer",
    "JoinsSteps",
    "OutputEndpoint",
    "OutputFactory",
    "ParallelOutputFactory",
    "PartedInputEndpoint",
    "Probes",
    "ReachesServers",
    "Step",
    "StepError",
    "checked_step",
]
