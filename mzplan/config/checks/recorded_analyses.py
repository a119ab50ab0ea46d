"""Takes the analysis of a view's SQL from the state, if nothing that it depends on has changed.

A record's `analysis` is a digest of everything that the analysis of its query reads and returns: the view as
declared, the columns and keys of its inputs, the version of the rules, and the result. If the digest is
equal, a new analysis would return the same result. Views that read an inlined view (`materialize: false`)
have no digest, so they are parsed each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan import __version__
from mzplan.config.checks.expressions import columns_read, keys_read
from mzplan.config.checks.inlined_views import is_inlined
from mzplan.config.documents import Declaration
from mzplan.model.address import Address
from mzplan.schema.kinds import resource_kind

if TYPE_CHECKING:
    from mzplan.model.state import ResourceState

Records = Mapping[Address, "ResourceState"]
Body = Mapping[str, Any]
_DERIVED = ("aliases", "from", "key", "reads", "schema", "state")  # properties that may follow from a query
_RULES = ("schema", "config/checks", "connectors/api")  # the packages that an analysis runs through


class RecordedAnalyses:
    """The analyses that the state records.

    `digests`: the digests of this configuration's analyses, by view. A commit records them.
    """

    def __init__(self, declared: Mapping[Address, Declaration], records: Records):
        self._declared, self._records = declared, records
        self.digests: dict[Address, str] = {}

    def reuse(self, resource: Declaration, property_: str, derive: Callable[[Address], None]) -> bool:
        """Complete a view's body from its record in the state; return whether the record still applies.

        Fills in the properties that follow from the view's query. Calls `derive` for each input first, so
        that the input is complete. `resource.body` must be the body as declared.
        """
        record = self._records.get(resource.address)
        if record is None or not record.analysis or record.type != resource.type or is_inlined(resource):
            return False
        given = {name: record.body[name] for name in _DERIVED if name in record.body.keys() - resource.body}
        for _, address in _inputs(resource, given, self._declared):
            derive(address)
        if self._digest(resource, resource.body, given) != record.analysis:
            return False
        for name in given:
            resource.derived[name] = ((property_,), 0)
        resource.body = {**resource.body, **given}
        self.digests[resource.address] = record.analysis
        return True

    def record(self, resource: Declaration, written: Body) -> None:
        """Add the digest of an analysis without findings. `written`: the view's body before the analysis."""
        given = {name: value for name, value in resource.body.items() if name not in written}
        if {**written, **given} == resource.body and (digest := self._digest(resource, written, given)):
            self.digests[resource.address] = digest

    def _digest(self, resource: Declaration, written: Body, given: Body) -> str:
        """Return the digest of an analysis; "" if the analysis reads more than a digest covers."""
        inputs = []
        for role, address in _inputs(resource, given, self._declared):
            read = self._declared.get(address)
            columns = columns_read(read)
            if columns is None or is_inlined(read):
                return ""
            inputs.append((role, str(address), columns, keys_read(read)))
        # A repr tells 1 from True and "1"; equal texts mean equal values.
        content = repr((_rules(), resource.type, written, sorted(given.items()), inputs))
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def _inputs(
    resource: Declaration, given: Body, declared: Mapping[Address, Declaration]
) -> Iterator[tuple[str, Address]]:
    """Yield each collection that a view reads: the property (`reads[0]`) and the address."""
    kind = resource_kind(resource.address.kind, str(resource.type))
    for role, reference, name in kind.references_in({**resource.body, **given}):
        yield role, reference.address(name, declared)


@cache
def _rules() -> str:
    """Return a text that identifies the version of the analysis: mzplan's, sqlglot's, and the source code."""
    from importlib.metadata import version

    root = Path(__file__).parents[2]
    files = sorted(file for package in _RULES for file in (root / package).rglob("*.py"))
    source = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return f"{__version__} {version('sqlglot')} {source}"
