"""A store, runners in memory and manual clocks: plays events one at a time, and records what the runners do.

Nothing here has a thread: jobs run between two rounds, unless their kind or their subject hangs. A trace (see
test_traces) therefore has the same lines every time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mzplan.controller.decision import key_of
from mzplan.controller.executor import QueryName
from mzplan.controller.memory import InMemoryStorage
from mzplan.controller.terms import NotAttachedError
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.losses import FirstCopy
from mzplan.model.observed import Lease, Observation
from mzplan.model.state import State
from mzplan.runner.loop import Runner
from mzplan.schema.description import Description, describe
from mzplan.secrets.policy import SecretValues
from mzplan.store.backends.local import LocalBackend
from mzplan.store.limits import write_limit
from mzplan.store.store import Store
from tests.runners import runner_in_memory
from tests.unit.runner.stage_engine import Faults, RecordingExecutor, SteppedJobs, generation_of, named
from tests.unit.runner.stage_states import edit, make_first

EPOCH = 1_800_000_000.0  # the first time that the wall clock shows, in seconds
MAX_ROUNDS = 200


class Stage:
    """Plays events. `lines` has what the runners have done since `take`, in order."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.now = 0.0
        self.jumped = 0.0  # seconds by which the wall clock was set
        self.committed = State(project="shop")
        self.hanging: set[str] = set()
        self.wrong = Faults()
        self.triggers_at_once = True
        self.is_cut = False
        self.runners: dict[str, Runner] = {}
        self.executors: dict[str, RecordingExecutor] = {}
        self.jobs: dict[str, SteppedJobs] = {}
        self.storage = InMemoryStorage()  # the warehouse, which all runners share
        self.lines: list[str] = []
        self._client = Store(LocalBackend(folder), "shop")
        self._leases: dict[str, Lease] = {}
        self._seen: dict[tuple[str, Address], tuple[Any, ...]] = {}
        self._accepted: dict[str, dict[Address, Description]] = {}
        self._dropped: dict[str, set[str]] = {}
        self._patches = [
            mock.patch("time.time", lambda: EPOCH + self.jumped + self.now),
            mock.patch("time.monotonic", lambda: 1000.0 + self.now),
        ]

    def __enter__(self) -> Stage:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def play(self, event: str, argument: Any) -> None:
        """Play an event, and let the runners work until they have nothing more to do."""
        getattr(self, event.replace(" ", "_").replace("-", "_"))(argument)
        self.settle()

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def observations(self) -> dict[tuple[str, Address], Observation]:
        """Return what the Statuses of the live runners show, by instance and address."""
        statuses = {instance: self._client.read_status(instance) for instance in self.runners}
        return {
            (instance, address): seen
            for instance, status in statuses.items()
            if status is not None
            for address, seen in status.observations.items()
        }

    # --- events

    def runner(self, instance: str) -> None:
        """Start a runner of the instance, which leads at once, as after `mzplan run`."""
        store = Store(LocalBackend(self.folder), "shop")
        store.leases._sightings._clock = lambda: self.now
        lease = store.leases.take(instance, f"{instance} {self.now} {len(self._leases)} {len(self.lines)}")
        self._leases[instance] = lease
        jobs = self.jobs[instance] = SteppedJobs(self.hanging)
        prefix = "" if instance == "local" else f"{instance}: "
        executor = self.executors[instance] = RecordingExecutor(
            lambda line: self.lines.append(prefix + line), self.wrong
        )
        executor.triggers_at_once = self.triggers_at_once
        runner = runner_in_memory(store, executor, lease, jobs, clock=self._clock, storage=self.storage)
        keeper = SimpleNamespace(lease=lease, is_store_away=False, end=lambda: None, release=lambda: None)
        runner.controller.instances._keeper = keeper  # type: ignore[assignment]
        self.runners[instance] = runner

    def start(self, edits: Mapping[str, Any]) -> None:
        """Start the runner, commit the source `orders` and the sink `out`, and forget what that did."""
        self.runner("local")
        self.commit(edits)
        self.settle()
        self.lines.clear()

    def kill(self, instance: str) -> None:
        """Kill a runner with its queries: its lease and its files stay."""
        self.executors[instance].close()
        del self.runners[instance], self._leases[instance], self.jobs[instance]
        self._seen = {key: value for key, value in self._seen.items() if key[0] != instance}

    def restart(self, instance: str) -> None:
        """Kill the runner, and start the next one."""
        self.kill(instance)
        self.runner(instance)

    def stand_down(self, instance: str) -> None:
        """Stop a runner, which releases its lease."""
        self._client.leases.renew(self._leases[instance], released=True)
        self.kill(instance)

    def lose_lease(self, instance: str) -> None:
        """Let the runner notice that another one has taken its lease."""
        self._client.leases.take(instance, "a successor")
        self.runners[instance].controller.instances.give_up("another runner leads this instance now")

    def commit(self, edits: Mapping[str, Any]) -> None:
        """Commit a serial with these edits of the last one: see `edit`."""
        before = self.committed if self.committed.serial else make_first()
        after = edit(replace(before, serial=self.committed.serial + 1), edits)
        self._client.commit(after, self.committed)
        self.committed = after

    def parallelism(self, number: int) -> None:
        """Let the next commit start this number of queries at once."""
        write_limit(self._client, self.committed.serial + 1, number)

    def fail(self, errors: Mapping[str, str]) -> None:
        """Let running queries fail with an error, `CODE text`; without one, somebody stopped them by hand."""
        for address, text in errors.items():
            executor, name = self._running(address)
            executor.fail_query(name, text.partition(" ")[2] or text)
            code = text.partition(" ")[0] if text else None
            executor.progress(name, error=text or None, error_code=code)

    def progress(self, seen: Mapping[str, Mapping[str, Any]]) -> None:
        """Set fields of the reports of running queries."""
        for address, fields in seen.items():
            executor, name = self._running(address)
            executor.progress(name, **fields)

    def triggers(self, at_once: bool) -> None:
        """Let new queries finish their first trigger at once, or let them all wait for it."""
        self.triggers_at_once = at_once
        for executor in self.executors.values():
            executor.triggers_at_once = at_once
            if at_once:
                executor.trigger()

    def refuse(self, names: list[str]) -> None:
        """Let checks refuse exactly these queries."""
        self.wrong.refused = frozenset(names)

    def break_starts(self, names: list[str]) -> None:
        """Let exactly these queries fail to start."""
        self.wrong.broken = frozenset(names)

    def lose_storage(self, names: list[str]) -> None:
        """Remove the checkpoints of exactly these queries."""
        self.wrong.gone = frozenset(names)

    def servers_down(self, names: list[str]) -> None:
        """Let exactly these connections not answer."""
        self.wrong.down = frozenset(names)

    def copying(self, copies: Mapping[str, list[int]]) -> None:
        """Let the first copies of these collections have read this much of that much."""
        self.wrong.copying = {
            name: FirstCopy(read=(read,), ends=(end,), unit="record") for name, (read, end) in copies.items()
        }

    def hang(self, jobs: list[str]) -> None:
        """Let exactly these jobs hang: a kind, a subject, or both, such as `start source.orders`."""
        self.hanging.clear()
        self.hanging.update(jobs)

    def wait(self, seconds: float) -> None:
        """Let this time pass, by all clocks."""
        self.now += seconds

    def set_clock(self, seconds: float) -> None:
        """Move the wall clock alone, as an operator or a time server does."""
        self.jumped += seconds

    def store_away(self, is_away: bool) -> None:
        """Cut every runner's connection to the store, for longer than two thirds of a lease; or end that."""
        self.store_fails(is_away)
        for runner in self.runners.values():
            runner.controller.instances._keeper.is_store_away = is_away  # type: ignore[union-attr]

    def store_fails(self, is_away: bool) -> None:
        """Cut the connection only for a moment, so that no lease is in danger."""
        self.is_cut = is_away
        for runner in self.runners.values():
            for name in ("read", "version", "write", "delete", "list"):
                own = vars(runner.store.backend)
                own.update({name: _refuse}) if is_away else own.pop(name, None)

    def secret_values(self, values: Mapping[str, str]) -> None:
        """Send values of environment variables to the runner, as a command does."""
        for runner in self.runners.values():
            runner.secret_values.receive(SecretValues(values=values))

    def retry_failed(self, _: object) -> None:
        """Ask for another attempt, as `mzplan apply` does."""
        for runner in self.runners.values():
            runner.secret_values.receive(SecretValues(retry_failed=True))

    def check_proposal(self, names: list[str]) -> None:
        """Propose committed queries again, and record the answer."""
        resources = self.committed.resources
        asked = tuple(describe(resources[Address.parse(name)], resources) for name in names)
        made = self._client.proposals.make("local", asked)
        self.wait(1.0)  # a busy runner doesn't look in every round
        self.settle()
        answer = self._client.proposals.read_answer(made)
        codes = [d.code for d in answer.diagnostics] if answer is not None else None
        self.lines.append(f"answer {'none yet' if codes is None else codes or 'fine'}")

    # --- work

    def settle(self) -> None:
        """Do rounds until nothing more happens."""
        quiet = 0
        for _ in range(MAX_ROUNDS):
            before, ran = len(self.lines), False
            for instance in sorted(self.runners):
                self._tick(instance)
            for jobs in list(self.jobs.values()):
                ran |= jobs.run()
            quiet = 0 if ran or len(self.lines) > before else quiet + 1
            if quiet == 2:
                return
        raise AssertionError(f"the runners don't come to rest: {self.lines[-20:]}")

    def _tick(self, instance: str) -> None:
        runner = self.runners[instance]
        if not self.is_cut:
            self._client.leases.renew(self._leases[instance])
        try:
            runner.tick()
        except NotAttachedError:
            self.lines.append(f"the runner of {instance} ends")
            self.kill(instance)
            return
        except MzplanError as problem:  # Runner.serve logs it, and the next round tries again
            self.lines.append(f"a round fails: {problem.diagnostics[0].code}")
            return
        self._record(instance)

    def _record(self, instance: str) -> None:
        """Record what the store shows of the round."""
        prefix = "" if instance == "local" else f"{instance}: "
        dropped = {
            f"{id_}{generation_of(g)}" for id_, g in (e.place for e in self._client.read_journal(instance))
        }
        for name in sorted(dropped - self._dropped.get(instance, set())):
            self.lines.append(f"{prefix}journal {name}")
        self._dropped[instance] = dropped
        accepted, before = self._client.read_accepted(instance), self._accepted.get(instance, {})
        for address, description in sorted(accepted.items()):
            if address not in before or key_of(before[address]) != key_of(description):
                self.lines.append(f"{prefix}accept {named(description)}")
        self.lines += [f"{prefix}forget {address}" for address in sorted(before.keys() - accepted.keys())]
        self._accepted[instance] = accepted
        status = self._client.read_status(instance)
        for address, seen in sorted(status.observations.items()) if status is not None else ():
            self._note((instance, address), seen, f"{prefix}{address}")

    def _note(self, key: tuple[str, Address], seen: Observation, name: str) -> None:
        """Record what is new in an observation."""
        facts = (seen.run_id, seen.retry_at, seen.fault, *_facts(seen))
        before, self._seen[key] = self._seen.get(key), facts
        if before != facts:
            shown = [fact for fact in _facts(seen) if fact]
            if seen.retry_at is not None:
                wait = round(seen.retry_at - time.time())
                shown.append(f"retry in {wait} s" if wait > 0 else "retry now")
            if (before is None or before[0] != seen.run_id) and seen.started_because is not None:
                shown.append(f"because of {seen.started_because.cause}")
            self.lines.append(f"{name}: {', '.join(shown)}")

    def _clock(self) -> float:
        return self.now

    def _running(self, address: str) -> tuple[RecordingExecutor, QueryName]:
        for executor in self.executors.values():
            report = executor.running().get(Address.parse(address))
            if report is not None:
                return executor, report.name
        raise AssertionError(f"{address} doesn't run")


def _facts(seen: Observation) -> tuple[str | None, ...]:
    is_outdated = bool(seen.run_id) and seen.condition != "running" and seen.digest != seen.wanted_digest
    return (
        seen.condition,
        "runs as before" if is_outdated else None,
        seen.error_code,
        f"{seen.failures} failures" if seen.failures > 1 else None,
        seen.held or seen.waits,
        seen.task.title if seen.task is not None else None,
        f"{seen.at_fault} is at fault" if seen.at_fault is not None else None,
    )


def _refuse(*_: Any, **__: Any) -> Any:
    raise error("MZ095", "The state can't be reached")
