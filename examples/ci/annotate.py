#!/usr/bin/env python3
"""Prints errors as annotations, which GitHub shows beside the lines.

annotate.py FILE ROOT

FILE: a SARIF log (mzplan validate --sarif), or JUnit's XML (mzplan test --junit-xml).
ROOT: the root of the checkout, from which GitHub counts paths.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from urllib.parse import unquote
from xml.etree import ElementTree

IN_TEXT, IN_PROPERTIES = "%\r\n", "%\r\n:,"  # characters to escape


def escaped(text: str, characters: str = IN_TEXT) -> str:
    """Escape text for GitHub's workflow commands."""
    return "".join(f"%{ord(character):02X}" if character in characters else character for character in text)


def errors_in_sarif(file: Path, root: str) -> Iterator[tuple[str, dict[str, str | int], str]]:
    """Yield the level, the properties and the message of each result."""
    for result in json.loads(file.read_text(encoding="utf-8"))["runs"][0]["results"]:
        level = "notice" if result["level"] == "note" else result["level"]
        properties: dict[str, str | int] = {"title": result["ruleId"]}
        for location in result.get("locations", ()):
            if place := location.get("physicalLocation"):
                region = place["region"]
                properties["file"] = os.path.relpath(unquote(place["artifactLocation"]["uri"]), root)
                properties["line"], properties["endLine"] = region["startLine"], region["endLine"]
                properties["col"], properties["endColumn"] = region["startColumn"], region["endColumn"]
        yield level, properties, result["message"]["text"]


def failed_tests(file: Path, root: str) -> Iterator[tuple[str, dict[str, str | int], str]]:
    """Yield the same for each test that has failed."""
    for test in ElementTree.parse(file).iter("testcase"):
        if (failure := test.find("failure")) is not None:
            path = os.path.relpath(test.get("file", ""), root)
            properties = {"title": test.get("name", ""), "file": path, "line": test.get("line", "1")}
            yield "error", {**properties}, dedent(failure.text or "")


def main() -> None:
    file, root = Path(sys.argv[1]), sys.argv[2]
    for level, properties, text in (failed_tests if file.suffix == ".xml" else errors_in_sarif)(file, root):
        listed = ",".join(
            f"{name}={escaped(str(value), IN_PROPERTIES)}" for name, value in properties.items()
        )
        print(f"::{level} {listed}::{escaped(text)}")


if __name__ == "__main__":
    main()
