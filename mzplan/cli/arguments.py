"""What arguments and options hold: addresses and durations, and how the shell completes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args
from urllib.parse import urlsplit

import click

from mzplan.cli import known_names
from mzplan.model.address import Address, is_glob
from mzplan.model.observed import Condition
from mzplan.model.times import DURATION_FORM, instant, seconds

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


F = TypeVar("F", bound=Callable[..., Any])
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
_PRINTABLE = re.compile(r"[!-~]+")  # of a URL: what is not, is written %XX


class AddressType(click.ParamType[Address]):
    """`source.orders` on the command line. `queries_only`: what runs, so no connections, is completed."""

    name = "address"

    def __init__(self, *, queries_only: bool = False):
        self.queries_only = queries_only

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        try:
            address = value if isinstance(value, Address) else Address.parse(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)
        if self.queries_only and address.kind == "connection":
            self.fail(f"{address} runs nothing: name a source or a sink.", param, ctx)
        return address

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return known_names.addresses(ctx, incomplete, queries_only=self.queries_only)


class SelectedType(AddressType):
    """An address of a query, or a glob over them (`sink.pg_*`), which stays text."""

    def __init__(self) -> None:
        super().__init__(queries_only=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, str) and is_glob(value) else super().convert(value, param, ctx)


class NameType(click.ParamType[str]):
    """A name. `known`: those that a shell is offered."""

    name = "text"

    def __init__(self, known: Callable[[click.Context, str], list[CompletionItem]]):
        self.known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self.known(ctx, incomplete)


class LabelType(click.ParamType[tuple[str, str]]):
    """`team=billing`: a label and its value."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, wanted = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is no label with its value: write KEY=VALUE.", param, ctx)
        return key, wanted

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return known_names.labels(ctx, incomplete)


class TimeType(click.ParamType[int]):
    """`2026-11-01T08:00:00Z`: milliseconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = value if isinstance(value, int) else instant(str(value))
        if found is None:
            self.fail(f"{value!r} is no time with its zone, such as 2026-11-01T08:00:00Z.", param, ctx)
        return found


class AddressOrFileType(click.ParamType[str]):
    """An address, or the path of a saved plan."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return known_names.addresses(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


class DurationType(click.ParamType[float]):
    """`90s`, `5m`, `1h`, `500ms`: seconds as a float."""

    name = "duration"
    LONGEST = 366 * 86_400.0  # seconds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        if not DURATION_FORM.fullmatch(str(value)):
            raise click.BadParameter(f"{value!r} is not a duration: write 90s, 5m or 1h", ctx, param)
        return min(seconds(str(value)), self.LONGEST)


class DigestType(click.ParamType[str]):
    """The digest of a plan, as `plan` shows it."""

    name = "digest"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", str(value)):
            self.fail(f"{value!r} is no digest of a plan: sha256: and 64 hex digits.", param, ctx)
        return str(value)


class WebAddressType(click.ParamType[str]):
    """`https://…`: where a browser finds something. Without a login: whoever reads it would have that."""

    name = "url"
    LONGEST = 2_000

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            parts = urlsplit(text)
            host = parts.hostname if parts.port != 0 else None
        except ValueError:
            self.fail(f"{text[:80]!r} is no URL.", param, ctx)
        if parts.scheme not in ("http", "https") or not host:
            self.fail(f"{text[:80]!r} is no URL of a page: write https://HOST/PATH.", param, ctx)
        if parts.username is not None or parts.password is not None:
            self.fail("a URL with a login shows it to all who read it: write it without.", param, ctx)
        if len(text) > self.LONGEST or not _PRINTABLE.fullmatch(text):
            most = f"{self.LONGEST:,}"
            self.fail(f"{text[:80]!r} has blanks or odd characters, or more than {most} of them.", param, ctx)
        return text


def selecting(*, required: bool = False) -> Callable[[F], F]:
    """What a command is about, as one argument `selection`. `required`: else all is meant."""

    def decorate(function: F) -> F:
        @click.argument("named", metavar="[ADDRESS]...", nargs=-1, type=SelectedType())
        @click.option(
            "--connection",
            "connections",
            metavar="NAME",
            multiple=True,
            type=NameType(known_names.connections),
            help="Those that use this connection, also through others; repeatable.",
        )
        @click.option(
            "--label",
            "labels",
            metavar="K=V",
            multiple=True,
            type=LabelType(),
            help="Those with this label; repeated: with all of them.",
        )
        @click.option(
            "--condition",
            "conditions",
            multiple=True,
            metavar="C",
            type=click.Choice(CONDITIONS),
            help=f"Those that are {', '.join(CONDITIONS[:-1])} or {CONDITIONS[-1]}; repeatable.",
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
                    "Say which: an address, a glob ('*': all of them), --connection, --label or --condition."
                )
            return function(*arguments, selection=selection, **given)

        return cast(F, called)

    return decorate


ADDRESS = AddressType()
QUERY = AddressType(queries_only=True)
ADDRESS_OR_FILE = AddressOrFileType()
DURATION = DurationType()
TIME = TimeType()
DIGEST = DigestType()
WEB_ADDRESS = WebAddressType()
EXAMPLE = NameType(known_names.example_names)
SCHEMA = NameType(known_names.schemas)
INSTANCE = NameType(known_names.instances)
ENVIRONMENT = NameType(known_names.environments)

policy_option = click.option(
    "--policy",
    metavar="FILE",
    envvar="MZPLAN_POLICY",
    help="Which secrets may go to which hosts, whatever the store or the files say (TOML, docs/security.md); "
    "also as MZPLAN_POLICY.",
)
send_secrets_option = click.option(
    "--send-secrets",
    is_flag=True,
    help="Validating from here, send every secret that the files name to where they say: for files that are "
    "yours, or that you have read. Without it, only where the committed state or --policy sends it.",
)
