"""An OpenLineage server over HTTP, by the library's own transport; it is followed nowhere else."""

from __future__ import annotations

from typing import Any

from openlineage.client.transport.http import HttpConfig, HttpTransport, TokenProvider
from requests import HTTPError, PreparedRequest, RequestException, Response, Session, Timeout

from mzplan.connectors.query_lineage import lineage_of
from mzplan.runner.run_events.message import message
from mzplan.runner.run_events.receiver import Receiver
from mzplan.runner.run_events.sender import NotTakenError
from mzplan.runner.run_events.watch import RunEvent

_NEVER = (400, 413, 422)  # what is wrong is the event: it will not be another one later


class Server:
    """Posts events. For one thread. `namespace`: of the jobs; `warehouse`: an absolute path or URI."""

    def __init__(self, receiver: Receiver, namespace: str, directory: str, warehouse: str):
        self._namespace = namespace
        self._directory = directory
        self._warehouse = warehouse
        self._timeout = receiver.timeout
        config = HttpConfig(
            url=receiver.url,
            timeout=receiver.timeout,
            auth=_Key(receiver),
            session=_Session(),
            retry={"total": 0},  # who tries again is the sender: nobody else says how long to wait
        )
        self._transport = HttpTransport(config)

    def send(self, event: RunEvent) -> None:
        """Raises NotTakenError where the event can't be made, or is refused as it is; else what has come in
        the way."""
        status = self._post(self._made(event))
        if status in _NEVER:
            raise NotTakenError(f"it was answered {status}")
        if not 200 <= status < 300:
            raise ConnectionError(f"it answers {status}{_MEANING.get(status, '')}")

    def _made(self, event: RunEvent) -> Any:
        try:
            lineage = lineage_of(event.description, self._directory, self._warehouse)
            return message(event, lineage, self._namespace)
        except Exception as problem:  # of what another version, or another package, has brought
            what = f"{event.description.address} can't be described ({type(problem).__name__})"
            raise NotTakenError(what) from None

    def _post(self, made: Any) -> int:
        """The status of the answer. Its text is the server's: nobody reads it."""
        try:
            answer: Response | None = self._transport.emit(made)
        except HTTPError as problem:
            answer = problem.response
        except Timeout:
            raise TimeoutError(f"it has not answered in {self._timeout:g} s") from None
        except RequestException as problem:
            raise ConnectionError(f"it can't be reached: {_root(problem)}") from None
        assert answer is not None
        return answer.status_code


_MEANING = {
    401: ": it asks for a key (api_key)",
    403: ": the key may not do that (api_key)",
    404: ": it has no api/v1/lineage (url)",
    **dict.fromkeys((301, 302, 303, 307, 308), ": it names another address, which is not followed (url)"),
}


def _root(problem: BaseException) -> BaseException:
    """What has happened, without what each library says around it."""
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


class _Session(Session):
    """Follows no redirect, reads no answer (which may have no end), and takes no login from ~/.netrc."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = _as_it_is

    def request(self, *arguments: Any, **options: Any) -> Response:
        return super().request(*arguments, **{**options, "allow_redirects": False, "stream": True})


def _as_it_is(request: PreparedRequest) -> PreparedRequest:
    return request
