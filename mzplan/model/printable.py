"""Text that is safe to print: an escape for every character that could move the cursor, hide or reorder."""

from __future__ import annotations

import unicodedata

MAX_LINE = 200  # characters


def safe(text: str) -> str:
    """The text with an escape for every character that could move the cursor, or hide or reorder others."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(escaped(char) for char in text)


def escaped(char: str) -> str:
    """One character, or its escape."""
    # Cc and Cf: controls, and invisible characters such as those that change the direction of text; Cs: a
    # lone surrogate can't be printed at all; Zl and Zp break lines.
    if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"):
        return char
    code = ord(char)
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def one_line(text: str, most: int = MAX_LINE) -> str:
    """At most so many characters of a text, safe to print."""
    text = safe(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
