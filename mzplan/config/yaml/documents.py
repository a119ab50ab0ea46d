"""Values as a YAML document, for people to read: never parsed again."""

from __future__ import annotations

from typing import Any

import yaml


def document(value: Any) -> str:
    """The value in block style, in its own order, ending in a newline."""
    text: str = yaml.safe_dump(
        value, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
    )
    return text
