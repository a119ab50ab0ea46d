"""Decides where a secret may go, before any reference of a description is resolved.

A `Flow` is a secret and the route that it would take. A `Guard` decides whether to allow it. `Policy` is the
guard that a file of this machine describes: nothing in the store, the warehouse or a checkout can extend it.
Processes without a policy use a guard of mzplan.secrets.guards.
"""

from __future__ import annotations

import os.path
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.words import escaped

POLICY_VARIABLE = "MZPLAN_POLICY"
_HOST = re.compile(r"[\w.-]+|\[?[0-9a-f:.]+(%\w+)?\]?", re.ASCII)  # a host's name or IP address
_FORM = (
    '[[allow]] tables (references = ["${env:NAME}"], hosts = ["HOST:PORT"]), functions = ["PACKAGE.*"] '
    'and packages = ["GROUP:*"]'
)

Route = tuple[str, ...]
"""Servers as `host:port`, in order; the last one is the destination. An empty route stays on this machine. An
unknown server begins with UNKNOWN."""
UNKNOWN = "?"
NO_SECRET = ""
"""The reference of a flow that carries no secret."""


class Flow(NamedTuple):
    """A secret, given by its reference, and the route that it takes."""

    reference: str
    route: Route


class Guard(ABC):
    """Decides whether secrets may flow along routes."""

    @abstractmethod
    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raise MzplanError if any flow isn't allowed.

        `subject`: names the sender for people.
        `proposed`: the flows are requested, but not committed.
        """

    def run(self, subject: str, function: str) -> None:  # noqa: B027
        """Raise MzplanError if the user's function may not run in this process.

        Without a policy, every function may run.
        """

    def load(self, subject: str, package: str) -> None:  # noqa: B027
        """Raise MzplanError if Spark may not load the jars of a package, given by its Maven coordinates.

        Without a policy, it may load all that a committed connection lists.
        """

    def connect(self, subject: str, routes: Collection[Route]) -> None:  # noqa: B027
        """Raise MzplanError if a proposal may not reach these servers, even without a secret.

        Without a policy, a proposal may reach any server.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """References, and the servers to which they may be sent.

    `*` stands for any text. In a file's name, it doesn't match `/`. In a server, it matches part of a host
    name, never a path. A server without a port allows all ports.
    """

    references: tuple[str, ...]
    hosts: tuple[str, ...]

    def covers_reference(self, reference: str) -> bool:
        plain = _plain(reference)
        if _has_parent_path(reference):
            return False
        return any(_pattern(_plain(pattern), "[^/]*").fullmatch(plain) for pattern in self.references)

    def covers_server(self, server: str) -> bool:
        """Return whether an entry of `hosts` matches this server.

        A `*` only matches in host names. A socket's path must be written out.
        """
        host = server.rpartition(":")[0]
        if server.startswith(UNKNOWN):
            return "*" in self.hosts
        patterns = [pattern.lower() for pattern in self.hosts if _HOST.fullmatch(host) or "*" not in pattern]
        return any(_pattern(pattern, ".*").fullmatch(name) for pattern in patterns for name in (server, host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Guard):
    """Allows the flows, functions and packages that a policy file lists, and refuses all others.

    - `path` is shown to people.
    - `functions`: patterns of functions, such as `shop_transforms.*` or `transforms/*.py:*`. Code in the
      runner's process could read every secret.
    - `packages`: patterns of Maven coordinates, such as `org.postgresql:*`, whose jars Spark may load.
    """

    path: str
    allowed: tuple[Allowance, ...]
    functions: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def run(self, subject: str, function: str) -> None:
        """Raises MzplanError MZ363."""
        if any(_pattern(pattern, ".*").fullmatch(function) for pattern in self.functions):
            return
        raise error("MZ363.not-listed", subject=subject, function=function, path=self.path)

    def load(self, subject: str, package: str) -> None:
        """Raises MzplanError MZ363."""
        if any(_pattern(pattern, ".*").fullmatch(package) for pattern in self.packages):
            return
        raise error("MZ363.package-not-listed", subject=subject, package=package, path=self.path)

    def check(self, subject: str, flows: Collection[Flow], *, proposed: bool) -> None:
        """Raises MzplanError MZ106."""
        refused = [flow for flow in sorted(flows) if not self._allows(flow)]
        if not refused:
            return
        reference = refused[0].reference
        is_named = any(allowance.covers_reference(reference) for allowance in self.allowed)
        why = "lists this secret, but not with that server" if is_named else "doesn't list this secret"
        hint = f"to allow it, add to {self.path} (a runner reads it when it starts):\n{lines_for(refused)}"
        if _has_parent_path(reference):
            why = "allows no path with `..`, because it may lead elsewhere behind a link"
            hint = "write the path without `..`; it may be absolute."
        raise error(
            "MZ106.policy-not",
            subject=subject,
            reference=reference,
            shown_route=shown_route(refused[0].route),
            path=self.path,
            why=why,
            how=hint,
        )

    def connect(self, subject: str, routes: Collection[Route]) -> None:
        """Raises MzplanError MZ106."""
        for route in sorted(routes):
            if all(any(allowance.covers_server(server) for allowance in self.allowed) for server in route):
                continue
            raise error(
                "MZ106.policy-not-let",
                subject=subject,
                shown_route=shown_route(route),
                path=self.path,
                lines_for=lines_for([Flow(NO_SECRET, route)]),
            )

    def _allows(self, flow: Flow) -> bool:
        naming = [allowance for allowance in self.allowed if allowance.covers_reference(flow.reference)]
        return bool(naming) and all(
            any(allowance.covers_server(server) for allowance in naming) for server in flow.route
        )


def read_policy(path: str) -> Policy:
    """Read a policy from a TOML file.

    Raises MzplanError MZ105 if it can't be read or contains anything unknown, because it might then not mean
    what its author intended.
    """
    import tomllib  # not for every command

    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as problem:
        raise _unusable_error(path, problem.strerror or "it can't be opened") from None
    except ValueError as problem:
        raise _unusable_error(path, f"it is not TOML: {problem}") from None
    entries = content.pop("allow", [])
    code = {name: content.pop(name, []) for name in ("functions", "packages")}
    for name, given in code.items():
        if not isinstance(given, list) or not all(isinstance(text, str) and text for text in given):
            raise _unusable_error(path, f"its `{name}` must be a list of strings")
    if content:
        raise _unusable_error(path, f"it has the unknown key {min(content)!r}; a policy has only {_FORM}")
    if not isinstance(entries, list):
        raise _unusable_error(path, f"its `allow` is no list; a policy has {_FORM}")
    allowed = tuple(_allowance(path, entry) for entry in entries)
    return Policy(path=path, allowed=allowed, **{name: tuple(given) for name, given in code.items()})


def lines_for(flows: Iterable[Flow]) -> str:
    """Return the lines that a policy needs to allow these flows.

    Leaves out names with `*`, because the lines would allow more, and paths with `..`, because they allow
    nothing.
    """
    servers: dict[str, set[str]] = {}
    for reference, route in flows:
        if "*" not in "".join((reference, *route)) and not _has_parent_path(reference):
            hosts = servers.setdefault(reference, set())
            hosts.update("*" if server.startswith(UNKNOWN) else server for server in route)
    return "\n".join(
        f"[[allow]]\nreferences = [{_quoted(reference) if reference else ''}]\n"
        f"hosts = [{', '.join(map(_quoted, sorted(hosts)))}]"
        for reference, hosts in sorted(servers.items())
    )


def _allowance(path: str, entry: Any) -> Allowance:
    if not isinstance(entry, dict) or entry.keys() != {"references", "hosts"}:
        raise _unusable_error(path, f"an entry has other keys; a policy has {_FORM}")
    for name, values in entry.items():
        if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values):
            raise _unusable_error(path, f"{name} must be a list of strings")
    for reference in entry["references"]:
        if not re.fullmatch(r"\$\{[^:{}]+:[^{}]+\}", reference):
            raise _unusable_error(path, f"{reference!r} isn't a reference such as ${{env:NAME}}")
        if _has_parent_path(reference):
            reason = f"{reference!r} contains `..`, so it would allow nothing: write the path without it"
            raise _unusable_error(path, reason)
    return Allowance(references=tuple(entry["references"]), hosts=tuple(entry["hosts"]))


def _unusable_error(path: str, why: str) -> MzplanError:
    return error("MZ105.policy-cannot", path=path, why=why)


def _plain(reference: str) -> str:
    """Normalize the path of a `file` reference: `./a//b` becomes `a/b`."""
    provider, _, name = reference[2:-1].partition(":")
    return f"${{file:{os.path.normpath(name)}}}" if provider == "file" else reference


def _has_parent_path(reference: str) -> bool:
    """Return whether a `file` reference has `..` in its path. Behind a link, it may lead anywhere."""
    provider, _, name = reference[2:-1].partition(":")
    return provider == "file" and ".." in name.split("/")


def _pattern(pattern: str, any_text: str) -> re.Pattern[str]:
    return re.compile(any_text.join(map(re.escape, pattern.split("*"))), re.DOTALL)


def shown_route(route: Route) -> str:
    """Format a route for people."""
    if not route:
        return "no server"
    *through, last = ("a server that its connector does not name" if s[0] == UNKNOWN else s for s in route)
    return f"{last} through {', '.join(through)}" if through else last


def _quoted(text: str) -> str:
    shown = "".join(c if escaped(c) == c and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{shown}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretValues:
    """Secret values that a command hands to its runner, and when to use them.

    Without `proposal` and `state`, the runner uses the values from now on.

    `values`: values of `${env:NAME}` references, by variable name.
    `flows`: where a command that commits sends secrets.
    `proposal`: the id of a proposal; the runner uses the values only to validate it.
    `state`: the digest of a state (Store.serial_digest); the runner uses the values once it is committed.
    `retry_failed`: whether to retry failed queries at once.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    flows: Collection[Flow] = ()
    proposal: str = ""
    state: str = ""
    retry_failed: bool = False


NO_SECRET_VALUES = SecretValues()
