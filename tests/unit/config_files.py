"""Writes small projects as files, and loads them with mzplan.config."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from mzplan.config import load_configuration
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import Configuration, Resource

PROJECT = "version: 1\nproject: shop\n"
DRY = PROJECT + "instances: {local: {type: dry}}\n"
# A valid project with each kind of resource, which tests change.
SHOP = """\
connections:
  shop_kafka: {type: kafka, brokers: ["localhost:9092"]}
  shop_pg:
    type: postgres
    host: localhost
    database: shop
    user: app
    password: "${env:PG_PASSWORD}"
  lake: {type: files, path: ./lake}
sources:
  orders:
    connection: shop_kafka
    topic: orders
    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP"}
sinks:
  orders_pg:
    from: orders
    connection: shop_pg
    table: public.orders
    mode: upsert
    key: [id]
"""


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write the files, and a minimal mzplan.yaml if they include none."""
    for name, content in {"mzplan.yaml": PROJECT, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else dedent(content).encode())
    return folder


def load(folder: Path, files: dict[str, str | bytes] | None = None, **options: Any) -> Configuration:
    return load_configuration(write(folder, files or {}), **options)


def resource(configuration: Configuration, address: str) -> Resource:
    return configuration.resources[Address.parse(address)]


def errors(folder: Path, files: dict[str, str | bytes] | None = None, **options: Any) -> list[Diagnostic]:
    """Return the errors of a project, or [] if it is valid."""
    try:
        load(folder, files, **options)
    except MzplanError as error:
        assert int(error.exit_code) == 1
        return list(error.diagnostics)
    return []


def brief(diagnostics: list[Diagnostic]) -> list[str]:
    """Return the place, code and summary of each diagnostic, as in `a.yaml:3:5 MZ004 Unknown key "x"`."""
    return [f"{d.range or '-'} {d.code} {d.summary}" for d in diagnostics]


def all_text(diagnostics: list[Diagnostic]) -> str:
    """Return all text of the diagnostics that any output can show."""
    return "\n".join(f"{d!r}\n{d.to_json()}" for d in diagnostics)
