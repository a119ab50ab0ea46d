"""JSON that anybody may have edited, as plain values."""

from __future__ import annotations

import json
from typing import Any

_CAREFUL = 4_000_000  # bytes; in a larger file, looking for repeated keys takes longer than all the rest


def parse(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for everything that mzplan does not write: NaN, a key
    twice, another encoding."""
    if not data.strip():
        raise ValueError("it is empty")
    try:
        hook = None if len(data) > _CAREFUL else _once
        found = json.loads(data.decode(), parse_constant=_no_number, object_pairs_hook=hook)
        if b"\\ud" in data or b"\\uD" in data:  # half of a pair is no character, and could not be written
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        if problem.pos >= len(problem.doc.rstrip()) or problem.msg.startswith("Unterminated string"):
            raise ValueError("it ends in the middle") from None
        raise ValueError(f"line {problem.lineno}, column {problem.colno} is no JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it holds {next(k for k in keys if keys.count(k) > 1)!r} twice")
    return found
