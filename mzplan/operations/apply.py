"""apply and other commands that commit: plan, validate, commit, wake runners, follow queries.

Runners act only on committed state. A crash at any point leaves either the old or the new state, and the
runners converge to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from mzplan.connectors.admission import flows_of_state
from mzplan.host.checkout import refuse_unused
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.history import CommitRecord
from mzplan.model.losses import as_refusal, losses_of
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Plan
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState, State
from mzplan.operations.alter_journal import finish_left_edit
from mzplan.operations.commits import record_of, record_outcome
from mzplan.operations.connections import find_rotations, users_of_secrets
from mzplan.operations.follower import OutcomeFollower, resumed_observations
from mzplan.operations.planning import plan_configuration
from mzplan.operations.project import Outcome, Workbench, committing, locked, read_state
from mzplan.operations.validation import (
    changed_alone,
    ensure_validated,
    own_secret_values,
    queries_to_validate,
    validate_changed,
)
from mzplan.plan import apply_changes
from mzplan.plan.canaries import with_canaries, without_passed
from mzplan.plan.file import ensure_digest, ensure_environment
from mzplan.plan.highlights import losses
from mzplan.plan.staleness import ensure_same
from mzplan.schema.description import as_description, describe, packages_of, references_of
from mzplan.secrets.guards import AllowingGuard
from mzplan.secrets.policy import Guard, SecretValues
from mzplan.store.backends.backend import CommittedError, UnknownWriteError
from mzplan.store.limits import write_limit
from mzplan.store.store import digest_of_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOptions:
    """Options for carrying out a plan.

    `allow_replace`: allow new generations.
    `allow_loss`: allow new generations of sources that can't read all their rows again.
    `live`: whether to validate live, also from this process; None to validate only through runners.
    `guard`: the policy that the user named for sending secrets from this process.
    `canary`: one query of each connection restarts first and has this many seconds to make progress.
    `parallelism`: how many queries are stopped and started at once.
    `digest`: the digest of the reviewed plan; a plan with another digest isn't applied.
    `message`: the reason, for the history; None for the subject of the git commit.
    `wait`: how many seconds to follow the queries.
    """

    allow_replace: bool = False
    allow_loss: bool = False
    live: bool | None = None
    guard: Guard | None = None
    canary: float | None = None
    parallelism: int | None = None
    digest: str | None = None
    message: str | None = None
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A command's request to commit.

    `make_plan`: makes the plan for the state, under the lock.
    `approve`: raises an error if the plan isn't approved.
    `commit_context`: wraps the commit of a state in work that must succeed or fail with it.
    `redefines`: whether the plan may redefine queries. Then every query is followed, else only the touched
    queries and `asked_for`.
    `asked_for`: queries that the user named, even if the plan doesn't change them.
    """

    command: str
    make_plan: Callable[[State], Plan]
    approve: Callable[[Plan], None]
    options: ApplyOptions
    commit_context: Callable[[State], AbstractContextManager[None]] = lambda new: nullcontext()
    redefines: bool = True
    asked_for: Collection[Address] = ()  # known once `make_plan` has returned


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """The result of an apply.

    `outcomes`: the outcome of each followed query.
    `resumed`: observations of the queries that a changed connection restarted.
    `former_run_ids`: the run ids before the commit.
    `leaderless`: instances whose runner has ended, so that nothing carries on with the commit.
    `followed_all`: whether every query was followed.
    """

    plan: Plan
    serial: int
    lineage: str = ""
    outcomes: Mapping[Address, Outcome] = field(default_factory=dict)
    former_run_ids: Mapping[Address, str | None] = field(default_factory=dict)
    notes: tuple[Diagnostic, ...] = ()
    resumed: Mapping[Address, Observation] = field(default_factory=dict)
    leaderless: tuple[Instance, ...] = ()
    followed_all: bool = True

    @property
    def exit_code(self) -> ExitCode:
        good = all(outcome.status == "applied" for outcome in self.outcomes.values())
        return ExitCode.OK if good else ExitCode.NOT_CONVERGED


def apply_configuration(
    work: Workbench,
    approve: Callable[[Plan], None],
    options: ApplyOptions,
    *,
    targets: Sequence[Address] = (),
    replacing: Sequence[Address] = (),
) -> ApplyResult:
    """Plan, get approval, validate, commit, and follow the queries until they converge.

    Raises MZ036 (exit 5) if the plan's digest differs from the digest in the options.
    """

    def build(state: State) -> Plan:
        _finish_edit(work)
        plan = plan_configuration(work, state, targets, replacing, canary=options.canary)
        ensure_digest(plan, options.digest)
        return plan

    return carry_out(work, CommitRequest(command="apply", make_plan=build, approve=approve, options=options))


def apply_saved(
    work: Workbench,
    approve: Callable[[Plan], None],
    options: ApplyOptions,
    plan: Plan,
) -> ApplyResult:
    """Carry out a saved plan: plan again, and require the same commit.

    The project must have been opened with the variables that the plan remembers. Raises MZ036 (exit 5) if the
    plan is for another environment, if the new plan differs, or if the saved plan's digest differs from the
    options. The error names the difference.
    """
    ensure_environment(plan, work.project.settings.environment)
    ensure_digest(plan, options.digest)
    rotated = {c.before.address for c in plan.changes if c.before is not None and c.cause == "secret"}
    canary = plan.canaries[0].wait if plan.canaries else None

    def replan(state: State) -> Plan:
        _finish_edit(work)
        newer = plan_configuration(work, state, plan.targets, plan.replacing, canary=canary, rotated=rotated)
        ensure_same(plan, newer, state)
        known_losses = {loss.address for loss in losses(newer)}
        saved_losses = (loss for loss in losses(plan) if loss.address not in known_losses)
        newer = replace(newer, diagnostics=(*newer.diagnostics, *saved_losses))
        return newer if canary is not None else with_canaries(newer, state, options.canary)

    return carry_out(work, CommitRequest(command="apply", make_plan=replan, approve=approve, options=options))


def carry_out(work: Workbench, request: CommitRequest) -> ApplyResult:
    """Lock, plan, approve, validate, commit, follow."""
    refuse_unused(work.directory)
    store = work.store
    with locked(store, work.reporter, request.command):
        failpoint(Failpoint.APPLY_LOCKED)
        state = read_state(store, work.reporter)
        plan = replace(request.make_plan(state), environment=work.project.settings.environment)
        refuse(plan, request.options.allow_replace, request.options.allow_loss)
        statuses = store.read_statuses()
        committed = not plan.is_empty
        if committed:
            # Read git before asking, so that the record shows the checkout that was planned.
            record = record_of(work.project, request.command, plan, request.options.message)
            request.approve(plan)
            state, for_runners = _commit(work, request, plan, state, record)
        else:
            for_runners = _values_for_runners(request, plan, state, _secret_values(state))
        in_use_from = _send_secret_values(
            work, state, _touched(plan, state), replace(for_runners, retry_failed=request.redefines)
        )
        failpoint(Failpoint.APPLY_WOKEN)
    applied = _follow(work, request, plan, state, statuses, in_use_from)
    if committed:
        record_outcome(store, work.reporter, state, applied.outcomes)
    return applied


def _finish_edit(work: Workbench) -> None:
    """Finish or forget an interrupted edit of `alter`. The caller holds the lock of the state."""
    if message := finish_left_edit(work.directory, work.store):
        work.reporter.stage(f"notice: {message}")


def refuse(plan: Plan, allow_replace: bool, allow_loss: bool = False) -> None:
    """Raise MzplanError for the plan's errors, and for a replace or loss that isn't allowed."""
    if plan.errors:
        raise MzplanError(plan.errors)
    refused = [] if allow_loss else [as_refusal(loss) for loss in losses(plan)]
    if not allow_replace:
        replaced = [change for change in plan.changes if change.action == "replace"]
        refused += [
            Diagnostic.of("MZ040.replaced", address=change.address, reason=change.reason)
            for change in replaced
        ]
    if refused:
        raise MzplanError(refused)


def _commit(
    work: Workbench, request: CommitRequest, plan: Plan, state: State, record: CommitRecord
) -> tuple[State, SecretValues]:
    """Validate live, then commit. The caller holds the lock.

    Returns the new state, and the secret values that runners keep.
    """
    store, options = work.store, request.options
    new = apply_changes(state, plan, record=record, allow_loss=options.allow_loss)
    if new.canaries:
        new = without_passed(new, store.read_statuses())
    needed, touched, secret_values = _instances_used(new), _touched(plan, new), _secret_values(new)
    for name in sorted(needed, key=natural):  # also the instances that `_follow` starts after the commit
        work.runners.require(new.instance(name))
    if not options.live:
        ensure_validated(work, plan, new, refuses=options.live is None)
    # Don't start Spark on an instance where no query will run.
    with _started(work, new, sorted(needed & touched, key=natural)) as started:
        findings: Sequence[Diagnostic] = ()
        if options.live is not False:
            # The plan was approved, so its user decides where secrets go, unless a policy says otherwise.
            own = options.guard or AllowingGuard()
            findings = validate_changed(
                work,
                plan,
                new,
                secret_values,
                local_guard=own if options.live else None,
                own_guard=own,
                more_queries=_rotated(work, plan, new, started),
            )
            if any(d.severity == "error" for d in findings):
                raise MzplanError(findings)
            for notice in findings:
                work.reporter.stage(f"{notice.severity}: {notice.summary}")
        if lost := losses_of((*plan.diagnostics, *findings)):
            new = replace(new, commit=replace(record, losses=lost))
        failpoint(Failpoint.APPLY_VALIDATED)
        # Send values before the commit, because a runner may see the commit before the message. The runner
        # uses them only with exactly this state.
        for_runners = _values_for_runners(request, plan, new, secret_values)
        waits = replace(for_runners, state=digest_of_state(new))
        for name in sorted(needed | touched, key=natural):
            work.runners.wake(new.instance(name), waits)
        write_limit(store, new.serial, options.parallelism)
        with request.commit_context(new), committing(work.reporter, new.serial):
            store.commit(new, state)
    failpoint(Failpoint.APPLY_COMMITTED)
    return new, for_runners


@contextmanager
def _started(work: Workbench, new: State, instances: Sequence[str]) -> Iterator[Sequence[Instance]]:
    """Start the missing runners of these instances, and yield the instances that were started.

    If `new` isn't committed in this context, stop these runners, because they have secrets for that state.
    """
    started: list[Instance] = []
    try:
        for instance in (new.instance(name) for name in instances):
            if work.runners.ensure(instance, packages_of(new.resources), trial=new.serial):
                started.append(instance)
        yield started
    except BaseException as problem:
        if not isinstance(problem, CommittedError | UnknownWriteError):
            for instance in started:
                with suppress(MzplanError):  # the refusal is the error to report
                    work.runners.stop(instance)
        raise


def _rotated(work: Workbench, plan: Plan, new: State, started: Sequence[Instance]) -> list[ResourceState]:
    """Return unchanged queries that will run with rotated secrets.

    Runners that this command started use this command's values.
    """
    if not started:
        return []

    names, changed = {instance.name for instance in started}, {change.address for change in plan.changes}
    rotated = find_rotations(work.directory, new, work.store.read_statuses()).queries
    queries = [new.resources[address] for address in rotated if address not in changed]
    return [query for query in queries if query.instance in names]


def _send_secret_values(
    work: Workbench, state: State, touched: set[str], secret_values: SecretValues
) -> dict[str, tuple[int, int]]:
    """Wake the runners of the committed state, and send them the secret values.

    This is useful even without a new commit: a query may have failed because a value was missing. Returns, by
    instance, the runner's epoch and the `secret_values_in_use` of its Status from which it uses the values.
    """
    in_use_from = {}
    for name in sorted(_instances_used(state) | touched, key=natural):
        lease = work.store.leases.leader(name)
        number = work.runners.wake(state.instance(name), secret_values)
        if lease is not None and number is not None:
            in_use_from[name] = (lease.epoch, number)
    return in_use_from


def _follow(
    work: Workbench,
    request: CommitRequest,
    plan: Plan,
    state: State,
    statuses: Mapping[str, Status],
    in_use_from: Mapping[str, tuple[int, int]],
) -> ApplyResult:
    """Wait until the queries of the plan have converged, at most the options' `wait`.

    If the request redefines queries, also wait for all other queries.
    """
    began, wait = time.monotonic(), request.options.wait
    until = began + wait
    before = {a: o.run_id for s in statuses.values() for a, o in s.observations.items()}
    touched = {c.address for c in plan.changes if c.address.is_query} | set(plan.resuming)
    needed = _instances_used(state)
    if not request.redefines:
        touched |= set(request.asked_for)
        needed = {state.resources[a].instance for a in touched if a in state.resources}
    former_instances = {
        c.before.instance for c in plan.changes if c.before is not None and c.address in touched
    }
    outcomes: dict[Address, Outcome] = {}
    lost: list[Instance] = []
    for name in sorted(needed | former_instances, key=natural):
        instance = state.instance(name)
        if name in needed:
            work.runners.ensure(instance, wait=until - time.monotonic())
        elif instance.type != "dry" and work.store.leases.leader(name) is None:
            continue  # nothing runs there, and nothing should
        work.runners.read_commit(instance, until - time.monotonic())
        follower = OutcomeFollower(
            work.store, state, name, touched, in_use_from.get(name, (0, 0)), others=request.redefines
        )
        outcomes |= follower.follow(wait, work.reporter, partial(_end_reason, work, instance, until), began)
        lost += [instance] if follower.is_lost else []
    with work.reporter.working("counting the rows read since"):
        resumed = resumed_observations(work.store, state, plan, outcomes, before, until)
    return ApplyResult(
        plan=plan,
        serial=state.serial,
        lineage=state.lineage,
        outcomes=outcomes,
        former_run_ids=before,
        resumed=resumed,
        leaderless=tuple(lost),
        followed_all=request.redefines,
    )


def _end_reason(work: Workbench, instance: Instance, until: float) -> MzplanError | None:
    """Return why the runner of a followed instance has ended; None while it runs.

    If this command started the runner, first tries once to start it again.
    """
    problem = work.runners.ended(instance)
    if problem is None:
        return None
    try:
        restarted = work.runners.start_again(instance, until - time.monotonic())
    except MzplanError as failed:
        return failed
    return None if restarted else problem


def _instances_used(state: State) -> set[str]:
    return {r.instance for r in state.resources.values() if r.address.is_query}


def _touched(plan: Plan, new: State) -> set[str]:
    """Return the instances on which a query starts or stops."""
    changed = [c for c in plan.changes if c.address.is_query]
    instances = {
        resource.instance for c in changed for resource in (c.before, c.after) if resource is not None
    }
    return instances | {new.resources[a].instance for a in plan.resuming if a in new.resources}


def _values_for_runners(
    request: CommitRequest, plan: Plan, state: State, secret_values: SecretValues
) -> SecretValues:
    """Return the secret values to send to the runners: the values that were validated.

    If the command may redefine queries, also the values of all queries that should run. A value that only
    paused queries use is validated when a query is resumed.
    """
    queries, connections = queries_to_validate(plan, state), changed_alone(plan, state)
    validated = [
        *(describe(query, state.resources) for query in queries),
        *(as_description(state.resources[address], state.resources) for address in connections),
    ]
    references = {reference for description in validated for reference in references_of(description)}
    if request.redefines:
        references |= {
            reference
            for reference, addresses in users_of_secrets(state).items()
            if not all(state.resources[address].paused for address in addresses)
        }
    values = {name: value for name, value in secret_values.values.items() if f"${{env:{name}}}" in references}
    return replace(secret_values, values=values)


def _secret_values(state: State) -> SecretValues:
    """Return this process's secret values for a state, and where the state sends secrets.

    Whoever may commit decides where secrets go.
    """
    return replace(own_secret_values(state), flows=flows_of_state(state))
