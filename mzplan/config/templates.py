"""`for_each`: a source or sink that is written once and declared for each key of a list or a mapping."""

from __future__ import annotations

from typing import Any

from mzplan.config.documents import MAX_NODES, Declaration, texts_in
from mzplan.config.expansion import MAX_MADE, Expansion, Key, Limits, TooMuchError
from mzplan.config.findings import Findings, Location, kind_of, shown
from mzplan.config.references import EACH, MAX_FILLED
from mzplan.model.words import scalar_text


class Templates:
    """Expands all `for_each` of a project, within its limits."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.limits = Limits(findings)

    def expand(self, template: Declaration) -> list[Declaration]:
        """Return the resources that a declaration with `for_each` creates, and report mistakes.

        A key with a mistake creates no resource. After a mistake, references to undeclared resources aren't
        reported, because the `for_each` may declare them.
        """
        keys = self._keys(template)
        if keys is None:
            self.findings.is_incomplete = True
            return []
        before = self.findings.total
        try:
            resources = Expansion(self.limits, template, keys).resources()
        except TooMuchError:
            self._too_much(template, len(keys))
            resources = []
        if self.findings.total != before:
            self.findings.is_incomplete = True
        return resources

    def check_written_out(self, resource: Declaration) -> None:
        """Report a `${each…}` in a resource without `for_each`."""
        for path, text in texts_in(resource.body):
            if EACH in text:
                self.limits.check(text, resource.location(path))

    def _too_much(self, template: Declaration, keys: int) -> None:
        self.findings.add(
            "MZ007",
            "for_each makes the project too large",
            f"{template.label} has {keys:,} keys. All `for_each` may make {MAX_MADE:,} resources, "
            f"{MAX_FILLED:,} characters, and {MAX_NODES:,} keys and values.",
            "give it fewer keys, or split the project.",
            location=template.location(("for_each",), at_key=True),
        )

    def _keys(self, template: Declaration) -> list[Key] | None:
        """Return the keys; None if there is a mistake in them."""
        given, at = template.body["for_each"], template.location(("for_each",))
        if self.findings.is_unusable_below(at):
            return None
        before = self.findings.total
        for path, text in texts_in(given, ("for_each",)):
            if EACH in text:
                self.limits.check(text, template.location(path))
        if isinstance(given, dict):
            keys = [Key(key, value, key) for key, value in given.items()]
        elif isinstance(given, list):
            keys = [Key(scalar_text(item), item, index) for index, item in enumerate(given)]
            for index, item in enumerate(given):
                if item is None or isinstance(item, dict | list):
                    self._not_simple(template, index, item)
        else:
            self._no_keys(template, given, at)
            return None
        return keys if self.findings.total == before else None

    def _no_keys(self, template: Declaration, given: Any, location: Location) -> None:
        actual = f"{kind_of(given)} ({shown(given)})" if isinstance(given, str) else kind_of(given)
        self.findings.add(
            "MZ251",
            "for_each needs a list or a mapping",
            f"{template.label}: found {actual}. A variable is one simple value, not a list.",
            "write `for_each: [orders, clicks]`, or `for_each: {orders: shop.orders}`; each item or value "
            "may be a ${var.NAME}.",
            location=location,
        )

    def _not_simple(self, template: Declaration, index: int, item: Any) -> None:
        self.findings.add(
            "MZ251",
            f"An item of for_each is {kind_of(item)}",
            f"{template.label}: each item of a list is a key, so it must be text or a number.",
            "write a mapping with a key for each item: `for_each: {orders: {topic: shop.orders}}`.",
            location=template.location(("for_each", index)),
        )
