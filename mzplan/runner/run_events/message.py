"""Events as the OpenLineage specification has them: https://openlineage.io/docs/spec/object-model.

A run has Spark's id of it, a job the address of its query: it is the same job after each restart. There is no
parent run and no nominal time: a streaming query is started by nobody's schedule.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from openlineage.client import event_v2 as spec
from openlineage.client.generated import (
    column_lineage_dataset as of_columns,
)
from openlineage.client.generated import (
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)

from mzplan import __version__
from mzplan.connectors.api.lineage_names import LineageName
from mzplan.connectors.query_lineage import LineageEnd, QueryLineage
from mzplan.runner.run_events.watch import RunEvent
from mzplan.secrets.resolved import shortened

PRODUCER = f"pkg:pypi/mzplan@{__version__}"
_MOST_TEXT = 10_000  # characters of an error

spec.set_producer(PRODUCER)


def message(event: RunEvent, lineage: QueryLineage, namespace: str) -> spec.RunEvent:
    """The event with all that is known: each of them can be read without those before it."""
    outputs = [
        spec.OutputDataset(
            namespace=one.name.namespace,
            name=one.name.name,
            facets={**_schema(one), **_column_lineage(one, lineage)},
            outputFacets=_statistics(event) if number == 0 else {},
        )
        for number, one in enumerate(lineage.outputs)
    ]
    return spec.RunEvent(
        eventType=spec.RunState[event.kind],
        eventTime=datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds"),
        run=spec.Run(runId=_uuid(event.run_id), facets=_run_facets(event)),
        job=spec.Job(namespace=namespace, name=str(event.description.address), facets=_job_facets(event)),
        inputs=[
            spec.InputDataset(namespace=one.name.namespace, name=one.name.name, facets=_schema(one))
            for one in lineage.inputs
        ],
        outputs=outputs,
    )


def _uuid(run_id: str) -> str:
    try:
        return str(UUID(run_id))
    except ValueError:  # not Spark's
        return str(uuid5(NAMESPACE_URL, run_id))


def _run_facets(event: RunEvent) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with suppress(PackageNotFoundError):  # a Spark that pip knows nothing of
        found["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(
            version=version("pyspark"), name="spark", openlineageAdapterVersion=__version__
        )
    if event.error is not None:
        found["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=shortened(event.error, _MOST_TEXT), programmingLanguage="PYTHON"
        )
    return found


def _job_facets(event: RunEvent) -> dict[str, Any]:
    kind = event.description.address.kind.upper()
    return {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="MZPLAN", jobType=kind
        )
    }


def _schema(end: LineageEnd) -> dict[str, Any]:
    if not end.columns:
        return {}
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=one.name, type=one.type, fields=None)
        for one in end.columns
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def _column_lineage(end: LineageEnd, lineage: QueryLineage) -> dict[str, Any]:
    """Of a sink's target: of which columns of the collection each of its columns is made, and by which its
    rows are chosen."""
    if not end.origins:
        return {}
    collection = lineage.inputs[0].name
    fields = {
        origin.name: of_columns.Fields(
            inputFields=[
                _input(collection, column, "DIRECT", "IDENTITY" if origin.is_copy else "TRANSFORMATION")
                for column in origin.columns
            ]
        )
        for origin in end.origins
    }
    chosen = [_input(collection, column, "INDIRECT", "FILTER") for column in end.filtered]
    return {"columnLineage": of_columns.ColumnLineageDatasetFacet(fields=fields, dataset=chosen)}


def _input(of: LineageName, column: str, type_: str, subtype: str) -> of_columns.InputField:
    by = [of_columns.Transformation(type=type_, subtype=subtype)]
    return of_columns.InputField(namespace=of.namespace, name=of.name, field=column, transformations=by)


def _statistics(event: RunEvent) -> dict[str, Any]:
    """What the run has written so far; of the dataset that is written first of all."""
    if event.rows is None:
        return {}
    facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=event.rows)
    return {"outputStatistics": facet}
