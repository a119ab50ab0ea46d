"""Reads the commit of a checkout without running anything that comes with the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mzplan.host import git
from mzplan.host.author import author
from mzplan.host.git import find_revision
from tests.unit.cli_runs import mzplan


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a repository with one commit of one file."""
    top = tmp_path / "checkout"
    top.mkdir()
    (top / "a.yaml").write_text("a: 1\n")
    run(top, "init", "-q", "-b", "main")
    commit(top, "One")
    return top


def run(top: Path, *arguments: str) -> str:
    who = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        who |= {
            f"GIT_{role}_NAME": "A",
            f"GIT_{role}_EMAIL": "a@b",
            f"GIT_{role}_DATE": "2026-01-01T00:00:00Z",
        }
    done = subprocess.run(
        ("git", *arguments),
        cwd=top,
        env={**os.environ, **who},
        stdin=subprocess.DEVNULL,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def commit(top: Path, message: str) -> None:
    run(top, "add", "-A")
    run(top, "commit", "-q", "--allow-empty", "-m", message)


@pytest.mark.programs
def test_the_commit_its_subject_and_whether_the_tree_is_clean(checkout: Path) -> None:
    found = find_revision(str(checkout))
    assert found is not None
    assert (found.commit, found.clean, found.subject) == (run(checkout, "rev-parse", "HEAD"), True, "One")
    (checkout / "a.yaml").write_text("a: 22\n")
    assert (changed := find_revision(str(checkout))) is not None and changed.clean is False
    run(checkout, "checkout", "-q", "a.yaml")

    below = checkout / "project"
    (below / "state").mkdir(parents=True)
    (below / "state" / "x.json").write_text("{}")
    (seen, left) = (find_revision(str(below)), find_revision(str(below), [str(below / "state")]))
    assert seen is not None and seen.clean is False
    assert left is not None and left.clean is True
    (below / "new.yaml").write_text("b: 1\n")
    assert (new := find_revision(str(below), [str(below / "state")])) is not None and new.clean is False


@pytest.mark.programs
def test_a_linked_work_tree_and_packed_references(checkout: Path, tmp_path: Path) -> None:
    run(checkout, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    commit(tmp_path / "linked", "Two")
    run(checkout, "gc", "-q")
    found, here = find_revision(str(tmp_path / "linked")), find_revision(str(checkout))
    assert found is not None and (found.subject, found.clean) == ("Two", True)
    assert here is not None and here.subject == "One"


@pytest.mark.programs
def test_ignored_files_do_not_count_as_changes(checkout: Path) -> None:
    (checkout / ".git" / "info").mkdir(exist_ok=True)
    (checkout / ".git" / "info" / "exclude").write_text("*.log\n")
    (checkout / "a.log").write_text("x")
    assert (found := find_revision(str(checkout))) is not None and found.clean


@pytest.mark.programs
def test_no_checkout_no_commit_no_git(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_revision(str(tmp_path)) is None
    (tmp_path / "empty").mkdir()
    run(tmp_path / "empty", "init", "-q")
    assert find_revision(str(tmp_path / "empty")) is None
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / ".git")
    assert find_revision(str(tmp_path / "odd")) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_revision(str(checkout)) is None
    monkeypatch.chdir(checkout)
    (checkout / "git").write_text("#!/bin/sh\ntouch ran\n")
    (checkout / "git").chmod(0o755)
    monkeypatch.setenv("PATH", ".")
    assert find_revision(str(checkout)) is None and not (checkout / "ran").exists()


@pytest.mark.programs
def test_nothing_from_the_checkout_is_run(checkout: Path, tmp_path: Path) -> None:
    """If git ran a program from the configuration, hooks, attributes or remote, a file would appear."""
    ran = tmp_path / "ran"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    evil.chmod(0o755)
    (checkout / ".gitattributes").write_text("*.yaml filter=x diff=x\n*.txt filter=y\n")
    (checkout / "b.txt").write_text("b\n")
    commit(checkout, "Two")
    for name in ("core.fsmonitor", "core.pager", "pager.status", "pager.log", "pager.rev-parse"):
        run(checkout, "config", name, str(evil))
    for name in ("core.sshCommand", "diff.external", "gpg.program", "core.askPass", "credential.helper"):
        run(checkout, "config", name, str(evil))
    for name in ("filter.x.clean", "filter.x.smudge", "filter.y.process", "diff.x.textconv", "alias.status"):
        run(checkout, "config", name, str(evil))
    run(checkout, "config", "log.showSignature", "true")
    run(checkout, "config", "core.hooksPath", str(tmp_path))
    run(checkout, "config", "remote.origin.url", f"ext::{evil}")
    run(checkout, "config", "protocol.ext.allow", "always")
    run(checkout, "config", "remote.origin.promisor", "true")
    run(checkout, "config", "extensions.partialClone", "origin")
    evil.rename(tmp_path / "post-index-change")
    evil.symlink_to(tmp_path / "post-index-change")
    ran.unlink(missing_ok=True)
    (checkout / "a.yaml").write_text("a: 2\n")  # the same size as before, so git must read the file
    (checkout / "b.txt").write_text("c\n")
    found = find_revision(str(checkout))
    assert found is not None and (found.subject, found.clean) == ("Two", False)
    assert not ran.exists()

    run(checkout, "diff-files", "--ext-diff", "-p")
    assert ran.exists()  # the trap works: git itself runs it
    ran.unlink()

    (
        checkout / ".git" / "objects" / found.commit[:2] / found.commit[2:]
    ).unlink()  # git would have to fetch it
    assert find_revision(str(checkout)) is None
    assert not ran.exists()


@pytest.mark.programs
def test_output_of_git_is_escaped_and_its_time_limited(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(checkout, "Fix \x1b[2J \u202e evil " + "x" * 300)
    found = find_revision(str(checkout))
    assert found is not None and found.subject.startswith("Fix \\x1b[2J \\u202e evil")
    assert len(found.subject) == 200
    monkeypatch.setattr(git, "TIMEOUT", 0.0)
    assert find_revision(str(checkout)) is None


def test_author() -> None:
    here = author({})
    assert here.user and here.host and (here.ci, here.actor) == (None, None)
    assert author({"GITHUB_ACTOR": "ann"}).actor is None  # not in a CI job
    hub = author({"GITHUB_ACTIONS": "true", "GITHUB_ACTOR": "ann\u202e"})
    assert (hub.ci, hub.actor) == ("github", "ann\\u202e")
    lab = author({"GITLAB_CI": "true", "GITLAB_USER_LOGIN": "bob"})
    assert (lab.ci, lab.actor) == ("gitlab", "bob")
    assert author({"BUILDKITE": "true"}).ci == "buildkite"


@pytest.mark.programs
def test_init_ignores_only_local_files(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("*.log\n/warehouse/")
    assert mzplan(checkout, "init", "--from", "files").code == 0
    text = (checkout / ".gitignore").read_text()
    assert text.startswith("*.log\n/warehouse/\n#") and text.count("warehouse/") == 1
    made = ("state/prod/journal/local.jsonl", "state/status/local.json", "state/leases/local.json")
    for name in (*made, "state/lock", "state/proposals/x", "warehouse/x", ".mzplan/local.log"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    for name in ("mzplan.state.json", ".runners", "history/000001.json"):
        (checkout / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "state" / name).write_text("{}")
    run(checkout, "add", "-A")
    kept = [
        one for one in run(checkout, "ls-files").splitlines() if one.startswith((".mz", "state", "wareh"))
    ]
    assert kept == ["state/.runners", "state/history/000001.json", "state/mzplan.state.json"]
    (checkout / "mzplan.yaml").unlink()
    (checkout / "pipeline.yaml").unlink()
    for file in (checkout / "inbox").iterdir():
        file.unlink()
    assert mzplan(checkout, "init", "--from", "files").code == 0
    assert (checkout / ".gitignore").read_text() == text
    elsewhere = checkout.parent / "elsewhere"
    elsewhere.write_text("")
    (checkout / "p").mkdir()
    (checkout / "p" / ".gitignore").symlink_to(elsewhere)
    assert mzplan(checkout / "p", "init").code == 0 and elsewhere.read_text() == ""
