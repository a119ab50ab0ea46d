"""Text that is safe to print: an escape for every character that could move the cursor, hide or reorder."""

from __future__ import annotations

import re

# Default_Ignorable_Code_Point of Unicode 17.0 (DerivedCoreProperties.txt), which Python lacks: what a font
# draws as nothing, letters and marks among it.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
MAX_LINE = 200  # characters


def safe(text: str) -> str:
    """The text with an escape for every character that could move the cursor, or hide or reorder others."""
    if text.isprintable() and not _IGNORABLE.search(text):
        return text
    return "".join(escaped(char) for char in text)


def escaped(char: str) -> str:
    """One character, or its escape."""
    # Not printable: controls, format characters such as those that change the direction of text, lone
    # surrogates, separators but for the space, and what Unicode has not assigned.
    if char.isprintable() and not _IGNORABLE.match(char):
        return char
    code = ord(char)
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def one_line(text: str, most: int = MAX_LINE) -> str:
    """At most so many characters of a text, safe to print."""
    text = safe(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
