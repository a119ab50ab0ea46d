"""Reads the commit of a checkout without running anything that comes with the checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mzplan.host import git
from mzplan.host.git import author, find_revision
from mzplan.model.history import GitRevision
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
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        who = {"NAME": "A", "EMAIL": "a@b", "DATE": "2026-01-01T00:00:00Z"}
        environment |= {f"GIT_{role}_{name}": value for name, value in who.items()}
    command = ("git", *arguments)
    done = subprocess.run(command, cwd=top, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(top: Path, message: str) -> None:
    run(top, "add", "-A")
    run(top, "commit", "-q", "--allow-empty", "-m", message)


def revision(folder: Path, *left_out: Path) -> GitRevision:
    found = find_revision(str(folder), [str(path) for path in left_out])
    assert found is not None
    return found


def is_clean(folder: Path, *left_out: Path) -> bool:
    return revision(folder, *left_out).clean


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://x:secret@git.example:8443/data/shop.git", "https://git.example:8443/data/shop"),
        ("git@git.example:data/shop.git", "https://git.example/data/shop"),
        ("ssh://git@git.example:2222/data/shop.git/", "https://git.example/data/shop"),
        ("../shop.git", ""),
        ("/srv/git/shop.git", ""),
        ("https://git.example/a b", ""),
        ("ext::sh -c x", ""),
    ],
)
@pytest.mark.programs
def test_a_revision_names_its_repository_without_a_login(checkout: Path, remote: str, address: str) -> None:
    assert revision(checkout).repository == ""
    run(checkout, "remote", "add", "origin", remote)
    assert revision(checkout).repository == address


@pytest.mark.programs
def test_a_revision_has_a_commit_a_subject_and_whether_the_files_are_committed(
    checkout: Path, tmp_path: Path
) -> None:
    found, commit_id = revision(checkout), run(checkout, "rev-parse", "HEAD")
    assert (found.commit, found.clean, found.subject) == (commit_id, True, "One")
    (checkout / "a.yaml").write_text("a: 22\n")
    assert not is_clean(checkout)
    run(checkout, "checkout", "-q", "a.yaml")
    (checkout / ".git" / "info").mkdir(exist_ok=True)
    (checkout / ".git" / "info" / "exclude").write_text("*.log\n")
    (checkout / "a.log").write_text("x")
    assert is_clean(checkout)

    # The state's folder doesn't count, and other new files do.
    below = checkout / "project"
    (below / "state").mkdir(parents=True)
    (below / "state" / "x.json").write_text("{}")
    assert not is_clean(below) and is_clean(below, below / "state")
    (below / "new.yaml").write_text("b: 1\n")
    assert not is_clean(below, below / "state")

    # Linked work trees and packed references are read.
    run(checkout, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    commit(tmp_path / "linked", "Two")
    run(checkout, "gc", "-q")
    linked = revision(tmp_path / "linked")
    assert (linked.subject, linked.clean) == ("Two", True) and revision(checkout).subject == "One"


@pytest.mark.programs
def test_without_a_checkout_a_commit_or_git_there_is_no_revision(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("none", "empty", "odd"):
        (tmp_path / name).mkdir()
    run(tmp_path / "empty", "init", "-q")
    os.mkfifo(tmp_path / "odd" / ".git")
    for name in ("none", "empty", "odd"):
        assert find_revision(str(tmp_path / name)) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_revision(str(checkout)) is None
    # A program of the checkout isn't git.
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
    programs = {
        "core": ("fsmonitor", "pager", "sshCommand", "askPass"),
        "pager": ("status", "log", "rev-parse"),
        "filter.x": ("clean", "smudge"),
        "filter.y": ("process",),
        "diff": ("external", "x.textconv"),
    }
    names = [f"{section}.{name}" for section, given in programs.items() for name in given]
    names += ["gpg.program", "credential.helper", "alias.status"]
    fetches = {"remote.origin.url": f"ext::{evil}", "protocol.ext.allow": "always"}
    fetches |= {"remote.origin.promisor": "true", "extensions.partialClone": "origin"}
    settings = {"log.showSignature": "true", "core.hooksPath": str(tmp_path), **fetches}
    for name, value in {**dict.fromkeys(names, str(evil)), **settings}.items():
        run(checkout, "config", name, value)
    evil.rename(tmp_path / "post-index-change")
    evil.symlink_to(tmp_path / "post-index-change")
    ran.unlink(missing_ok=True)
    (checkout / "a.yaml").write_text("a: 2\n")  # the same size as before, so git must read the file
    (checkout / "b.txt").write_text("c\n")
    found = revision(checkout)
    assert (found.subject, found.clean) == ("Two", False) and not ran.exists()

    run(checkout, "diff-files", "--ext-diff", "-p")
    assert ran.exists()  # the trap works: git itself runs it
    ran.unlink()

    # Git would have to fetch the missing commit.
    (checkout / ".git" / "objects" / found.commit[:2] / found.commit[2:]).unlink()
    assert find_revision(str(checkout)) is None
    assert not ran.exists()


@pytest.mark.programs
def test_output_of_git_is_escaped_and_its_time_limited(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(checkout, "Fix \x1b[2J \u202e evil " + "x" * 300)
    subject = revision(checkout).subject
    assert subject.startswith("Fix \\x1b[2J \\u202e evil") and len(subject) == 200
    monkeypatch.setattr(git, "TIMEOUT", 0.0)
    assert find_revision(str(checkout)) is None


def test_the_author_of_a_commit_is_the_actor_of_the_ci_job() -> None:
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
    kept = ("state/mzplan.state.json", "state/.runners", "state/history/000001.json")
    for name in (*made, "state/lock", "state/proposals/x", "warehouse/x", ".mzplan/local.log", *kept):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("")
    run(checkout, "add", "-A")
    tracked = run(checkout, "ls-files").splitlines()
    assert {name for name in tracked if name.startswith((".mz", "state", "wareh"))} == set(kept)
    # A second `init` repeats no line, and doesn't write through a link.
    for file in (checkout / "mzplan.yaml", checkout / "pipeline.yaml", *(checkout / "inbox").iterdir()):
        file.unlink()
    assert mzplan(checkout, "init", "--from", "files").code == 0
    assert (checkout / ".gitignore").read_text() == text
    elsewhere = checkout.parent / "elsewhere"
    elsewhere.write_text("")
    (checkout / "p").mkdir()
    (checkout / "p" / ".gitignore").symlink_to(elsewhere)
    assert mzplan(checkout / "p", "init").code == 0 and elsewhere.read_text() == ""
