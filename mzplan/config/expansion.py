"""Expands one `for_each` for each of its keys.

Only the parts that depend on the key are copied: texts with `${each…}`, and the containers around them.
The keys share the other parts, like an alias in YAML. Therefore no code may modify a parsed body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mzplan.config.documents import MAX_NODES, Declaration, size_of
from mzplan.config.findings import HERE, Findings, Location, Path
from mzplan.config.references import EACH, MAX_FILLED, check_references
from mzplan.model.address import MAX_NAME, Address, is_valid_name
from mzplan.model.words import listed, scalar_text, shown

_REFERENCE = re.compile(r"\$\{each\.(key|value(?:\.[A-Za-z_][A-Za-z0-9_-]*)*)\}")
_OWN = ("for_each", "name")
_KEYS_SHOWN = 3
MAX_MADE = 100_000  # resources of a project that `for_each` makes


class TooMuchError(Exception):
    """An expansion would exceed a limit."""


class _MissingValueError(Exception):
    """A reference has no value for a key; the text says why, as a sentence about that value."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a `for_each`, its value, and the path of the value below the `for_each`."""

    key: str
    value: Any
    place: str | int


@dataclass(slots=True)
class _Text:
    """A text with references. `missing`: by reason, the keys without a value for one of them."""

    path: Path
    parts: list[str | tuple[str, ...]]
    is_single: bool
    missing: dict[str, list[str]] = field(default_factory=dict)
    broken: bool = False


@dataclass(slots=True)
class _Branch:
    """A mapping or a list, and the parts of it that depend on the key."""

    value: Any
    inner: dict[Any, _Text | _Branch]


class Limits:
    """Counts what all templates of a project make, within limits, and checks references in their texts."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self._made = self._characters = 0

    def check(self, text: str, location: Location) -> bool:
        return check_references(text, lambda: location, self.findings)

    def count(self, made: int, nodes: int, characters: int) -> None:
        """Count nodes before they are made. Raises TooMuchError beyond a limit."""
        self._made += made
        self._characters += characters
        self.findings.nodes += nodes
        if self._made > MAX_MADE or self._characters > MAX_FILLED or self.findings.nodes > MAX_NODES:
            raise TooMuchError


class Expansion:
    """The expansion of one template."""

    def __init__(self, limits: Limits, template: Declaration, keys: list[Key]):
        self.limits, self.template, self.keys = limits, template, keys
        self.findings = limits.findings
        self.texts: list[_Text] = []
        self.nodes = 0
        body = {key: value for key, value in template.body.items() if key not in _OWN}
        self.body = body
        compiled = self._compile(body, ())
        self.branch = compiled if isinstance(compiled, _Branch) else _Branch(body, {})
        self.name = self._name()

    def resources(self) -> list[Declaration]:
        if self.name is None or any(text.broken for text in self.texts):
            return []
        self.limits.count(len(self.keys), self.nodes * len(self.keys), 0)
        resources: dict[str, Declaration] = {}
        first: dict[str, Key] = {}
        invalid: list[tuple[Key, str]] = []
        for key in self.keys:
            try:
                name, body = self._text(self.name, key), self._fill(self.branch, key)
            except _MissingValueError:
                continue
            if not is_valid_name(name):
                invalid.append((key, scalar_text(name)))
            elif name in resources:
                self._twice(name, first[name], key)
            else:
                resources[name], first[name] = self._declared(name, key, body), key
        self._report(invalid)
        return list(resources.values())

    def _declared(self, name: str, key: Key, body: Any) -> Declaration:
        template = self.template
        address = Address(template.address.kind, name)
        return Declaration(address, body, template.file, at=template.place, key=key.key, template=self.body)

    def _name(self) -> _Text | None:
        given = self.template.body.get("name", f"{self.template.address.name}_${{each.key}}")
        if not isinstance(given, str):
            self.findings.add(
                "MZ251.name-each",
                self.template.location(("name",)),
                template_label=self.template.label,
                given=given,
            )
            return None
        name_text = self._compile_text(given, ("name",))
        return None if name_text.broken else name_text

    def _compile(self, value: Any, path: Path) -> _Text | _Branch | None:
        """Return the parts of a value that depend on the key; None if none does.

        Count each value on the way in `nodes`.
        """
        self.nodes += 1
        if isinstance(value, str):
            return self._compile_text(value, path) if EACH in value else None
        if not isinstance(value, dict | list):
            return None
        inner = {}
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            if (compiled := self._compile(child, (*path, key))) is not None:
                inner[key] = compiled
        return _Branch(value, inner) if inner else None

    def _compile_text(self, text: str, path: Path) -> _Text:
        parts: list[str | tuple[str, ...]] = []
        end = 0
        for match in _REFERENCE.finditer(text):
            parts += [text[end : match.start()], tuple(match[1].split("."))]
            end = match.end()
        parts.append(text[end:])
        compiled = _Text(path, [part for part in parts if part], bool(_REFERENCE.fullmatch(text)))
        self.texts.append(compiled)
        if any(isinstance(part, str) and EACH in part for part in compiled.parts):
            compiled.broken = True
            self._malformed(text, path)
        return compiled

    def _malformed(self, text: str, path: Path) -> None:
        start = next(
            m.start() for m in re.finditer(r"\$\{each", text) if not _REFERENCE.match(text, m.start())
        )
        length = max(2, text.find("}", start) + 1 - start)
        self.findings.add(
            "MZ251.not-reference",
            self.template.location(path, offset=start, length=length),
            found=text[start : start + length],
        )

    def _fill(self, branch: _Branch, key: Key) -> Any:
        copy = branch.value.copy()
        for at, inner in branch.inner.items():
            copy[at] = self._fill(inner, key) if isinstance(inner, _Branch) else self._text(inner, key)
        return copy

    def _text(self, text: _Text, key: Key) -> Any:
        """Return the text filled in for a key.

        If the text is a single reference, return the value itself, of any type.
        """
        values = [self._value(text, part, key) for part in text.parts if not isinstance(part, str)]
        if text.is_single:
            (value,) = values
            if isinstance(value, dict | list):
                self.limits.count(0, size_of(value), 0)
            return value
        if any(isinstance(value, dict | list) for value in values):
            self._note_missing(text, "is not text, so a reference to it must be the whole value", key)
        words = iter([scalar_text(value) for value in values])
        parts = [part if isinstance(part, str) else next(words) for part in text.parts]
        self.limits.count(0, 0, sum(map(len, parts)))
        filled = "".join(parts)
        if "${" in filled and not self.limits.check(filled, self.template.location(text.path)):
            raise _MissingValueError
        return filled

    def _value(self, text: _Text, reference: tuple[str, ...], key: Key) -> Any:
        if reference == ("key",):
            return key.key
        value = key.value
        for name in reference[1:]:
            if not isinstance(value, dict):
                self._note_missing(text, f"is not a mapping with the key {shown(name)}", key)
            if name not in value:
                known = f": it has {listed(value)}" if value else ""
                self._note_missing(text, f"has no key {shown(name)}{known}", key)
            value = value[name]
        if value is None:
            self._note_missing(text, f"has nothing at {shown('.'.join(('each', *reference)))}", key)
        return value

    def _note_missing(self, text: _Text, what: str, key: Key) -> None:
        text.missing.setdefault(what, []).append(key.key)
        raise _MissingValueError

    def _report(self, invalid: list[tuple[Key, str]]) -> None:
        for text in self.texts:
            for problem, keys in text.missing.items():
                self.findings.add(
                    "MZ251.value-each",
                    self.template.location(text.path),
                    template_label=self.template.label,
                    keys_in_words=_keys_in_words(keys),
                    problem=problem,
                )
        if invalid:
            key = invalid[0][0]
            names = listed([shown(name) for _, name in invalid], _KEYS_SHOWN)
            self.findings.add(
                "MZ251.key-cannot",
                self.template.location(("for_each", key.place), at_key=isinstance(key.place, str)),
                key=key.key,
                template_label=self.template.label,
                keys_in_words=_keys_in_words([key.key for key, _ in invalid]),
                names=names,
                max_name=MAX_NAME,
                name_hint=_name_hint(key),
            )

    def _twice(self, name: str, first: Key, second: Key) -> None:
        label = f"{self.template.address.kind}.{name}"
        keys = f"the keys {shown(first.key)} ({HERE}) and {shown(second.key)}"
        self.findings.add(
            "MZ003.declared-twice-each-give",
            self.template.location(("for_each", second.place), at_key=isinstance(second.place, str)),
            related=self.template.location(("for_each", first.place), at_key=isinstance(first.place, str)),
            label=label,
            template_label=self.template.label,
            keys=keys,
        )


def _keys_in_words(keys: list[str]) -> str:
    """Return `the key "orders"`, or `the keys "orders", "clicks"`."""
    words = listed([shown(key) for key in keys], _KEYS_SHOWN)
    return f"the key {words}" if len(keys) == 1 else f"the keys {words}"


def _name_hint(key: Key) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", key.key.lower()).strip("_")[:MAX_NAME]
    plain = plain if is_valid_name(plain) else "orders"
    if isinstance(key.place, str):
        return f"rename it: {plain}, for example."
    return f"write a mapping, with names as keys: `for_each: {{{plain}: {shown(key.key)}}}`."
