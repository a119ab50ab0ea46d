"""An HTTP server on loopback that receives run events like an OpenLineage server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
TEXT = {"type": "string", "minLength": 1}
FACETS = {  # further facets, as the specification describes them
    "DataQualityAssertionsDatasetFacet": {
        "required": ["assertions"],
        "properties": {
            "assertions": {
                "type": "array",
                "items": {
                    "required": ["assertion", "success"],
                    "properties": {"assertion": TEXT, "success": {"type": "boolean"}},
                },
            },
        },
    },
    "SQLJobFacet": {"required": ["query"], "properties": {"query": TEXT, "dialect": TEXT}},
    "SourceCodeLocationJobFacet": {
        "required": ["type", "url"],
        "properties": {
            "url": {"type": "string", "format": "uri"},
            **dict.fromkeys(("type", "repoUrl", "path", "version", "tag", "branch"), TEXT),
        },
    },
}
Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, **headers: str) -> Answer:
    """Return a function that answers a request without a body."""

    def write(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content_Length": "0", **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()

    return write


class Collector:
    """The events that the server received, and their Authorization headers (None if there was none)."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"
        self.answer: Answer = answer(201)
        self.events: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return the events of one job, in order."""
        return [event for event in list(self.events) if event["job"]["name"] == job]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a server until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            collector.keys.append(self.headers.get("Authorization"))
            collector.events.append(json.loads(body))
            collector.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(int(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def check_event(event: dict[str, Any]) -> None:
    """Validate an event, and each facet by the schema that it names. Raises jsonschema.ValidationError."""
    _validator(f"{SPEC}#/$defs/RunEvent").validate(event)
    for facet in _facets(event):
        _validator(facet["_schemaURL"]).validate(facet)


def _facets(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "_schemaURL" in value:
            yield value
        for inner in value.values():
            yield from _facets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _facets(inner)


@cache
def _validator(reference: str) -> Draft202012Validator:
    files = sorted((Path(__file__).parent / "openlineage").glob("*.json"))
    resources = [Resource.from_contents(json.loads(file.read_text())) for file in files]
    for name, fields in FACETS.items():
        of_job = {"$ref": f"{SPEC}#/$defs/JobFacet"}
        schema = {
            "$id": f"https://openlineage.io/spec/facets/1-1-0/{name}.json",
            "$defs": {name: {"allOf": [of_job, fields]}},
        }
        resources.append(Resource.from_contents(schema, default_specification=DRAFT202012))
    registry: Registry[Any] = Registry().with_resources((str(one.id()), one) for one in resources)
    return Draft202012Validator({"$ref": reference}, registry=registry, format_checker=FormatChecker())
