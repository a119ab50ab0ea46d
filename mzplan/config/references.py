"""Every `${…}` of a text whose variables are filled in: what is no secret reference is reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mzplan.config.findings import Findings, Location, shown
from mzplan.model.words import did_you_mean
from mzplan.secrets.providers import OURS, fault_of_name, has_provider
from mzplan.secrets.references import REFERENCE

EACH = "${each"
_IS_EACH = re.compile(r"\$\{each\b")
_BUILT_IN_PROVIDERS = ("env", "file")
_PROVIDERS = (*_BUILT_IN_PROVIDERS, *OURS)


def check_references(
    text: str, locate: Callable[[], Location], known: dict[str, bool], findings: Findings
) -> bool:
    """Report the first `${` of a text that is no secret reference; whether there is none. `known`: which
    providers there are, as far as was asked."""
    at = 0
    while (start := text.find("${", at)) >= 0:
        match = REFERENCE.match(text, start)
        if match is None or _fault_of(match, known):
            found = locate()
            length = max(2, text.find("}", start) + 1 - start)
            location = replace(found, offset=start, length=length)
            findings.add(*_words(text[start:], match, known), location=location)
            findings.unusable.add((location.file.full_path, location.path))
            return False
        at = match.end()
    return True


def _words(rest: str, match: re.Match[str] | None, known: dict[str, bool]) -> tuple[str, str, str, str]:
    """Code, summary, detail and hint."""
    if match is None and _IS_EACH.match(rest):
        written = shown(rest[: rest.index("}") + 1] if "}" in rest else rest, quote=False)
        return (
            "MZ250",
            f"{written} has no meaning here",
            "It stands for one key or value of a `for_each`, in the source or sink that has it; not in its "
            "`for_each` itself.",
            "write `for_each` in this source or sink, or the value itself.",
        )
    return "MZ017", "Malformed reference", _what_is_wrong(rest, match, known), _how_to_write(rest, match)


def _what_is_wrong(rest: str, match: re.Match[str] | None, known: dict[str, bool]) -> str:
    if match is not None:
        return _fault_of(match, known) or ""
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
        if match["provider"] in OURS:
            return "write ${vault:MOUNT/PATH#KEY}, ${aws-sm:NAME} or ${aws-sm:NAME#KEY}."
        return did_you_mean(match["provider"], _PROVIDERS, shown) or general
    if re.match(r"\$\{(env|file)\.", rest):
        return "write ${env:NAME} or ${file:PATH}, with a colon, for a secret."
    return general


def _fault_of(match: re.Match[str], known: dict[str, bool]) -> str | None:
    """What is wrong with a reference that is well-formed; None for nothing."""
    provider = match["provider"]
    if provider in _BUILT_IN_PROVIDERS:
        return None
    if provider not in known:
        known[provider] = has_provider(provider)
    if not known[provider]:
        return f"There is no secret provider {shown(provider)}."
    return fault_of_name(provider, match["name"])
