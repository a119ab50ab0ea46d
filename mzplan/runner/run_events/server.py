"""Makes OpenLineage run events (https://openlineage.io/docs/spec/object-model), and posts them to the server.

The library's own transport posts the events, and follows no redirect. A run has Spark's run id. A job is
named by the address of its query, so it stays the same job after each restart. There is no parent run and no
nominal time, because no schedule starts a streaming query.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from openlineage.client import event_v2 as spec
from openlineage.client.facet_v2 import RunFacet
from openlineage.client.generated import (
    column_lineage_dataset as of_columns,
)
from openlineage.client.generated import (
    data_quality_assertions_dataset as quality,
)
from openlineage.client.generated import (
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    source_code_location_job,
    sql_job,
)
from openlineage.client.transport.http import HttpConfig, HttpTransport, TokenProvider
from requests import HTTPError, PreparedRequest, RequestException, Response, Session, Timeout

from mzplan import __version__
from mzplan.connectors.api.lineage_names import LineageName
from mzplan.connectors.unresolved import LineageEnd, QueryLineage, lineage_of
from mzplan.runner.run_events.receiver import Receiver
from mzplan.runner.run_events.watch import RefusedEventError, RunEvent
from mzplan.schema.expectations import expectations_of
from mzplan.secrets.resolved import shortened

PRODUCER = f"pkg:pypi/mzplan@{__version__}"
_MAX_TEXT = 10_000  # characters of an error, or of a cause's detail

spec.set_producer(PRODUCER)
_PERMANENT = (400, 413, 422)  # the event itself is wrong, so a retry can't help
_REASONS = {
    401: ": it needs a key (api_key)",
    403: ": the key (api_key) has no permission",
    404: ": the URL has no api/v1/lineage (url)",
    **dict.fromkeys((301, 302, 303, 307, 308), ": it redirects, which mzplan doesn't follow (url)"),
}


class LineageServer:
    """Posts events to an OpenLineage server. Only one thread may call `send`.

    `namespace`: the namespace of the jobs. `warehouse`: an absolute path or URI.
    """

    def __init__(self, receiver: Receiver, namespace: str, directory: str, warehouse: str):
        self._namespace = namespace
        self._directory = directory
        self._warehouse = warehouse
        self._timeout = receiver.timeout
        config = HttpConfig(
            url=receiver.url,
            timeout=receiver.timeout,
            auth=_Key(receiver),
            session=_PlainSession(),
            retry={"total": 0},  # only EventSender retries, with its own backoff
        )
        self._transport = HttpTransport(config)

    def send(self, event: RunEvent) -> None:
        """Post an event. Raises RefusedEventError if it can't be made, or if the server refuses it for good.

        Any other exception means that a retry may help.
        """
        status = self._post(self._lineage_event(event))
        if status in _PERMANENT:
            raise RefusedEventError(f"it was answered {status}")
        if not 200 <= status < 300:
            raise ConnectionError(f"it answers {status}{_REASONS.get(status, '')}")

    def _lineage_event(self, event: RunEvent) -> Any:
        try:
            lineage = lineage_of(event.description, self._directory, self._warehouse)
            return lineage_event(event, lineage, self._namespace)
        except Exception as problem:  # for example, a query of another version or package
            reason = f"{event.description.address} can't be described ({type(problem).__name__})"
            raise RefusedEventError(reason) from None

    def _post(self, event: Any) -> int:
        """Post the event, and return the response's HTTP status. Doesn't read the response's body."""
        try:
            answer: Response | None = self._transport.emit(event)
        except HTTPError as problem:
            answer = problem.response
        except Timeout:
            raise TimeoutError(f"it has not answered in {self._timeout:g} s") from None
        except RequestException as problem:
            raise ConnectionError(f"it can't be reached: {_root_cause(problem)}") from None
        assert answer is not None
        return answer.status_code


def _root_cause(problem: BaseException) -> BaseException:
    """Return the exception at the start of the chain: the libraries only wrap it."""
    while problem.__context__ is not None:
        problem = problem.__context__
    return problem


class _Key(TokenProvider):
    def __init__(self, receiver: Receiver):
        super().__init__({})
        self._receiver = receiver

    def get_bearer(self) -> str | None:
        key = self._receiver.key
        return f"Bearer {key()}" if key is not None else None


class _PlainSession(Session):
    """Follows no redirect, reads no response body (it may be endless), and takes no login from ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = _unchanged

    def request(self, *arguments: Any, **options: Any) -> Response:
        return super().request(*arguments, **{**options, "allow_redirects": False, "stream": True})


def _unchanged(request: PreparedRequest) -> PreparedRequest:
    return request


def lineage_event(event: RunEvent, lineage: QueryLineage, namespace: str) -> spec.RunEvent:
    """Return the OpenLineage event. Each event is complete, so it can be read without the earlier ones."""
    outputs = [
        spec.OutputDataset(
            namespace=end.name.namespace,
            name=end.name.name,
            facets={
                **_schema(end),
                **_column_lineage(end, lineage),
                **(_assertions(event) if number == 0 else {}),
            },
            outputFacets=_statistics(event) if number == 0 else {},
        )
        for number, end in enumerate(lineage.outputs)
    ]
    return spec.RunEvent(
        eventType=spec.RunState[event.kind],
        eventTime=datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds"),
        run=spec.Run(runId=_uuid(event.run_id), facets=_run_facets(event)),
        job=spec.Job(namespace=namespace, name=str(event.description.address), facets=_job_facets(event)),
        inputs=[
            spec.InputDataset(namespace=end.name.namespace, name=end.name.name, facets=_schema(end))
            for end in lineage.inputs
        ],
        outputs=outputs,
    )


def _uuid(run_id: str) -> str:
    try:
        return str(UUID(run_id))
    except ValueError:  # not an id from Spark
        return str(uuid5(NAMESPACE_URL, run_id))


def _run_facets(event: RunEvent) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    with suppress(PackageNotFoundError):  # pip didn't install this Spark
        facets["processing_engine"] = processing_engine_run.ProcessingEngineRunFacet(
            version=version("pyspark"), name="spark", openlineageAdapterVersion=__version__
        )
    if (cause := event.cause) is not None:
        through = str(cause.through) if cause.through is not None else None
        fields = {"cause": cause.cause, "serial": cause.serial or None, "through": through, "at": cause.at}
        facets["mzplan_startedBecause"] = RunFacet(producer=PRODUCER).with_additional_properties(
            **fields, detail=shortened(cause.detail, _MAX_TEXT)
        )
    if event.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=shortened(event.error, _MAX_TEXT), programmingLanguage="PYTHON"
        )
    return facets


def _job_facets(event: RunEvent) -> dict[str, Any]:
    kind, query = event.description.address.kind.upper(), event.description.body.get("query")
    facets: dict[str, Any] = {
        "jobType": job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="MZPLAN", jobType=kind
        )
    }
    if isinstance(query, str):
        facets["sql"] = sql_job.SQLJobFacet(query=query, dialect="spark")
    revision = event.revision
    if revision is not None and revision.repository and revision.clean:
        facets["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
            type="git",
            url=f"{revision.repository}/tree/{revision.commit}",
            repoUrl=f"{revision.repository}.git",
            version=revision.commit,
        )
    return facets


def _schema(end: LineageEnd) -> dict[str, Any]:
    if not end.columns:
        return {}
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=column.name, type=column.type, fields=None)
        for column in end.columns
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def _column_lineage(end: LineageEnd, lineage: QueryLineage) -> dict[str, Any]:
    """Return the column lineage of a sink's target.

    It names the collection's columns from which each column is computed, and the columns that filter the
    rows.
    """
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


def _input(name: LineageName, column: str, type_: str, subtype: str) -> of_columns.InputField:
    by = [of_columns.Transformation(type=type_, subtype=subtype)]
    return of_columns.InputField(namespace=name.namespace, name=name.name, field=column, transformations=by)


def _assertions(event: RunEvent) -> dict[str, Any]:
    """Return the expectations of a source or view, and whether rows have violated them since the last event.

    The specification has this facet for inputs of tests that run later. Here, the query that writes the
    dataset checks it.
    """
    found = [
        quality.Assertion(
            assertion=e.property if e.property in ("not_null", "unique") else "custom_sql",
            success=not event.violations[e.name],
            severity="error" if e.on_violation == "fail" else "warn",
            name=e.name,
            expected="0",
            actual=str(event.violations[e.name]),
            content=str(e),
            contentType="sql",
        )
        for e in expectations_of(event.description.body)
        if e.name in event.violations
    ]
    return {"dataQualityAssertions": quality.DataQualityAssertionsDatasetFacet(found)} if found else {}


def _statistics(event: RunEvent) -> dict[str, Any]:
    """Return the number of rows that the run has written so far, if it is known."""
    if event.rows is None:
        return {}
    facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=event.rows)
    return {"outputStatistics": facet}
