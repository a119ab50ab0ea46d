"""Where run events go, and with which key: what mzplan.yaml says, as far as it has a say in that.

A runner's environment is its own machine's word: OPENLINEAGE_URL, and OPENLINEAGE_API_KEY, which goes there
alone. mzplan.yaml may be a checkout's: its `lineage` sends the key that it names only where a policy lets it,
or, without a policy, where its folder is no checkout. The library's own search for settings (openlineage.yml
in the current folder, OPENLINEAGE__… variables) is never used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mzplan.connectors.network import server_of_url
from mzplan.host.checkout import may_be_foreign
from mzplan.host.network import is_loopback
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.resources import RunEventSettings
from mzplan.secrets.logins import has_login
from mzplan.secrets.policy import Flow, Policy
from mzplan.secrets.references import Secrets
from mzplan.secrets.resolved import remember

URL_VARIABLE, KEY_VARIABLE = "OPENLINEAGE_URL", "OPENLINEAGE_API_KEY"
DISABLED_VARIABLE = "OPENLINEAGE_DISABLED"
_SUBJECT = "lineage of mzplan.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """`url` ends with a slash. `key` gives the key each time anew, None for none; it raises MzplanError."""

    url: str
    timeout: float
    key: Callable[[], str] | None = None

    @property
    def server(self) -> str:
        return server_of_url(self.url)


def receiver_of(
    wanted: RunEventSettings,
    directory: str,
    secrets: Secrets,
    policy: Policy | None,
    environment: Mapping[str, str],
) -> Receiver | None:
    """None where no server is named. Raises MzplanError: MZ178 for a variable that names none that can be
    used, MZ106 where the policy does not have it, MZ107 for a key that only a checkout sends."""
    if environment.get(DISABLED_VARIABLE, "").lower() == "true":
        return None
    if url := environment.get(URL_VARIABLE, "").strip():
        key = environment.get(KEY_VARIABLE, "").strip()
        remember(key) if key else None
        base = _base(url, URL_VARIABLE)
        return Receiver(url=base, timeout=wanted.timeout, key=(lambda: key) if key else None)
    if not wanted.url:
        return None
    base = _base(wanted.url, _SUBJECT)
    if not wanted.api_key:
        if policy is not None:
            policy.connect(_SUBJECT, [(server_of_url(base),)])
        return Receiver(url=base, timeout=wanted.timeout)
    _permit(wanted, directory, policy)
    return Receiver(url=base, timeout=wanted.timeout, key=lambda: secrets.resolve(wanted.api_key).strip())


def clear_text(receiver: Receiver) -> Diagnostic | None:
    """MZ116 for a key that everybody between here and the server could read."""
    parts = urlsplit(receiver.url)
    if receiver.key is None or parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return None
    return Diagnostic(
        severity="warning",
        code="MZ116",
        summary="The key for run events is sent in clear",
        detail=f"Their server is at http://: whoever is between here and {parts.hostname} can read it.",
        hint="use https://.",
    )


def _permit(wanted: RunEventSettings, directory: str, policy: Policy | None) -> None:
    if policy is not None:
        policy.check(_SUBJECT, [Flow(wanted.api_key, (server_of_url(wanted.url),))], proposed=False)
    elif may_be_foreign(Path(directory)):
        raise error(
            "MZ107",
            f"The key for run events, {wanted.api_key}, is not sent to {server_of_url(wanted.url)}",
            "mzplan.yaml is in a checkout, or this is a CI job: its author could get at the key.",
            f"set {URL_VARIABLE} and {KEY_VARIABLE} where the runner is started; or allow it in a policy "
            "(mzplan "
            "run --policy FILE).",
        )


def _base(url: str, said_by: str) -> str:
    """Without what comes after the path, and with a slash at its end: else its last part were replaced."""
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, a bracket too many
        is_server = False
    if not is_server or re.search(r"[\s\\]", url) or has_login(url):
        raise error(
            "MZ178",
            f"{said_by} names no server for run events",
            "It must be http:// or https:// and a host, without a user, a password or a token.",
            f"correct it, the key apart in {KEY_VARIABLE} or api_key, and restart the runner.",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
