"""Decides which server receives run events, and with which key.

The runner trusts its environment: OPENLINEAGE_URL names the server, and OPENLINEAGE_API_KEY goes only to that
server. mzplan.yaml may come from a checkout, so the runner sends the key that its `lineage` names only if a
policy allows it or, without a policy, if the folder isn't a checkout.

mzplan never uses the library's own search for settings (openlineage.yml in the current folder,
OPENLINEAGE__… variables).
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
    """The server that receives run events."""

    url: str
    """Ends with a slash."""
    timeout: float
    key: Callable[[], str] | None = None
    """Resolves the key anew on each call; raises MzplanError. None without a key."""

    @property
    def server(self) -> str:
        return server_of_url(self.url)


def receiver_of(
    settings: RunEventSettings,
    directory: str,
    secrets: Secrets,
    policy: Policy | None,
    environment: Mapping[str, str],
) -> Receiver | None:
    """Return the server for run events; None if no server is named.

    Raises MzplanError: MZ178 for a URL that can't be used, MZ106 if the policy doesn't allow the server or
    the key, MZ107 for a key that a checkout would send without a policy.
    """
    if environment.get(DISABLED_VARIABLE, "").lower() == "true":
        return None
    if url := environment.get(URL_VARIABLE, "").strip():
        key = environment.get(KEY_VARIABLE, "").strip()
        remember(key) if key else None
        base = _base_url(url, URL_VARIABLE)
        return Receiver(url=base, timeout=settings.timeout, key=(lambda: key) if key else None)
    if not settings.url:
        return None
    base = _base_url(settings.url, _SUBJECT)
    if not settings.api_key:
        if policy is not None:
            policy.connect(_SUBJECT, [(server_of_url(base),)])
        return Receiver(url=base, timeout=settings.timeout)
    _permit(settings, directory, policy)
    return Receiver(url=base, timeout=settings.timeout, key=lambda: secrets.resolve(settings.api_key).strip())


def cleartext_warning(receiver: Receiver) -> Diagnostic | None:
    """Return the warning MZ116 if the key goes to the server without encryption; otherwise None."""
    parts = urlsplit(receiver.url)
    if receiver.key is None or parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return None
    return Diagnostic.of("MZ116.unencrypted-event-key", hostname=parts.hostname)


def _permit(settings: RunEventSettings, directory: str, policy: Policy | None) -> None:
    server = server_of_url(settings.url)
    if policy is not None:
        policy.check(_SUBJECT, [Flow(settings.api_key, (server,))], proposed=False)
    elif may_be_foreign(Path(directory)):
        raise error(
            "MZ107.untrusted-event-key",
            key=settings.api_key,
            server=server,
            url_variable=URL_VARIABLE,
            key_variable=KEY_VARIABLE,
        )


def _base_url(url: str, source: str) -> str:
    """Return the URL without query and fragment, with a slash at the end.

    Without the slash, joining a path would replace the URL's last part. Raises MzplanError: MZ178.
    """
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or an unmatched bracket
        is_server = False
    if not is_server or re.search(r"[\s\\]", url) or has_login(url):
        raise error("MZ178.no-event-server", source=source, key_variable=KEY_VARIABLE)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
