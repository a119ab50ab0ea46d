"""The `generate` command: YAML for the topics or tables that a connection's server has."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import yaml

from mzplan.cli.arguments import CONNECTION, policy_option, send_secrets_option
from mzplan.cli.context import Invocation, command
from mzplan.connectors.api.offers import Offer
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.resources import Configuration
from mzplan.model.words import count, did_you_mean
from mzplan.operations.local_checks import read_only_guard, validate
from mzplan.operations.project import Project
from mzplan.plan.commit import wanted_state
from mzplan.render.text import safe
from mzplan.schema.description import InlinedConnection, inline_connection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import is_type
from mzplan.secrets.policy import Guard

_WIDTH = 10_000  # characters of a line, so that no schema is broken into several


@command("generate")
@click.option("--connection", required=True, type=CONNECTION, help="The connection whose server to list.")
@click.option(
    "--registry",
    type=CONNECTION,
    help="The schema registry that has the topics' schemas (default: the only one that is declared).",
)
@policy_option
@send_secrets_option
def command_generate(
    invocation: Invocation, connection: str, registry: str | None, policy: str | None, send_secrets: bool
) -> int:
    """Print YAML for the topics or tables that are there.

    Contacts the connection's server and changes nothing. Leaves out topics and tables that a source of the
    project already reads.
    """
    project = invocation.project(whole=True)
    configuration = validate(project, invocation.progress)
    address = _address(connection)
    with invocation.progress.working(f"listing what {address} has"):
        offers = _offers(project, configuration, address, registry, invocation.guard(policy, send_secrets))
    read = _objects_read(configuration, address)
    left = [offer for offer in offers if not read & _objects(offer.body)]
    sources = dict(_named(left, configuration, address))
    if invocation.json:
        skipped = [{"object": o.object, "reason": " ".join(o.notes)} for o in left if not o.body]
        invocation.document(
            {"sources": {name: body for name, (body, _) in sources.items()}, "skipped": skipped}
        )
        return ExitCode.OK
    known = len(offers) - len(left)
    if known:
        invocation.note(f"{count(known, 'topic or table', 'topics or tables')} already belong to a source")
    invocation.out(_render(sources, [offer for offer in left if not offer.body]))
    return ExitCode.OK


def _offers(
    project: Project,
    configuration: Configuration,
    connection: Address,
    registry: str | None,
    policy: Guard | None,
) -> Sequence[Offer]:
    from mzplan.connectors.admission import GuardedSecrets
    from mzplan.connectors.checks import list_offers

    records = {address: wanted_state(r, None) for address, r in configuration.resources.items()}

    def inlined(address: Address) -> InlinedConnection:
        if address not in records:
            raise error(
                "MZ070.no-no-file-project",
                resource=address,
                did_you_mean=did_you_mean(str(address), [str(a) for a in records if a.is_connection]),
            )
        return inline_connection(records[address], records)

    wanted, with_schemas = inlined(connection), None
    kind = resource_kind("source", wanted.type) if is_type("source", wanted.type) else None
    if kind is not None and any(r.property == "schema_registry" for r in kind.references):
        registries = [a for a, record in records.items() if record.type == "schema-registry"]
        if registry is not None:
            with_schemas = inlined(_address(registry))
        elif len(registries) == 1:
            with_schemas = inlined(registries[0])
    guard = read_only_guard(project, project.store.read_state(), policy, "error")
    secrets = GuardedSecrets(project.settings.directory, guard).proposed()
    return list_offers(wanted, with_schemas, secrets, project.settings.directory)


def _address(name: str) -> Address:
    try:
        return Address.parse(f"connection.{name.removeprefix('connection.')}")
    except ValueError as problem:
        raise click.UsageError(f"{problem}") from None


def _objects_read(configuration: Configuration, connection: Address) -> set[str]:
    """Return the topics or tables that a connection's sources read."""
    sources = (r for r in configuration.resources.values() if r.references.get("connection") == connection)
    return {name for source in sources if source.address.reads_upstream for name in _objects(source.body)}


def _objects(body: Mapping[str, Any]) -> set[str]:
    named = [body.get("topic"), *body.get("topics", ()), *body.get("tables", ())]
    return {name if "." in name or "tables" not in body else f"public.{name}" for name in named if name}


def _named(
    offers: Sequence[Offer], configuration: Configuration, connection: Address
) -> Iterator[tuple[str, tuple[dict[str, Any], tuple[str, ...]]]]:
    """Yield each source's name, which no other source or view has, with its body and notes."""
    taken = {address.name for address in configuration.resources if address.writes_collection}
    for offer in offers:
        if not offer.body:
            continue
        name, number = offer.name, 1
        while name in taken:
            number += 1
            name = f"{offer.name}_{number}"
        taken.add(name)
        yield name, ({"connection": connection.name, **offer.body}, offer.notes)


def _render(sources: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]], skipped: Sequence[Offer]) -> str:
    lines = [f"# {_line(offer.object)}: {_line(' '.join(offer.notes))}" for offer in skipped]
    lines += ["sources:"] if sources else ["# No other topic or table is there."]
    for name, (body, notes) in sources.items():
        lines += [f"  # {_line(note)}" for note in notes]
        written = yaml.safe_dump(
            {name: body}, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
        )
        lines.append(textwrap.indent(written.rstrip(), "  "))
    return "\n".join(lines)


def _line(text: str) -> str:
    """Return a comment's text on one line, because a line end would end the comment."""
    return " ".join(safe(text).split())
