#!/usr/bin/env python3
"""Prints a SARIF log (mzplan validate --sarif) as annotations, which GitHub shows beside the lines.

annotate.py FILE ROOT     ROOT is the root of the checkout, from which GitHub counts paths
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import unquote

IN_TEXT, IN_PROPERTIES = "%\r\n", "%\r\n:,"  # characters to escape


def escaped(text: str, characters: str = IN_TEXT) -> str:
    """Escape text for GitHub's workflow commands."""
    return "".join(f"%{ord(character):02X}" if character in characters else character for character in text)


def main() -> None:
    for result in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["runs"][0]["results"]:
        level = "notice" if result["level"] == "note" else result["level"]
        properties = {"title": result["ruleId"]}
        for location in result.get("locations", ()):
            if place := location.get("physicalLocation"):
                region = place["region"]
                properties["file"] = os.path.relpath(unquote(place["artifactLocation"]["uri"]), sys.argv[2])
                properties["line"], properties["endLine"] = region["startLine"], region["endLine"]
                properties["col"], properties["endColumn"] = region["startColumn"], region["endColumn"]
        listed = ",".join(
            f"{name}={escaped(str(value), IN_PROPERTIES)}" for name, value in properties.items()
        )
        print(f"::{level} {listed}::{escaped(result['message']['text'])}")


if __name__ == "__main__":
    main()
