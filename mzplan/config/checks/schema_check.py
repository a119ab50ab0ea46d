"""Reports each error of a body against its JSON Schema, in plain words.

It also checks that secrets are references, that other values aren't, and that no address contains a login.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from mzplan.config.checks.requirements import in_words, requirement, type_hint, type_words, value_hint
from mzplan.config.documents import texts_in
from mzplan.config.findings import LIKE_A_REFERENCE, Findings, Location, Path
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.words import did_you_mean, kind_of, listed, nearest, shown
from mzplan.schema.dialect import Json
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import is_sensitive, schema_at, takes_secret, value_at, walk_properties
from mzplan.schema.validators import errors_of
from mzplan.secrets.logins import has_login, holds_login
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
            "MZ016.secret-written",
            self.locate(path),
            conceal=True,
            key=str(path[-1]),
            owner=self.owner,
            name=name,
        )

    def _report_login(self, path: Path, value: str) -> None:
        self.findings.secrets.add(value)
        self.findings.add(
            "MZ016.login-written", self.locate(path), conceal=True, key=str(path[-1]), owner=self.owner
        )

    def _report_misplaced(self, path: Path, value: str) -> None:
        references = [reference for _, reference in placed_references(value)]
        if not references or takes_secret(self.schema, path):
            return
        places = [place for place, _ in walk_properties(self.schema)]
        may = [format_place(place) for place in places if takes_secret(self.schema, place)]
        where = f"only {listed(may)} may contain one" if may else "nothing in it may contain one"
        self.findings.add(
            "MZ102.secret-reference",
            self.locate(path),
            format_place=format_place(path),
            owner=self.owner,
            reference=references[0],
            where=where,
        )


_MAX_UNKNOWN = 20  # unknown keys reported one by one in one mapping


class BodyCheck:
    """Reports the errors of one body.

    - `sensitive`: returns whether the value at a path is a secret.
    - `elsewhere`: returns the fix for a top-level key that belongs elsewhere; "" for other keys.
    """

    def __init__(
        self,
        findings: Findings,
        location: Callable[[Path, bool], Location],
        subject: str,
        sensitive: Callable[[Path], bool] = lambda path: False,
        elsewhere: Callable[[str], str] = lambda key: "",
    ):
        self.findings, self.location = findings, location
        self.subject, self.sensitive, self.elsewhere = subject, sensitive, elsewhere

    def report(self, name: str, body: Any) -> set[Path]:
        """Add every error of the body to the findings. Returns the paths that are wrong."""
        schema = load_schema(name)
        errors = errors_of(name, schema, body)
        # Report rules between properties only if each property is valid by itself.
        single = [(path, error) for path, error in errors if error.schema_path[0] != "allOf"]
        wrong: set[Path] = set()
        rules: set[int] = set()
        for path, error in single or errors:
            if error.schema_path[0] == "allOf":
                rules.add(int(error.schema_path[1]))
            else:
                self._one(error, schema, body, path)
                wrong.add(path)
        for index in sorted(rules):
            self._rule(schema["allOf"][index])
        return wrong

    def _rule(self, rule: Json) -> None:
        """Report a rule of a schema, which has its own message."""
        location = self.location(tuple(rule.get("x-at", ())), False)
        diagnostic = Diagnostic(
            code=rule.get("x-code", "MZ020"),
            summary=rule.get("x-summary", "Options that don't go together"),
            detail=f"{self.subject}: {rule.get('x-detail', rule.get('description', ''))}",
            hint=rule.get("x-hint", ""),
            address=location.address,
        )
        self.findings.report(diagnostic, location)

    def _one(self, error: Any, schema: Json, body: Any, path: Path) -> None:
        kind = error.kind
        inner = schema_at(schema, path)
        value = value_at(body, path)
        match kind.name:
            case "additionalProperties":
                self._report_unknown(kind.unexpected, inner, value, path)
            case "required":
                self._report_missing(kind.property, error, inner, value, path)
            case "type":
                self._type(_flat(kind.types), inner, value, path)
            case "enum" | "const":
                options = kind.options if kind.name == "enum" else [kind.expected_value]
                self._choice(list(options), value, path)
            case "propertyNames":
                self._names(inner, value, path)
            case _:
                self._value(kind.name, inner, value, path)

    def _report_unknown(self, unexpected: Iterable[str], inner: Json, value: Any, path: Path) -> None:
        properties: Json = inner.get("properties", {})
        valid = sorted(name for name in properties if not properties[name].get("x-derived"))
        keys = list(unexpected)
        for key in keys[:_MAX_UNKNOWN]:
            free = [word for word in valid if not isinstance(value, dict) or word not in value]
            near = nearest(key, free)
            self.findings.add(
                "MZ004.unknown-key-keys",
                self.location((*path, key), True),
                conceal=near is None or self.sensitive((*path, near)),
                key=key,
                name=self._name(path),
                valid=valid,
                fix=(self.elsewhere(key) if not path else inner.get("x-elsewhere", {}).get(key, ""))
                or (f"did you mean {shown(near)}?" if near is not None else "remove it."),
            )
        if len(keys) > _MAX_UNKNOWN:
            self.findings.add(
                "MZ004.more-unknown", self.location(path, True), number=len(keys) - _MAX_UNKNOWN
            )

    def _report_missing(self, key: str, error: Any, inner: Json, value: Any, path: Path) -> None:
        # A misspelled key has been reported as unknown already.
        near = nearest(key, (k for k in value if k not in inner.get("properties", {}))) if value else None
        if near is not None:
            return
        detail = f"{self._name(path)} needs it"
        if error.schema_path[-1] == "dependentRequired":
            with_it = [
                k for k, needs in inner.get("dependentRequired", {}).items() if key in needs and k in value
            ]
            detail = f"{listed(with_it)} and {key} must be set together"
        about = inner.get("properties", {}).get(key, {}).get("description", "")
        self.findings.add(
            "MZ006.missing-key-add", self.location(path, True), key=key, about=f"{detail}. {about}".strip()
        )

    def _type(self, types: list[str], inner: Json, value: Any, path: Path) -> None:
        expected = type_words(types)
        secret = self.sensitive(path)
        location = self.location(path, False)
        text = self.findings.original_texts.get((location.file.full_path, location.path), shown(value))
        actual = (
            kind_of(value)
            if secret or isinstance(value, dict | list | None)
            else f"{kind_of(value)} ({text})"
        )
        self.findings.add(
            "MZ005.wrong-type",
            location,
            conceal=secret,
            key=_key(path),
            expected=f"Expected {expected}, found {actual}. {inner.get('description', '')}".strip(),
            type_hint=type_hint(types, value, text, secret),
        )

    def _choice(self, options: list[Any], value: Any, path: Path) -> None:
        words = [shown(option, quote=False) for option in options]
        fault = "" if self.sensitive(path) else f"{shown(value)} is not one of its values. "
        allowed = f"It can only be {words[0]}." if len(words) == 1 else f"It can be {', '.join(words)}."
        hint = did_you_mean(value, [o for o in options if isinstance(o, str)], shown)
        self.findings.add(
            "MZ005.wrong-value",
            self.location(path, False),
            key=_key(path),
            fault=fault,
            allowed=allowed,
            how=hint or (f"write {words[0]}." if len(words) == 1 else "use one of these."),
        )

    def _names(self, inner: Json, value: Any, path: Path) -> None:
        pattern = inner.get("propertyNames", {}).get("pattern", "")
        for key in list(value)[:_MAX_UNKNOWN] if isinstance(value, dict) else []:
            if re.search(pattern.replace("$", r"\Z"), key) is None:
                self.findings.add(
                    "MZ011.cannot-key",
                    self.location((*path, key), True),
                    conceal=True,
                    key=key,
                    name=self._name(path),
                    in_words=in_words(pattern),
                )

    def _value(self, rule: str, inner: Json, value: Any, path: Path) -> None:
        if holds_login(value) and not self.sensitive(path):
            return  # MZ016: see SecretCheck
        secret = self.sensitive(path) or has_login(value)
        fault = "" if secret else f"{shown(value)} can't be used here. "
        self.findings.add(
            "MZ005.unmet-requirement",
            self.location(path, False),
            conceal=secret,
            key=_key(path),
            requirement=f"{fault}{requirement(rule, inner)} {inner.get('description', '')}".strip(),
            value_hint=value_hint(rule, inner, value),
        )

    def _name(self, path: Path) -> str:
        return f"{self.subject}.{'.'.join(map(str, path))}" if path else self.subject


def _flat(types: Any) -> list[str]:
    return [types] if isinstance(types, str) else list(types)


def _key(path: Path) -> str:
    """Return the last name of a path, with the index of a list item: `brokers[1]`."""
    text = ""
    for key in path:
        text = f"{text}[{key}]" if isinstance(key, int) else key
    return text
