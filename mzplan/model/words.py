"""Text for people: counts, sizes, printable text, and suggestions for misspelt words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def count(number: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: `1 query`, `2 queries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def first_names(names: Sequence[object], most: int) -> str:
    """Return the names as `a, b, c`; if there are more than `most`, as `a, b and 7 more`."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more:,} more" if more > 0 else "")


def joined(names: Iterable[object], word: str) -> str:
    """Return several names as `a, b and c`, with "and" or "or" as the word."""
    words = list(map(str, names))
    if len(words) < 2:
        return ", ".join(words)
    return f"{', '.join(words[:-1])} {word} {words[-1]}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(number: int) -> str:
    """Format bytes as `1.5 MiB`."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{number} B"


def span(seconds: float) -> str:
    """Format seconds as `12 s`, `3 min`, `5 h` or `2 d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def scalar_text(value: object) -> str:
    """Format a scalar as YAML writes it: `true`, `3`, `billing`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unusable_character(text: str) -> str:
    """Return the first control character or unpaired surrogate of a text; "" if it has none."""
    bad = _UNUSABLE.search(text)
    return bad.group() if bad else ""


# Default_Ignorable_Code_Point of Unicode 17.0 (DerivedCoreProperties.txt), which Python doesn't have. Fonts
# draw nothing for these characters. Some of them are letters and marks.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
MAX_LINE = 200  # characters


def safe(text: str) -> str:
    """Escape characters that could move the cursor, or hide or reorder other characters."""
    if text.isprintable() and not _IGNORABLE.search(text):
        return text
    return "".join(escaped(char) for char in text)


def escaped(char: str) -> str:
    """Return the character, or its escape if it isn't safe to print."""
    # `isprintable` is false for controls, format characters (such as text direction), lone surrogates,
    # separators other than the space, and unassigned code points.
    if char.isprintable() and not _IGNORABLE.match(char):
        return char
    code = ord(char)
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


_MAX_SHOWN = 60


def shown(value: object, quote: bool = True) -> str:
    """Return a value for messages: `"text"` on one line, shortened, with control characters escaped."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text, quote = str(value), False
    elif isinstance(value, str):
        text = value
    else:
        return kind_of(value)
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 1] + "…"
    text = safe(text)
    return f'"{text}"' if quote else text


def kind_of(value: object) -> str:
    """Return the kind of a value in YAML's words: `a list`, `text`, `a whole number`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a mapping"


def listed(words: Iterable[str], limit: int = 20) -> str:
    """Return `a, b, c`, with the number of omitted words if there are more than `limit`."""
    return first_names([shown(word, quote=False) for word in words], limit)


def one_line(text: str, max_length: int = MAX_LINE) -> str:
    """Return the text, safe to print and cut to at most `max_length` characters."""
    text = safe(text)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def changed_parts(before: str, after: str, length: int) -> tuple[str, str]:
    """Return both texts if they fit into `length` characters; otherwise, the part where they differ.

    The part has the same surroundings on both sides. A changed part that is too long itself is shown by its
    ends.
    """
    if max(len(before), len(after)) <= length:
        return before, after
    start = _equal_length(before, after)
    rest = before[start:], after[start:]
    end = _equal_length(rest[0][::-1], rest[1][::-1])
    middles = [text[: len(text) - end] for text in rest]
    room = max(0, length - max(map(len, middles)) - 2)  # for what both have in common, without the ellipses
    left = min(start, max(room // 2, room - end))
    right = min(end, room - left)
    head = f"{'…' if left < start else ''}{before[start - left : start]}"
    tail = f"{rest[0][len(middles[0]) :][:right]}{'…' if right < end else ''}"
    old, new = (f"{head}{ends(middle, max(1, length - 2))}{tail}" for middle in middles)
    return old, new


def _equal_length(one: str, other: str) -> int:
    """Return how many characters both texts begin with."""
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def ends(text: str, length: int) -> str:
    """Return the text, or its beginning and its end around an ellipsis."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


_MAX_CELLS = 200_000  # of edit-distance tables per word, so that 100,000 names stay fast
_MAX_LENGTH = 200
_MAX_NAMES = 200_000  # candidates that are compared, because a server may name any number


def nearest(word: object, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `word` was probably meant to be, or None if none is near.

    A candidate is near if it differs only in case and separators, or in at most a third of the letters. Two
    swapped neighbouring letters count as one difference. A very long candidate is never near.
    """
    if not isinstance(word, str) or not word or len(word) > _MAX_LENGTH:
        return None
    wanted = _plain(word)
    best: str | None = None
    best_distance = max(1, len(wanted) // 3) + 1
    cells, letters = 0, set(wanted)
    for candidate in islice(candidates, _MAX_NAMES):
        if len(candidate) > _MAX_LENGTH:
            continue
        plain = _plain(candidate)
        if plain == wanted:
            return candidate
        if abs(len(plain) - len(wanted)) >= best_distance or cells >= _MAX_CELLS:
            continue
        # One edit changes at most two letters of the sets.
        if len(letters ^ set(plain)) > 2 * (best_distance - 1):
            continue
        cells += len(wanted) * len(plain)
        distance = _distance(wanted, plain, best_distance)
        if distance < best_distance:
            best, best_distance = candidate, distance
    return best


def did_you_mean(word: object, candidates: Iterable[str], show: Callable[[str], str] = str) -> str:
    """Return `did you mean kafka?`, formatting the word with `show`; "" if no candidate is near."""
    near = nearest(word, candidates)
    return f"did you mean {show(near)}?" if near is not None else ""


def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _distance(left: str, right: str, limit: int) -> int:
    """Return the optimal string alignment distance, or `limit` as soon as it can't be less."""
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        current = [i]
        for j, b in enumerate(right, 1):
            cost = min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        if min(current) >= limit:
            return limit
        before, previous = previous, current
    return min(previous[-1], limit)
