"""Fills in the variables of texts, and reports each other `${…}` that isn't a secret reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mzplan.config.documents import Document, containers_below
from mzplan.config.findings import Findings, Location
from mzplan.config.variables import VARIABLE, Variables, report_missing, report_undeclared
from mzplan.model.words import did_you_mean, scalar_text, shown
from mzplan.secrets.providers import OWN_PROVIDERS, fault_of_name, has_provider
from mzplan.secrets.references import REFERENCE

EACH = "${each"
_IS_EACH = re.compile(r"\$\{each\b")
_BUILT_IN_PROVIDERS = ("env", "file")
_PROVIDERS = (*_BUILT_IN_PROVIDERS, *OWN_PROVIDERS)
MAX_FILLED = 64 * 1024 * 1024  # characters of all texts that variables are filled into
MAX_SUBSTITUTED = 64 * 1024  # characters of one text of a setting


def fill(document: Document, variables: Variables, findings: Findings, skip: Iterable[str] = ()) -> None:
    """Fill in every `${var.NAME}` of the document in place, and check every other `${…}`.

    Texts of sources and sinks with `${each` are checked later, when the key is filled in
    (mzplan.config.declarations). `skip`: top-level keys to leave unchanged.
    """
    data = document.data if isinstance(document.data, dict) else {}
    left_alone = containers_below(data[key] for key in {"variables", *skip} & data.keys())
    for container, key in document.references:
        if id(container) in left_alone:
            continue
        text = container[key]
        if isinstance(text, str):
            container[key] = _fill_text(text, document, container, key, variables, findings)


def _fill_text(
    text: str, document: Document, container: Any, key: Any, variables: Variables, findings: Findings
) -> Any:
    """Return the text with its variables filled in.

    If one of them has no value, report it and return the text as written.
    """
    names = [match[1] for match in VARIABLE.finditer(text)]
    variables.used_names.update(names)
    if any(name not in variables.values for name in names):
        location = Location(document.file, document.path_of(container, key))
        for match in VARIABLE.finditer(text):
            _report_variable(match, location, variables, findings)
        findings.unusable.add((location.file.full_path, location.path))
        return text
    if len(names) == 1 and VARIABLE.fullmatch(text):
        filled = variables.values[names[0]]
    else:
        words = {name: scalar_text(variables.values[name]) for name in names}
        # Check the length before filling in: a short text may expand to gigabytes.
        variables.filled_characters += len(text) + sum(len(words[name]) for name in names)
        if variables.filled_characters > MAX_FILLED:
            _too_long(document, container, key, findings)
            return text
        filled = VARIABLE.sub(lambda match: words[match[1]], text)
    if isinstance(filled, str) and not (EACH in filled and document.may_repeat(container)):
        check_references(filled, lambda: Location(document.file, document.path_of(container, key)), findings)
    return filled


def substitute(text: str, values: Mapping[str, Any]) -> Any:
    """Return the text with the variables that have a value filled in.

    Other variables stay as written, and so does a text that would become too long.
    """
    whole = VARIABLE.fullmatch(text)
    if whole is not None:
        return values.get(whole[1], text)
    words = {name: scalar_text(values[name]) for name in set(VARIABLE.findall(text)) & values.keys()}
    if len(text) + sum(len(words.get(match[1], "")) for match in VARIABLE.finditer(text)) > MAX_SUBSTITUTED:
        return text
    return VARIABLE.sub(lambda match: words.get(match[1], match[0]), text)


def _report_variable(
    match: re.Match[str], location: Location, variables: Variables, findings: Findings
) -> None:
    """Report a variable that has no value, or isn't declared."""
    name = match[1]
    if name in variables.values:
        return
    if name in variables.declared:
        report_missing(name, variables, findings)
        return
    location = replace(location, offset=match.start(), length=len(match[0]))
    report_undeclared(name, variables, findings, location)


def _too_long(document: Document, container: Any, key: Any, findings: Findings) -> None:
    location = Location(document.file, document.path_of(container, key))
    findings.add("MZ007.variables-make", location, max_filled=MAX_FILLED)
    findings.unusable.add((location.file.full_path, location.path))


def check_references(text: str, locate: Callable[[], Location], findings: Findings) -> bool:
    """Report the first `${` of a text that isn't a secret reference, and return whether there is none."""
    at = 0
    while (start := text.find("${", at)) >= 0:
        match = REFERENCE.match(text, start)
        if match is None or _fault_of(match, findings):
            whole = locate()
            length = max(2, text.find("}", start) + 1 - start)
            location = replace(whole, offset=start, length=length)
            _report(text[start:], match, location, findings)
            findings.unusable.add((location.file.full_path, location.path))
            return False
        at = match.end()
    return True


def _report(rest: str, match: re.Match[str] | None, location: Location, findings: Findings) -> None:
    if match is None and _IS_EACH.match(rest):
        written = rest[: rest.index("}") + 1] if "}" in rest else rest
        findings.add("MZ251.each-outside", location, written=written)
    else:
        problem, fix = _problem(rest, match, findings), _how_to_write(rest, match)
        findings.add("MZ017", location, problem=problem, fix=fix)


def _problem(rest: str, match: re.Match[str] | None, findings: Findings) -> str:
    if match is not None:
        return _fault_of(match, findings) or ""
    if "}" not in rest:
        return "`${` opens a reference that no `}` closes."
    return f"{shown(rest[: rest.index('}') + 1])} is neither a variable nor a secret reference."


def _how_to_write(rest: str, match: re.Match[str] | None) -> str:
    general = "write ${var.NAME} for a variable, ${env:NAME} or ${file:PATH} for a secret."
    if match is not None:
        if match["provider"] == "var":
            return "write ${var.NAME}, with a dot, for a variable."
        if match["provider"] == "each":
            return "write ${each.key} or ${each.value}, with a dot."
        if match["provider"] in OWN_PROVIDERS:
            return "write ${vault:MOUNT/PATH#KEY}, ${aws-sm:NAME} or ${aws-sm:NAME#KEY}."
        return did_you_mean(match["provider"], _PROVIDERS, shown) or general
    if re.match(r"\$\{(env|file)\.", rest):
        return "write ${env:NAME} or ${file:PATH}, with a colon, for a secret."
    return general


def _fault_of(match: re.Match[str], findings: Findings) -> str | None:
    """Return what is wrong with a well-formed reference; None if it is right."""
    provider = match["provider"]
    if provider in _BUILT_IN_PROVIDERS:
        return None
    if provider not in findings.providers:
        findings.providers[provider] = has_provider(provider)
    if not findings.providers[provider]:
        return f"There is no secret provider {shown(provider)}."
    return fault_of_name(provider, match["name"])
