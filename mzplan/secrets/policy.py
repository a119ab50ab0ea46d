"""Where a secret may go: the one decision before any reference of a description is resolved.

A `Flow` is a secret and the way that it would take. Who decides is a `Guard`: `Policy`, a file of the
machine that nothing in the store, the warehouse or a checkout can widen; or, where there is none, in a runner
`Committed`: what the state says, and what somebody who may use this machine's socket has allowed; and in a
command one of mzplan.secrets.command_guards.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.words import escaped

POLICY_VARIABLE = "MZPLAN_POLICY"
_MOST_BYTES = 1 << 20
_HOST = re.compile(r"[\w.-]+|\[?[0-9a-f:.]+(%\w+)?\]?", re.ASCII)  # a name, or an address
_FORM = 'written [[allow]], each with references = ["${env:NAME}"] and hosts = ["HOST:PORT"]'

Route = tuple[str, ...]
"""Servers as `host:port`, in the order in which they are passed; the last is where it ends. Empty: it stays
on this machine. A server that is not known begins with UNKNOWN."""
UNKNOWN = "?"
NO_SECRET = ""
"""The reference of a way that is taken without one."""
"""The code of what no committed state sends there."""


class Flow(NamedTuple):
    """A secret, as its reference is written, and a way that it takes."""

    reference: str
    route: Route


class Guard(Protocol):
    """Decides whether secrets may take these ways."""

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError where one may not. `subject`: what would send them, for people. `proposed`: it
        is asked for, and nowhere committed."""

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Raises MzplanError where what is only proposed may not reach these servers, even without a
        secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """References, and servers to which they may be sent. `*` stands for any text, in the name of a file for
    any but `/`, in a server for a part of a host's name, never for a path; a server without a port for all of
    its ports."""

    references: tuple[str, ...]
    hosts: tuple[str, ...]

    def names(self, reference: str) -> bool:
        plain = _plain(reference)
        if _climbs(reference):
            return False
        return any(_like(_plain(pattern), "[^/]*").fullmatch(plain) for pattern in self.references)

    def leads_to(self, server: str) -> bool:
        """Whether an entry names this server. Patterns are for names of hosts: a socket, or whatever else is
        not the name of a host, is matched only by an entry that spells it out."""
        host = server.rpartition(":")[0]
        if server.startswith(UNKNOWN):
            return "*" in self.hosts
        written = [pattern.lower() for pattern in self.hosts if _HOST.fullmatch(host) or "*" not in pattern]
        return any(_like(pattern, ".*").fullmatch(name) for pattern in written for name in (server, host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a file allows. `path`: where it is, for people. Nothing else is allowed, whoever asks."""

    path: str
    allowed: tuple[Allowance, ...]

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ106."""
        refused = [flow for flow in sorted(flows) if not self._allows(flow)]
        if not refused:
            return
        reference = refused[0].reference
        named = any(allowance.names(reference) for allowance in self.allowed)
        why = "names it, but not with that server" if named else "does not name it"
        hint = f"if it may, add to {self.path} (a runner reads it when it starts):\n{lines_for(refused)}"
        if _climbs(reference):
            why = "allows no path with `..`: behind a link, that leads elsewhere than it says"
            hint = "write the path without `..`; it may be absolute."
        raise error(
            "MZ106",
            f"The policy does not let {subject} send {reference} to {shown_route(refused[0].route)}",
            f"The policy is {self.path}, and {why}.",
            hint,
        )

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Raises MzplanError MZ106."""
        for route in sorted(routes):
            if all(any(allowance.leads_to(server) for allowance in self.allowed) for server in route):
                continue
            raise error(
                "MZ106",
                f"The policy does not let {subject} reach {shown_route(route)}",
                f"No entry of the policy {self.path} has that server, and proposals reach no other servers.",
                f"if it may, add to {self.path} (a runner reads it when it starts):\n"
                f"{lines_for([Flow(NO_SECRET, route)])}",
            )

    def _allows(self, flow: Flow) -> bool:
        naming = [allowance for allowance in self.allowed if allowance.names(flow.reference)]
        return bool(naming) and all(
            any(allowance.leads_to(server) for allowance in naming) for server in flow.route
        )


class Committed:
    """Without a policy: what the state holds; of what was committed before, what a query goes back to or
    leaves behind; and what was granted. `past` gives the flows of earlier serials, the newest first."""

    def __init__(self, past: Callable[[], Iterator[frozenset[Flow]]] = lambda: iter(())):
        self._past = past
        self._held: frozenset[Flow] = frozenset()
        self._granted: frozenset[Flow] = frozenset()
        self._refused: frozenset[Flow] = frozenset()  # in no serial up to the one that was taken in last

    def take_in(self, held: Iterable[Flow]) -> None:
        """A serial is committed, which holds these."""
        self._held, self._refused = frozenset(held), frozenset()

    def grant(self, flows: Iterable[Flow]) -> None:
        """Somebody who may do on this machine whatever this process may allows these."""
        self._granted |= frozenset(flows)

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ107; a warning for what is only proposed: it is validated once it is
        committed."""
        left = set(flows) - self._held - self._granted
        if left and not proposed:
            left = self._never_held(left)
        if left:
            raise MzplanError(_proposed(subject, left) if proposed else _uncommitted(subject, left))

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """What is proposed may reach any server, without a secret: a new one could not be validated before
        it is committed otherwise."""

    def _never_held(self, flows: set[Flow]) -> set[Flow]:
        left = flows - self._refused
        for earlier in self._past() if left else ():
            left -= earlier
            if not left:
                break
        self._refused |= left
        return left | (flows & self._refused)


def read_policy(path: str) -> Policy:
    """The policy of a file (TOML). Raises MzplanError MZ105 for one that can't be read, or says anything that
    is not understood: it must not allow less, or more, than its author means."""
    import tomllib  # not for every command

    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        content = tomllib.loads(data.decode()) if len(data) <= _MOST_BYTES else None
    except OSError as problem:
        raise _unusable(path, problem.strerror or "it can't be opened") from None
    except (ValueError, RecursionError) as problem:
        raise _unusable(path, f"it is not TOML: {str(problem)[:200]}") from None
    if content is None:
        raise _unusable(path, "it is larger than 1 MiB")
    entries = content.pop("allow", [])
    if content:
        raise _unusable(path, f"it has no key {sorted(content)[0][:60]!r}; all it has is {_FORM}")
    if not isinstance(entries, list):
        raise _unusable(path, f"allow is {_FORM}")
    return Policy(path=path, allowed=tuple(_allowance(path, entry) for entry in entries))


def lines_for(flows: Iterable[Flow]) -> str:
    """What a policy needs to allow these ways, as it is written there. A name with `*` in it would allow more
    than itself, a path with `..` nothing: they are left out."""
    servers: dict[str, set[str]] = {}
    for reference, route in flows:
        if "*" not in "".join((reference, *route)) and not _climbs(reference):
            hosts = servers.setdefault(reference, set())
            hosts.update("*" if server.startswith(UNKNOWN) else server for server in route)
    return "\n".join(
        f"[[allow]]\nreferences = [{_quoted(reference) if reference else ''}]\n"
        f"hosts = [{', '.join(map(_quoted, sorted(hosts)))}]"
        for reference, hosts in sorted(servers.items())
    )


def _allowance(path: str, entry: Any) -> Allowance:
    if not isinstance(entry, dict) or entry.keys() != {"references", "hosts"}:
        raise _unusable(path, f"what may go where is {_FORM}")
    for name, values in entry.items():
        if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values):
            raise _unusable(path, f"{name} is a list of texts")
    strange = next(
        (
            reference
            for reference in entry["references"]
            if not re.fullmatch(r"\$\{[^:{}]+:[^{}]+\}", reference)
        ),
        None,
    )
    if strange is not None:
        raise _unusable(path, f"{strange[:60]!r} is no reference, as ${{env:NAME}} or ${{file:PATH}}")
    climbing = next(filter(_climbs, entry["references"]), None)
    if climbing is not None:
        raise _unusable(path, f"{climbing[:60]!r} has `..` in it, and would allow nothing: write it without")
    return Allowance(references=tuple(entry["references"]), hosts=tuple(entry["hosts"]))


def _unusable(path: str, why: str) -> MzplanError:
    return error(
        "MZ105",
        f"The policy {path} can't be used",
        f"{why}. Without it, it is not known which secrets may go where, so nothing was started.",
        f"correct it, or name another one: --policy, or the variable {POLICY_VARIABLE}.",
    )


def _uncommitted(subject: str, flows: Collection[Flow]) -> Diagnostic:
    first = min(flows)
    return Diagnostic(
        code="MZ107",
        kind="not-sent",
        summary=f"{subject} would send {first.reference} to {shown_route(first.route)}",
        detail="Without a policy, a runner sends secrets only where a committed state does.",
        hint=f"find out who wrote it. If it may, start the runner with a policy (--policy) that has:\n"
        f"{lines_for(sorted(flows))}",
    )


def _proposed(subject: str, flows: Collection[Flow]) -> Diagnostic:
    first = min(flows)
    return Diagnostic(
        severity="warning",
        code="MZ107",
        kind="not-sent",
        summary=f"{subject} was not validated live: it would send {first.reference} to "
        f"{shown_route(first.route)}, which the committed state does not",
        detail="The runner validates it after the commit, before it stops anything.",
        hint="to have it validated before, start the runner with a policy (--policy) that has:\n"
        f"{lines_for(sorted(flows))}",
    )


def _plain(reference: str) -> str:
    """The reference, the path of a file without detours: `./a//b` is `a/b`."""
    provider, _, name = reference[2:-1].partition(":")
    return f"${{file:{os.path.normpath(name)}}}" if provider == "file" else reference


def _climbs(reference: str) -> bool:
    """Whether it is a file's, with `..` in its path: behind a link only the system knows where that leads."""
    provider, _, name = reference[2:-1].partition(":")
    return provider == "file" and ".." in name.split("/")


def _like(pattern: str, any_text: str) -> re.Pattern[str]:
    return re.compile(any_text.join(map(re.escape, pattern.split("*"))), re.DOTALL)


def shown_route(route: Route) -> str:
    """For people."""
    if not route:
        return "no server"
    *through, last = ("a server that its connector does not name" if s[0] == UNKNOWN else s for s in route)
    return f"{last} through {', '.join(through)}" if through else last


def _quoted(text: str) -> str:
    shown = "".join(c if escaped(c) == c and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{shown}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretValues:
    """`values` of `${env:NAME}` references, by name; `flows`: where a command that commits sends secrets.
    `proposal`: the id of the one for whose validation alone the values are. `state`: the digest of the state
    with whose commit they are taken over (Store.serial_digest). Neither: they are used from now on. `again`:
    what has failed is tried again at once."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    flows: Collection[Flow] = ()
    proposal: str = ""
    state: str = ""
    again: bool = False


NO_SECRET_VALUES = SecretValues()
