"""Did you mean …? The nearest of the words that would have been right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

_MAX_CELLS = 200_000  # of edit-distance tables for one word, so that 100,000 names stay quick
_MAX_LENGTH = 200


def nearest(word: object, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` was probably meant to be, or None when nothing is near.

    Near is: the same but for case and separators, or at most a third of the letters changed
    (a swap of neighbours counts once).
    """
    if not isinstance(word, str) or not word or len(word) > _MAX_LENGTH:
        return None
    wanted = _plain(word)
    best: str | None = None
    best_distance = max(1, len(wanted) // 3) + 1
    cells, letters = 0, set(wanted)
    for candidate in candidates:
        plain = _plain(candidate)
        if plain == wanted:
            return candidate
        if abs(len(plain) - len(wanted)) >= best_distance or cells >= _MAX_CELLS:
            continue
        # An edit changes at most two letters of the sets.
        if len(letters ^ set(plain)) > 2 * (best_distance - 1):
            continue
        cells += len(wanted) * len(plain)
        distance = _distance(wanted, plain, best_distance)
        if distance < best_distance:
            best, best_distance = candidate, distance
    return best


def did_you_mean(word: object, candidates: Iterable[str], show: Callable[[str], str] = str) -> str:
    """`did you mean kafka?`, the word written by `show`; "" when nothing is near."""
    found = nearest(word, candidates)
    return f"did you mean {show(found)}?" if found is not None else ""


@lru_cache(maxsize=100_000)
def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _distance(left: str, right: str, limit: int) -> int:
    """The optimal string alignment distance; `limit` as soon as it can't be below that."""
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
