#!/usr/bin/env python3
"""Write a note on a GitLab merge request, or edit the one that is there: it begins with the same marker."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def call(method: str, path: str, content: dict[str, Any] | None = None) -> Any:
    """A request to GitLab's API of this job's project."""
    request = urllib.request.Request(
        f"{os.environ['CI_API_V4_URL']}/projects/{os.environ['CI_PROJECT_ID']}/{path}",
        method=method,
        data=json.dumps(content).encode() if content is not None else None,
        headers={"PRIVATE-TOKEN": os.environ["GITLAB_TOKEN"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main() -> None:
    body = Path(sys.argv[1]).read_text(encoding="utf-8")
    marker = body.splitlines()[0]
    notes = f"merge_requests/{os.environ['CI_MERGE_REQUEST_IID']}/notes"
    page = 1
    while found := call("GET", f"{notes}?per_page=100&page={page}"):
        for note in found:
            if note["body"].startswith(marker):
                call("PUT", f"{notes}/{note['id']}", {"body": body})
                return
        page += 1
    call("POST", notes, {"body": body})


if __name__ == "__main__":
    main()
