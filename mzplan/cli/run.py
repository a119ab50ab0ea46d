"""run, up, down: commands for runners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import INSTANCE, policy_option
from mzplan.cli.context import Invocation, command
from mzplan.host.checkout import runtime_file
from mzplan.host.extras import RUNNER, require_extra
from mzplan.host.processes import LOG_FORMAT_VARIABLE
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.resources import MetricsPlace, ProjectSettings, start_command
from mzplan.operations.connections import require_here
from mzplan.operations.project import read_state
from mzplan.plan.drift import drift_of_instance
from mzplan.runner.embedded import stop
from mzplan.runner.logs import configure_logging
from mzplan.secrets.policy import read_policy

if TYPE_CHECKING:
    from mzplan.runner.logs import LogFormat


@command("run")
@click.option("--instance", required=True, metavar="NAME", type=INSTANCE, help="The instance to run.")
@click.option(
    "--standby/--no-standby", default=True, help="While another runner leads, wait (default) or exit."
)
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Exit once each query has read what was there: with 0, or with 8 if one could not.",
)
@click.option(
    "--log-format",
    "log_format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar=LOG_FORMAT_VARIABLE,
    help="The log's format: text (default), or json, which writes one object per line.",
)
@click.option(
    "--metrics-port",
    "port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Serve /metrics (Prometheus) and /healthz on this port (default: the instance's committed port).",
)
@click.option(
    "--metrics-host",
    "host",
    metavar="HOST",
    help="The address to serve the metrics on, without a password (default: 127.0.0.1).",
)
@policy_option
def command_run(
    invocation: Invocation,
    instance: str,
    standby: bool,
    until_caught_up: bool,
    log_format: LogFormat,
    port: int | None,
    host: str | None,
    policy: str | None,
) -> int:
    """Run an instance's queries as the committed state says."""
    from mzplan.runner.main import run

    settings = invocation.project().settings
    _require_declared(settings, instance)
    if settings.instances[instance].type != "dry":
        require_extra(RUNNER)  # before it takes the lease
    configure_logging(log_format)
    if host is not None and port is None:
        raise click.UsageError("--metrics-host requires --metrics-port.")
    place = MetricsPlace(port=port, host=host or "127.0.0.1") if port is not None else None
    allowed = read_policy(policy) if policy else None
    return run(
        settings,
        instance,
        find_drift=drift_of_instance,
        stand_by=standby,
        metrics=place,
        policy=allowed,
        until_caught_up=until_caught_up,
    )


@command("up")
@click.option(
    "--instance", metavar="NAME", type=INSTANCE, help="Only this instance (default: all embedded instances)."
)
@policy_option
def command_up(invocation: Invocation, instance: str | None, policy: str | None) -> None:
    """Start this machine's runner in the background."""
    work = invocation.work(policy=policy)
    project = work.project
    if policy:
        read_policy(policy)  # report its mistakes here, not in the runner's log
    names = _embedded(project.settings, instance)
    for name in names:
        _require_embedded(project.settings, name)
    shown, state = [], read_state(project.store, work.reporter)
    for name in names:
        before = project.store.leases.leader(name)
        if before is None:
            require_here(project, state, (r for r in state.resources.values() if r.instance == name))
        work.runners.ensure(project.settings.instances[name])
        lease = project.store.leases.leader(name)
        pid = lease.pid if lease else 0
        shown.append({"name": name, "pid": pid, "started": before is None})
        if not invocation.json:
            log = runtime_file(project.settings, name, "log").name
            word = "leads" if before is None else "already leads"
            opens = " Spark starts now; mzplan status shows when it is ready." if before is None else ""
            invocation.out(f"A runner {word} instance {name} (pid {pid}, log .mzplan/{log}).{opens}")
    if invocation.json:
        invocation.document({"instances": shown})
    elif not shown:
        clusters = [i for i in project.settings.instances.values() if i.type == "cluster"]
        starts = " and ".join(start_command(cluster, project.settings.environment) for cluster in clusters)
        hint = f" Start a runner with {starts}." if starts else ""
        invocation.out(f"`mzplan up` starts embedded instances only, and this project has none.{hint}")


@command("down")
@click.option(
    "--instance", metavar="NAME", type=INSTANCE, help="Only this instance (default: all embedded instances)."
)
def command_down(invocation: Invocation, instance: str | None) -> None:
    """Stop this machine's runner; checkpoints stay."""
    project = invocation.project()
    shown = []
    unknown: list[Diagnostic] = []
    for name in _embedded(project.settings, instance):
        invocation.note(f"Stopping the runner of instance {name}")
        try:
            with invocation.progress.working("waiting for its queries to stop"):
                stopped = stop(project.settings, project.store, name)
        except MzplanError as problem:  # the other runners are still stopped
            unknown.extend(problem.diagnostics)
            continue
        shown.append({"name": name, "stopped": stopped})
        if not invocation.json:
            text = (
                "The runner of instance {} has stopped." if stopped else "No runner of instance {} runs here."
            )
            invocation.out(text.format(name))
    if unknown:
        raise MzplanError(unknown)
    if invocation.json:
        invocation.document({"instances": shown})
    elif not shown:
        invocation.out("This project has no embedded instance.")


def _require_declared(settings: ProjectSettings, name: str) -> None:
    if name in settings.instances:
        return
    raise error("MZ070.no-instance", name=name, instances=sorted(settings.instances))


def _require_embedded(settings: ProjectSettings, name: str) -> None:
    instance = settings.instances[name]
    if instance.type == "embedded":
        return
    starts = f"start its runner: {start_command(instance, settings.environment)}."
    raise error(
        "MZ070.instance-type",
        name=name,
        type=instance.type,
        fix=starts if instance.type == "cluster" else "a dry instance needs no runner.",
    )


def _embedded(settings: ProjectSettings, name: str | None) -> list[str]:
    if name is not None:
        _require_declared(settings, name)
        return [name]
    return sorted(n for n, instance in settings.instances.items() if instance.type == "embedded")
