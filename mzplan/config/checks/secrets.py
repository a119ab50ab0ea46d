"""Checks that secrets are references, that other values aren't, and that no address contains a login."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mzplan.config.documents import texts_in
from mzplan.config.findings import LIKE_A_REFERENCE, Findings, Location, Path, listed, shown
from mzplan.schema.properties import is_sensitive, takes_secret, walk_properties
from mzplan.secrets.logins import holds_login
from mzplan.secrets.references import format_place, is_reference, placed_references

_FORM = "${file:PATH}"
_PROSE = (("description",), ("labels",))  # free text, which may contain anything


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCheck:
    """The check of one body with a schema.

    - `owner`: the resource or file with the body, for messages.
    - `prefix`: how the names of proposed environment variables begin.
    """

    schema: dict[str, Any]
    owner: str
    locate: Callable[[Path], Location]
    findings: Findings
    prefix: str = ""

    def check(self, body: Any, wrong: Collection[Path] = ()) -> None:
        """Report the errors of a body. `wrong`: the paths with errors that are already reported."""
        for path, value in texts_in(body):
            if is_sensitive(self.schema, path):
                if not is_reference(value):
                    self._report_written_out(path, value)
            elif holds_login(value) and path[:1] not in _PROSE:
                self._report_login(path, value)
            elif not any(path[:end] in wrong for end in range(len(path) + 1)):
                self._report_misplaced(path, value)

    def _report_written_out(self, path: Path, value: str) -> None:
        if not LIKE_A_REFERENCE.fullmatch(value):
            self.findings.secrets.add(value)
        name = self.prefix + str(path[-1]).upper().replace(".", "_")
        self.findings.add(
            "MZ016",
            f"Secret written out in {shown(str(path[-1]))}",
            f"{self.owner}: files are shared and kept in history, so a secret in them is no secret.",
            f"write a reference, such as ${{env:{name}}} or {_FORM}, "
            "and change the secret if this file was shared.",
            location=self.locate(path),
            conceal=True,
        )

    def _report_login(self, path: Path, value: str) -> None:
        self.findings.secrets.add(value)
        self.findings.add(
            "MZ016",
            f"Login written out in {shown(str(path[-1]))}",
            f"{self.owner}: the address contains a login or a token, and messages show addresses.",
            "write the address alone, and the password as a reference in its own property; change the "
            "password if this file was shared.",
            location=self.locate(path),
            conceal=True,
        )

    def _report_misplaced(self, path: Path, value: str) -> None:
        references = [reference for _, reference in placed_references(value)]
        if not references or takes_secret(self.schema, path):
            return
        places = [place for place, _ in walk_properties(self.schema)]
        may = [format_place(place) for place in places if takes_secret(self.schema, place)]
        where = f"only {listed(may)} may contain one" if may else "nothing in it may contain one"
        self.findings.add(
            "MZ102",
            f"A secret reference can't stand in {shown(format_place(path))}",
            f"{self.owner}: {references[0]} would be resolved there and its value shown; {where}.",
            "write the value out, or as ${var.NAME}, declared under `variables`.",
            location=self.locate(path),
        )
