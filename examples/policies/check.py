#!/usr/bin/env python3
"""Checks a plan against the policies in a folder, without conftest or opa. It needs: pip install regopy.

mzplan show plan.mzplan --json | python check.py FOLDER      exit 1, and a line for each denial
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from regopy import Interpreter


def denials(plan: dict[str, Any], folder: Path) -> list[str]:
    """Return the messages of the `deny` rules in package main, sorted. Raises if a policy can't be read."""
    policies = sorted(folder.glob("*.rego"))
    if not policies:
        raise SystemExit(f"There is no policy in {folder}.")
    rego = Interpreter()
    rego.set_input(plan)
    for policy in policies:
        rego.add_module(policy.name, policy.read_text(encoding="utf-8"))
    # Encoded, because regopy doesn't escape the quotes in its answers.
    (found,) = rego.query("[base64.encode(message) | some message in data.main.deny]").results[0].expressions
    return sorted(base64.b64decode(message).decode() for message in found)


if __name__ == "__main__":
    found = denials(json.load(sys.stdin), Path(sys.argv[1]))
    print("\n".join(found) or "No policy denies this plan.")
    sys.exit(1 if found else 0)
