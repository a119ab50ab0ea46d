"""Types of arguments and options, such as addresses and durations, with shell completion."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast, get_args
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from mzplan.cli import known_names
from mzplan.model.address import Address, is_glob, natural
from mzplan.model.observed import Condition
from mzplan.model.times import DURATION_FORM, instant, seconds

F = TypeVar("F", bound=Callable[..., Any])
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
LONGEST_DURATION = 366 * 86_400.0  # seconds
LONGEST_URL = 2_000
_PRINTABLE = re.compile(r"[!-~]+")  # other characters of a URL must be percent-encoded


class ParsedType(click.ParamType[Any]):
    """A parameter type that converts text with `parse`, which raises ValueError with the reason.

    - `names`: returns the names that a shell can complete.
    - `or_files`: whether a shell completes file names if no name fits.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Any] = str,
        names: Callable[[click.Context], Iterable[str]] | None = None,
        *,
        or_files: bool = False,
    ):
        self.name, self.parse, self.names, self.or_files = name, parse, names, or_files

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # already parsed
        try:
            return self.parse(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names: Iterable[str] = ()
        if self.names is not None:
            with suppress(Exception):  # a shell can't show an error
                names = sorted(self.names(ctx), key=natural)
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or ([CompletionItem(incomplete, type="file")] if self.or_files else [])


def _step(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"{text!r} is not the number of a step, such as 12.")
    return int(text)


def _range(text: str) -> tuple[int, int | None]:
    """Parse `12`, `12..20` or `12..` as first and last step."""
    match = re.fullmatch(r"(\d{1,20})(?:(\.\.)(\d{1,20})?)?", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a range of steps: write 12, 12..20 or 12..")
    first = int(match[1])
    last = int(match[3]) if match[3] else (None if match[2] else first)
    if last is not None and last < first:
        raise ValueError(f"{text!r} ends before it begins")
    return first, last


def _address_or_column(text: str) -> tuple[Address, str]:
    """Parse an address, and after another point the name of a column; "" without one."""
    kind, _, rest = text.partition(".")
    name, _, column = rest.partition(".")
    return Address.parse(f"{kind}.{name}"), column


def _query(text: str) -> Address:
    address = Address.parse(text)
    if address.is_connection:
        raise ValueError(f"{address} isn't a query: name a source, a view or a sink.")
    return address


def _query_or_glob(text: str) -> Address | str:
    return text if is_glob(text) else _query(text)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not a label with its value: write KEY=VALUE.")
    return key, value


def _time(text: str) -> int:
    """Parse a time as milliseconds since the epoch."""
    milliseconds = instant(text)
    if milliseconds is None:
        raise ValueError(f"{text!r} is not a time with its zone, such as 2026-11-01T08:00:00Z.")
    return milliseconds


def _duration(text: str) -> float:
    """Parse a duration as seconds."""
    if not DURATION_FORM.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration: write 90s, 5m or 1h")
    return min(seconds(text), LONGEST_DURATION)


def _digest(text: str) -> str:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", text):
        raise ValueError(f"{text!r} is not a digest of a plan: sha256: and 64 hex digits.")
    return text


def _web_address(text: str) -> str:
    """Check a URL for a browser. It can't contain a login, because every reader would see it."""
    try:
        parts = urlsplit(text)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not a URL.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"{text[:80]!r} is not a URL of a page: write https://HOST/PATH.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("everyone who reads the URL would see its login; leave the login out.")
    if len(text) > LONGEST_URL or not _PRINTABLE.fullmatch(text):
        most = f"{LONGEST_URL:,}"
        raise ValueError(f"{text[:80]!r} has spaces or invalid characters, or more than {most} characters.")
    return text


def _since(text: str) -> float:
    """Parse `10m` (ago), or a time such as `2026-01-31T10:00`, as seconds since the epoch."""
    if DURATION_FORM.fullmatch(text):
        return time.time() - seconds(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is neither a duration (10m) nor a time (2026-01-31T10:00).") from None


ADDRESS = ParsedType("address", Address.parse, known_names.addresses)
ADDRESS_OR_COLUMN = ParsedType("address", _address_or_column, known_names.addresses)
STEP = ParsedType("step", _step)
STEPS = ParsedType("range", _range)
QUERY = ParsedType("address", _query, known_names.queries)
ADDRESS_OR_FILE = ParsedType("text", names=known_names.addresses, or_files=True)
LABEL = ParsedType("text", _label, known_names.labels)
CONNECTION = ParsedType("text", names=known_names.connections)
EXAMPLE = ParsedType("text", names=lambda ctx: known_names.examples())
SCHEMA = ParsedType("text", names=known_names.schemas)
TEST = ParsedType("text", names=known_names.tests)
INSTANCE = ParsedType("text", names=known_names.instances)
ENVIRONMENT = ParsedType("text", names=known_names.environments)
DURATION = ParsedType("duration", _duration)
TIME = ParsedType("time", _time)
SINCE = ParsedType("time", _since)
DIGEST = ParsedType("digest", _digest)
WEB_ADDRESS = ParsedType("url", _web_address)


def selecting(*, required: bool = False) -> Callable[[F], F]:
    """Add the arguments that select queries, as one argument `selection`.

    `required`: refuse an empty selection, which would mean all queries.
    """

    def decorate(function: F) -> F:
        @click.argument(
            "named",
            metavar="[ADDRESS]...",
            nargs=-1,
            type=ParsedType("address", _query_or_glob, known_names.queries),
        )
        @click.option(
            "--connection",
            "connections",
            metavar="NAME",
            multiple=True,
            type=CONNECTION,
            help="Limit to queries that use this connection, directly or through other connections; "
            "repeatable.",
        )
        @click.option(
            "--label",
            "labels",
            metavar="K=V",
            multiple=True,
            type=LABEL,
            help="Only queries with this label; repeat to require several.",
        )
        @click.option(
            "--condition",
            "conditions",
            multiple=True,
            metavar="C",
            type=click.Choice(CONDITIONS),
            help=f"Only queries in this condition: {', '.join(CONDITIONS[:-1])} or {CONDITIONS[-1]}; "
            "repeatable.",
        )
        @wraps(function)
        def called(
            *arguments: Any,
            named: tuple[Any, ...],
            connections: tuple[str, ...],
            labels: tuple[tuple[str, str], ...],
            conditions: tuple[Any, ...],
            **given: Any,
        ) -> Any:
            from mzplan.operations.selection import Selection

            selection = Selection(named=named, connections=connections, labels=labels, conditions=conditions)
            if required and selection.is_everything:
                raise click.UsageError(
                    "Name queries: an address, a glob ('*' for all), --connection, --label or --condition."
                )
            return function(*arguments, selection=selection, **given)

        return cast(F, called)

    return decorate


policy_option = click.option(
    "--policy",
    metavar="FILE",
    envvar="MZPLAN_POLICY",
    help="A TOML file that limits which secrets may go to which hosts (docs/security.md; $MZPLAN_POLICY).",
)
send_secrets_option = click.option(
    "--send-secrets",
    is_flag=True,
    help="If this machine validates instead of a runner, send secrets to every server that the files name. "
    "Use this only for files that you trust. Without it, secrets go only where the committed state or "
    "--policy allows.",
)
