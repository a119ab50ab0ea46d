"""Posts notifications to webhooks. Each URL is a secret; it stays out of logs and errors."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mzplan.connectors.network import server_of_url
from mzplan.host.network import is_loopback
from mzplan.model.resources import Webhook
from mzplan.runner.loop import Runner
from mzplan.runner.metrics import FindDrift
from mzplan.runner.notifications import Message, Notifier, RefusedMessageError
from mzplan.secrets.policy import Flow, Policy
from mzplan.secrets.references import Secrets
from mzplan.secrets.resolved import remember

TIMEOUT = 10.0  # seconds
_REFUSED = (400, 404, 410, 413, 422)  # the message or the URL itself is wrong, so a retry can't help
_SECRET_LENGTH = 8  # characters: shorter parts of a URL, such as /data, aren't masked in other texts
_SUBJECT = "notify of mzplan.yaml"


def notify(
    runner: Runner,
    project: str,
    hook: Webhook,
    secrets: Secrets,
    policy: Policy | None,
    find_drift: FindDrift,
) -> Notifier:
    """Start to notify a webhook about the runner's instance."""
    return Notifier(runner, project, hook, webhook(hook.url, secrets, policy), find_drift).start()


def webhook(url: str, secrets: Secrets, policy: Policy | None) -> Callable[[Message], None]:
    """Return a function that posts a message to the webhook that a reference names.

    It resolves the URL anew for each message. It raises RefusedMessageError if the server will never accept
    the message, and MzplanError, ValueError or OSError if a retry may help.
    """

    def send(message: Message) -> None:
        address = secrets.resolve(url).strip()
        remember(address)
        parts = urlsplit(address)
        for part in (parts.path, parts.query):  # some errors contain only these parts
            if len(part.strip("/")) >= _SECRET_LENGTH:
                remember(part)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        is_one_line = address.isprintable() and " " not in address
        if not parts.hostname or not is_safe or not is_one_line:
            raise ValueError("its value isn't an https:// URL")
        if policy is not None:
            policy.check(_SUBJECT, [Flow(url, (server_of_url(address),))], proposed=False)
        _post(address, message)

    return send


def _post(url: str, message: Message) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "mzplan"}
    request = urllib.request.Request(url, json.dumps(message).encode(), headers, method="POST")
    try:
        with _opener.open(request, timeout=TIMEOUT):
            return
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code in _REFUSED:
            raise RefusedMessageError(f"it answers {problem.code}") from None
        raise ConnectionError(f"it answers {problem.code}") from None
    except urllib.error.URLError as problem:
        raise ConnectionError(f"it can't be reached: {problem.reason}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because it could lead the message elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)
