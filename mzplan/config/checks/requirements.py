"""Describes the requirements of a JSON Schema in plain words."""

from __future__ import annotations

from typing import Any

from mzplan.model.words import did_you_mean, shown
from mzplan.schema.dialect import Json
from mzplan.schema.object_names import CUT, FORMATS, shorten_hint
from mzplan.secrets.references import is_reference, references_in

_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_TCP_PORT = "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# Characters that make programs see different hosts in a URL: `evil.com\\.shop.example`.
_NOWHERE = r"\\\x00-\x1f\x7f"
_URL = (
    rf"^https?://(\[[^@\s,\[\]{_NOWHERE}]+\]|[^@\s:/?#%\[\]{_NOWHERE}\u3002\uff0e\uff61]{{1,253}})"
    rf"(:{_TCP_PORT})?([/?#][^@\s{_NOWHERE}]*)?$"
)
# pattern → (words to put after "values", an example)
_PATTERNS = {
    rf"^([A-Za-z0-9_]+://)?(\[[^\s,\[\]{_NOWHERE}]+\]|[^\s,/\[\]{_NOWHERE}]+):{_TCP_PORT}$": (
        "are host:port, with a port from 1 to 65535",
        "broker:9092",
    ),
    rf"^[^\s{_NOWHERE}]+$": ("contain neither spaces nor backslashes, and aren't empty", "db.example"),
    r"^[a-z][a-z0-9_]*$": ("start with a lowercase letter, then lowercase letters, digits or _", "orders_2"),
    r"^[a-z][a-z0-9_-]{0,62}$": (
        "start with a lowercase letter, then at most 62 lowercase letters, digits, _ or -",
        "shop-orders",
    ),
    r"^[a-z][a-z0-9.]*$": (
        "start with a lowercase letter, then lowercase letters, digits or dots",
        "linger.ms",
    ),
    r"^[A-Za-z][A-Za-z0-9_]*$": ("start with a letter, then letters, digits or _", "customer_id"),
    r"^[A-Za-z][A-Za-z0-9_]*( BINARY)?$": ("are a column's name, or NAME BINARY", "customer_id"),
    r"^[0-9]+(ms|s|m|h)$": ("are a whole number with a unit: ms, s, m or h", "500ms"),
    "^available-now$": ("are available-now, or {interval: 5s}", "available-now"),
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*){2}$": (
        "are Maven coordinates, group:artifact:version",
        "org.postgresql:postgresql:42.7.4",
    ),
    r"^[a-zA-Z0-9._-]{1,249}$": ("contain at most 249 letters, digits, dots, _ and -", "orders.v1"),
    r"^[a-z]{2}[a-z0-9-]*$": ("are names of AWS regions", "eu-central-1"),
    r"^arn:[a-z0-9-]+:iam::[0-9]{12}:role/\S+$": (
        "are the ARN of an IAM role",
        "arn:aws:iam::123456789012:role/mzplan",
    ),
    rf"^[a-z0-9]+://[^{_NOWHERE}]+$": (
        "are the URL of an object store, without a backslash",
        "s3://shop/state",
    ),
    r"^s3a?://": ("begin with s3://", "s3://lake/orders"),
    _URL: (
        "begin with http:// or https:// and a host, with a port up to 65535, without user and password, "
        "and without a backslash",
        "https://registry:8081",
    ),
    r"^(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$": (
        "are public keys in OpenSSH's format, each on one line",
        "ssh-ed25519 AAAAC3Nza…",
    ),
    r"^[^/\x00-\x1f][^\x00-\x1f]*\.sql$": (
        "are the path of a *.sql file, relative to the project's folder",
        "sql/revenue.sql",
    ),
    r"""^("([^"]|"")+"|[^."\s]([^."]*[^."\s])?)(\.("([^"]|"")+"|[^."\s]([^."]*[^."\s])?))?$""": (
        "are table or schema.table; as in SQL, double quotes enclose a name with dots or quotes",
        "public.orders",
    ),
    r"^[a-z0-9_]{1,63}$": ("are 1 to 63 lowercase letters, digits or _", "shop_orders"),
    r"^(?!pg_)": ("don't begin with pg_, which PostgreSQL reserves", "mzplan"),
}
_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def type_words(types: list[str]) -> str:
    """Return `text or a number` for `["string", "number"]`."""
    return " or ".join(_TYPES.get(type_, type_) for type_ in types)


def in_words(pattern: str) -> str:
    """Return the words for a pattern, to put after "values": `are table or schema.table`."""
    words, _ = _PATTERNS.get(pattern, (f"match the pattern {pattern}", ""))
    return words


def words_of(inner: Json) -> list[str]:
    """Return the values that a property with `anyOf` allows, each as a value or as a description."""
    words: list[str] = []
    for choice in inner.get("anyOf", ()):
        words += [shown(value, quote=False) for value in choice.get("enum", ())] or [
            choice.get("description", "")
        ]
    return [*words[:-1], f"or {words[-1]}"]


def requirement(rule: str, inner: Json) -> str:
    """Return a rule of a property's schema as a sentence."""
    match rule:
        case "pattern":
            return f"Values {in_words(inner.get('pattern', ''))}."
        case "minimum" | "maximum":
            low, high = inner.get("minimum"), inner.get("maximum")
            if low is not None and high is not None:
                return f"It must be from {low} to {high}."
            return f"It must be at least {low}." if low is not None else f"It must be at most {high}."
        case "minLength":
            return "It may not be empty."
        case "minItems":
            return "It may not be an empty list."
        case "uniqueItems":
            return "Items may not repeat."
        case "format" if inner["format"] in FORMATS:
            return CUT
        case "anyOf":
            return f"It can be {', '.join(words_of(inner))}."
        case _:
            return f"It does not meet {rule}."


def value_hint(rule: str, inner: Json, value: Any) -> str:
    """Return how to write a value that meets a rule."""
    if any(references_in(value)):
        return "write the value, or ${var.NAME}: a secret reference isn't allowed here."
    _, example = _PATTERNS.get(inner.get("pattern", ""), ("", ""))
    match rule:
        case "pattern" if example:
            return f"write it as in {shown(example)}."
        case "minimum":
            return f"write {inner['minimum']} or more."
        case "maximum":
            return f"write {inner['maximum']} or less."
        case "minLength" | "minItems":
            return "write at least one, or remove the key."
        case "uniqueItems":
            return "remove the duplicate."
        case "format" if inner["format"] in FORMATS:
            return shorten_hint(inner["format"], value)
        case "anyOf":
            named = [option for choice in inner["anyOf"] for option in choice.get("enum", ())]
            return did_you_mean(value, named, shown) or "use one of these."
        case _:
            return "write a value that fits."


def type_hint(types: list[str], value: Any, text: str, secret: bool) -> str:
    """Return a hint to write a value of these types instead of this value.

    `text`: the value as written in the file. `secret`: the value is a secret.
    """
    if secret:
        return "write a secret reference: ${env:NAME} or ${file:PATH}."
    if "string" in types and isinstance(value, bool | int | float):
        return f'put it in quotes: "{text}".'
    if types == ["array"] and isinstance(value, str | int | float):
        return f"write a list: [{shown(value, quote=False)}]."
    if is_reference(value):
        return "a secret is always text: use a variable here, ${var.NAME}."
    if types == ["boolean"] and isinstance(value, str) and value.lower() in _BOOLEANS:
        return f"write {_BOOLEANS[value.lower()]}."
    if isinstance(value, str) and types in (["integer"], ["number"], ["boolean"]):
        return "write it without quotes." if _looks_right(value, types[0]) else f"write {type_words(types)}."
    return f"write {type_words(types)}."


def _looks_right(text: str, type_: str) -> bool:
    if type_ == "boolean":
        return text in ("true", "false")
    return text.lstrip("+-").replace(".", "", type_ == "number").isdigit()
