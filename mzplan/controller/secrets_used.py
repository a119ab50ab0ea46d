"""Which values of secrets the queries of an instance run with: digests of them, for the Status."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description, references_of
from mzplan.secrets.digests import digest_secret, new_salt, salt_of
from mzplan.secrets.references import Secrets


class SecretsUsed:
    """Notes, at each start of a query, what its references resolved to. Used from several threads.

    `known` are the digests of an earlier status: they hold for queries that nobody has started since.
    """

    def __init__(self, known: Mapping[str, str]):
        # Those of earlier versions of mzplan can be guessed at by whoever reads the store: they go.
        self._known = {reference: digest for reference, digest in known.items() if salt_of(digest)}
        self._salt = next(filter(None, map(salt_of, known.values())), None) or new_salt()
        self._lock = threading.Lock()
        # In the order of the last start: the first that uses a reference may still have an old value.
        self._used: dict[Address, dict[str, str]] = {}

    def read(self, description: Description, secrets: Secrets) -> dict[str, str]:
        """The values that a query that starts now will have, by reference; none that can't be resolved."""
        found = {}
        for reference in references_of(description):
            try:
                found[reference] = secrets.resolve(reference)
            except MzplanError:
                continue
        return found

    def started(self, address: Address, values: Mapping[str, str]) -> None:
        """The query runs, with these values."""
        digests = {r: digest_secret(r, value, self._salt) for r, value in values.items()}
        with self._lock:
            self._used.pop(address, None)
            self._used[address] = digests

    def digests(self, running: Mapping[Address, Collection[str]]) -> dict[str, str]:
        """By reference, for all that these queries refer to: the digest of the value in use, of the oldest
        one where a query has not been restarted since it changed."""
        with self._lock:
            for address in self._used.keys() - running.keys():
                del self._used[address]
            noted: dict[str, str] = {}
            for digests in self._used.values():
                for reference, digest in digests.items():
                    noted.setdefault(reference, digest)
        wanted = {reference for references in running.values() for reference in references}
        return {r: d for r, d in sorted({**self._known, **noted}.items()) if r in wanted}
