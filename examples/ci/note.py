#!/usr/bin/env python3
"""Writes and reads notes of a GitLab merge request: only notes by the token's user with the same marker.

note.py FILE              write a note, or edit the last note
note.py --new FILE        always write a new note
note.py --approved DIR    write the digest that the last note shows to DIR/approved.txt (the marker
                          is the first line of DIR/comment.md)

It uses the pipeline's merge request or, on the default branch, the merge request that made the commit.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

DIGEST = re.compile(r"^Digest: `(sha256:[0-9a-f]{64})`", re.MULTILINE)


def call(method: str, path: str, content: dict[str, Any] | None = None) -> Any:
    """Send a request to GitLab's API, and return the parsed answer."""
    request = urllib.request.Request(
        f"{os.environ['CI_API_V4_URL']}/{path}",
        method=method,
        data=json.dumps(content).encode() if content is not None else None,
        headers={"PRIVATE-TOKEN": os.environ["GITLAB_TOKEN"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def notes_of_the_request() -> str | None:
    """Return the API path of the merge request's notes; None if no merge request made the commit."""
    project = f"projects/{os.environ['CI_PROJECT_ID']}"
    number = os.environ.get("CI_MERGE_REQUEST_IID")
    if not number:
        commit = os.environ["CI_COMMIT_SHA"]
        for request in call("GET", f"{project}/repository/commits/{commit}/merge_requests"):
            made = [request.get(key) for key in ("merge_commit_sha", "squash_commit_sha", "sha")]
            if request["state"] == "merged" and commit in made:
                number = request["iid"]
    return f"{project}/merge_requests/{number}/notes" if number else None


def last_own_note(notes: str, marker: str) -> dict[str, Any] | None:
    """Return the newest note by the token's user that begins with the marker; None without one."""
    user, page = call("GET", "user")["id"], 1
    while found := call("GET", f"{notes}?sort=desc&order_by=created_at&per_page=100&page={page}"):
        for note in found:
            if note["author"]["id"] == user and note["body"].startswith(marker):
                return dict(note)
        page += 1
    return None


def approved(folder: Path) -> None:
    marker = (folder / "comment.md").read_text(encoding="utf-8").splitlines()[0]
    notes = notes_of_the_request()
    note = last_own_note(notes, marker) if notes else None
    shown = DIGEST.search(note["body"]) if note else None
    (folder / "approved.txt").write_text(f"{shown[1]}\n" if shown else "")


def write(file: Path, *, new: bool) -> None:
    body = file.read_text(encoding="utf-8")
    notes = notes_of_the_request()
    if notes is None:
        print("No merge request has made this commit: there is nowhere to comment.")
        return
    note = None if new else last_own_note(notes, body.splitlines()[0])
    if note is None:
        call("POST", notes, {"body": body})
    else:
        call("PUT", f"{notes}/{note['id']}", {"body": body})


def main() -> None:
    place = Path(sys.argv[-1])
    if sys.argv[1] == "--approved":
        approved(place)
    else:
        write(place, new=sys.argv[1] == "--new")


if __name__ == "__main__":
    main()
