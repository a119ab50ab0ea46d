"""examples/ci, as a team would run it: a git repository, a bare remote, a branch, a review, a merge."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli_runs import write
from tests.warm_commands import warm_mzplan

CI = Path(__file__).parents[3] / "examples" / "ci"


def sh(folder: Path, *command: str, code: int = 0, **environment: str) -> str:
    """A command in a folder, without this machine's git settings; asserts how it ends."""
    clean = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "MZPLAN": warm_mzplan()}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, **clean, **environment}
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def git(folder: Path, *arguments: str) -> str:
    return sh(folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments)


def ci(folder: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    return sh(folder, str(CI / "mzplan-ci.sh"), *arguments, code=code, **environment)


def approved(out: Path) -> dict[str, str]:
    """What a person has agreed to: the digest that the comment in this folder shows."""
    (digest,) = re.findall(
        r"^Digest: `(sha256:[0-9a-f]{64})`", (out / "comment.md").read_text(), re.MULTILINE
    )
    return {"MZPLAN_DIGEST": digest}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with a project on main. The state is in a folder that every checkout reaches."""
    bare, first = tmp_path / "remote.git", tmp_path / "first"
    first.mkdir()
    sh(tmp_path, "git", "init", "-q", "--bare", "-b", "main", str(bare))
    sh(first, "git", "init", "-q", "-b", "main")
    write(first)
    settings = first / "mzplan.yaml"
    settings.write_text(settings.read_text() + f"state: {{path: {tmp_path / 'shared-state'}}}\n")
    git(first, "add", ".")
    git(first, "commit", "-qm", "the project")
    git(first, "push", "-q", str(bare), "main")
    return bare


def checkout(remote: Path, name: str, branch: str = "main") -> Path:
    """What a CI job does first: a clone of its own."""
    folder = remote.parent / name
    sh(remote.parent, "git", "clone", "-q", "-b", branch, str(remote), str(folder))
    return folder


def push_edit(remote: Path, branch: str, before: str, after: str) -> None:
    """Somebody's commit."""
    folder = checkout(remote, f"edit-{branch}")
    git(folder, "checkout", "-qb", branch)
    path = folder / "pipeline.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    git(folder, "commit", "-qam", branch)
    git(folder, "push", "-q", "origin", branch)


def merge(remote: Path, branch: str) -> None:
    folder = checkout(remote, f"merge-{branch}")
    git(folder, "merge", "-q", "--no-ff", "-m", f"merge {branch}", f"origin/{branch}")
    git(folder, "push", "-q", "origin", "main")


@pytest.mark.smoke
@pytest.mark.programs
def test_from_a_pull_request_to_production(remote: Path) -> None:
    out = remote.parent / "out"
    main = checkout(remote, "job-0")
    ci(main, "validate")
    assert "changes are pending" in ci(main, "plan", str(out))
    assert "No digest was approved" in ci(main, "apply", str(out), code=5)
    ci(main, "apply", str(out), **approved(out))
    assert "nothing to change" in ci(main, "plan", str(out))
    ci(main, "drift", str(out))

    push_edit(remote, "move-broker", "a:9092", "b:9092")
    pull_request = checkout(remote, "job-1", "move-broker")
    ci(pull_request, "plan", str(out))
    comment = (out / "comment.md").read_text()
    assert comment.startswith("<!-- mzplan:plan:shop -->") and "**1 query restarts**" in comment

    # Another change goes first; it touches nothing of this plan, which stays as reviewed.
    push_edit(remote, "more-rows", "rows: 3", "rows: 4")
    merge(remote, "more-rows")
    other = checkout(remote, "job-2")
    ci(other, "plan", str(out / "other"))
    ci(other, "apply", str(out / "other"), **approved(out / "other"))
    merge(remote, "move-broker")
    merged = checkout(remote, "job-3")
    agreed = approved(out)
    ci(merged, "plan", str(out))  # on the merge commit, and on a later serial
    ci(merged, "apply", str(out), **agreed)
    assert "nothing to change" in ci(merged, "plan", str(out))

    # One that touches the same is not applied unseen.
    push_edit(remote, "again", "b:9092", "c:9092")
    ci(checkout(remote, "job-4", "again"), "plan", str(out))
    push_edit(remote, "rival", "b:9092", "d:9092")
    merge(remote, "rival")
    rival = checkout(remote, "job-5")
    ci(rival, "plan", str(out / "rival"))
    # The digest of one is not that of the other: nothing is applied, and there is a plan to review.
    said = ci(rival, "apply", str(out / "rival"), code=5, **approved(out))
    assert "not the one that was reviewed" in said
    assert "d:9092" in (out / "rival" / "anew.md").read_text()
    ci(rival, "apply", str(out / "rival"), **approved(out / "rival"))
    said = ci(rival, "apply", str(out), code=5, **approved(out))
    assert "connection.k was changed" in said and "Review the new plan" in said


@pytest.mark.programs
def test_a_commit_is_promoted_from_staging_to_prod(remote: Path) -> None:
    """The jobs of promotion-workflow.yml, which differ by MZPLAN_ENV: what was approved for one is not for
    the other, and the commit is the same."""
    workflow = yaml.safe_load((CI / "promotion-workflow.yml").read_text())["jobs"]
    assert workflow["plan"]["strategy"]["matrix"]["env"] == ["staging", "prod"]
    assert workflow["prod"]["needs"] == "staging" and workflow["prod"]["environment"] == "prod"
    assert [workflow[name]["env"]["MZPLAN_ENV"] for name in ("staging", "prod")] == ["staging", "prod"]
    job = checkout(remote, "job")
    settings = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\nenvironments:\n"
    for name in ("staging", "prod"):
        state = remote.parent / "shared-state" / name
        settings += f"  {name}: {{state: {{path: {state}}}, warehouse: ./warehouse/{name}}}\n"
    (job / "mzplan.yaml").write_text(settings)
    outs = {name: remote.parent / name for name in ("staging", "prod")}
    for name, out in outs.items():
        ci(job, "plan", str(out), MZPLAN_ENV=name)
        assert (out / "comment.md").read_text().startswith(f"<!-- mzplan:plan:shop:{name} -->\n")
    agreed = {name: approved(out) for name, out in outs.items()}
    ci(job, "apply", str(outs["staging"]), MZPLAN_ENV="staging", **agreed["staging"])
    said = ci(job, "apply", str(outs["prod"]), code=5, MZPLAN_ENV="prod", **agreed["staging"])
    assert "not the one that was reviewed" in said
    said = ci(job, "apply", str(outs["prod"]), code=5, MZPLAN_ENV="staging", **agreed["prod"])
    assert "MZ036" in said
    ci(job, "apply", str(outs["prod"]), MZPLAN_ENV="prod", **agreed["prod"])


@pytest.mark.programs
def test_a_broken_project_fails_each_job(remote: Path) -> None:
    push_edit(remote, "broken", "connection: k", "connection: nobody")
    job = checkout(remote, "job", "broken")
    for command in (("validate",), ("plan", "out")):
        assert "MZ012" in ci(job, *command, code=1)
    assert ci(job, "nonsense", code=64).startswith("#")


@pytest.mark.programs
def test_a_drift_job_fails_when_there_is_drift(remote: Path) -> None:
    job = checkout(remote, "job")
    ci(job, "plan", "out")
    ci(job, "apply", "out", **approved(job / "out"))
    ci(job, "drift", "out")
    (remote.parent / "shared-state" / "status" / "local.json").unlink()
    ci(job, "drift", "out", code=3)
    assert "| `missing-query` | 3 |" in (job / "out" / "drift.md").read_text()


@pytest.mark.programs
def test_the_pre_commit_hook(remote: Path, tmp_path: Path) -> None:
    folder = checkout(remote, "hooked")
    text = (CI / "pre-commit-config.yaml").read_text()
    (folder / ".pre-commit-config.yaml").write_text(text.replace("entry: mzplan", f"entry: {warm_mzplan()}"))
    git(folder, "add", ".")
    run = (sys.executable, "-m", "pre_commit", "run", "--all-files")
    home = {"PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}
    assert "Passed" in sh(folder, *run, **home)
    path = folder / "pipeline.yaml"
    path.write_text(path.read_text().replace("connection: k", "connection: nobody"))
    assert "MZ012" in sh(folder, *run, code=1, **home)


# --- comments: one, kept up to date


GH = """#!/usr/bin/env python3
import json, os, re, sys
from pathlib import Path
store = Path(os.environ["COMMENTS"])
comments = json.loads(store.read_text())
arguments = sys.argv[2:]
if "graphql" in arguments:
    print("github-actions[bot]")
    sys.exit()
if arguments[0].endswith("/pulls"):
    print("7")
    sys.exit()
if "--jq" in arguments:
    jq = arguments[arguments.index("--jq") + 1]
    marker = re.search(r'startswith\\("(.*?)"\\)', jq)[1]
    author = re.search(r'user.login == "(.*?)"', jq)[1]
    for c in comments:
        if c["body"].startswith(marker) and c["user"]["login"] == author:
            shown = re.search("\\nDigest: `(sha256:[0-9a-f]{64})`", c["body"])
            print((shown[1] if shown else "none") if "capture" in jq else c["id"])
    sys.exit()
body = Path(next(a for a in arguments if a.startswith("body=@"))[6:]).read_text()
if arguments[arguments.index("--method") + 1] == "PATCH":
    next(c for c in comments if str(c["id"]) == arguments[2].rpartition("/")[2])["body"] = body
else:
    comments.append({"id": len(comments) + 1, "body": body, "user": {"login": "github-actions[bot]"}})
store.write_text(json.dumps(comments))
"""
MARKED = "<!-- mzplan:plan:shop -->"
FORGED = f"{MARKED}\n\nDigest: `sha256:{'0' * 64}`, with whatever its author likes.\n"


def test_github_has_one_comment_that_is_edited(tmp_path: Path) -> None:
    tools, comments = tmp_path / "bin", tmp_path / "comments.json"
    tools.mkdir()
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    others = [{"id": 1, "body": "looks good", "user": {"login": "ann"}}]
    others.append({"id": 2, "body": FORGED, "user": {"login": "mallory"}})
    comments.write_text(json.dumps(others))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "COMMENTS": str(comments)}
    for text in ("first", "second"):
        (tmp_path / "c.md").write_text(f"<!-- mzplan:plan:shop -->\n\n{text}\n")
        sh(tmp_path, str(CI / "comment.sh"), "c.md", "o/r", "7", **environment)
    found = json.loads(comments.read_text())
    assert [c["body"].split("\n")[-2:] for c in found] == [
        ["looks good"],
        FORGED.split("\n")[-2:],  # it has the marker, and another author
        ["second", ""],
    ]


@pytest.fixture
def gitlab() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """GitLab's notes, as far as note.py needs them."""
    notes: list[dict[str, Any]] = [
        {"id": 1, "body": "looks good", "author": {"id": 1}},
        {"id": 2, "body": FORGED, "author": {"id": 666}},
    ]

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Nothing."""

        def answer(self, content: Any) -> None:
            assert self.headers["PRIVATE-TOKEN"] == "t"
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def content(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            if self.path.endswith("/user"):
                self.answer({"id": 5})
            elif "/commits/" in self.path:
                self.answer([{"iid": 7, "state": "merged", "merge_commit_sha": self.path.split("/")[-2]}])
            else:
                self.answer(notes[::-1] if self.path.endswith("&page=1") else [])

        def do_POST(self) -> None:
            notes.append({"id": len(notes) + 1, "author": {"id": 5}, **self.content()})
            self.answer(notes[-1])

        def do_PUT(self) -> None:
            note = next(n for n in notes if n["id"] == int(self.path.rpartition("/")[2]))
            note.update(self.content())
            self.answer(note)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/v4", notes
    server.shutdown()
    server.server_close()


def test_gitlab_has_one_note_that_is_edited(tmp_path: Path, gitlab: tuple[str, list[dict[str, Any]]]) -> None:
    url, notes = gitlab
    environment = {
        "CI_API_V4_URL": url,
        "CI_PROJECT_ID": "5",
        "CI_MERGE_REQUEST_IID": "7",
        "GITLAB_TOKEN": "t",
    }
    for text in ("first", "second"):
        (tmp_path / "c.md").write_text(f"<!-- mzplan:plan:shop -->\n\n{text}\n")
        sh(tmp_path, sys.executable, str(CI / "note.py"), "c.md", **environment)
    assert [n["body"].split("\n")[0] for n in notes] == ["looks good", MARKED, MARKED]
    assert notes[1]["body"] == FORGED and "second" in notes[2]["body"]


# --- the files themselves


def test_the_templates_are_yaml_and_call_what_is_there() -> None:
    action = yaml.safe_load((CI / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"] if "run" in step}
    assert all(step["shell"] == "bash" for step in steps.values())
    assert "${{" not in "".join(step["run"] for step in steps.values())  # no input becomes shell
    workflow = yaml.safe_load((CI / "github-workflow.yml").read_text())
    used = {
        step["with"]["command"]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "command" in step.get("with", {})
    }
    assert used == {"plan", "apply", "drift"}
    gitlab = yaml.safe_load((CI / "gitlab-ci.yml").read_text())
    scripts = [line for job in gitlab.values() if isinstance(job, dict) for line in job.get("script", [])]
    for name in re.findall(r"ci/([a-z.-]+\.(?:sh|py))", " ".join(scripts)):
        assert os.access(CI / name, os.X_OK), name
    for name in ("mzplan-ci.sh", "comment.sh", "approved.sh"):
        subprocess.run(["bash", "-n", str(CI / name)], check=True)


# --- each shell step of each template, run


def shims(folder: Path) -> Path:
    """What a CI machine has on its PATH: mzplan; a `python` whose pip installs nothing and says what it was
    asked for; `gh`, which keeps comments in a file."""
    tools = folder / "tools"
    tools.mkdir()
    python = '[ "$1 $2" = "-m pip" ] && { echo "pip: $*" >>"$PIP_LOG"; exit 0; }\n'
    for name, text in (
        ("mzplan", f'#!/bin/sh\nexec {warm_mzplan()} "$@"\n'),
        ("python", f'#!/bin/sh\n{python}exec {sys.executable} "$@"\n'),
        ("gh", GH.replace("/usr/bin/env python3", sys.executable)),
    ):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tools


class Action:
    """Runs action.yml as GitHub would: each step in its own shell, its `env` and its `if` filled in."""

    def __init__(self, folder: Path, event: str):
        self.folder, self.event = folder, event
        self.steps = yaml.safe_load((CI / "action.yml").read_text())["runs"]["steps"]
        self.temp, self.summary = folder.parent / f"{folder.name}-temp", folder.parent / f"{folder.name}.md"
        self.comments = folder.parent / f"{folder.name}.json"
        self.comments.write_text("[]")
        self.digest = ""
        self.project, self.state_config = ".", ""
        self.temp.mkdir()
        self.tools = shims(self.temp)

    def run(self, command: str) -> int:
        """All steps; the code of the first that fails. After it only those go on that ask for it."""
        values = {
            "inputs.command": command,
            "inputs.project": self.project,
            "inputs.state-config": self.state_config,
            "inputs.version": "mzplan==1.2; echo owned",  # whatever it is, it is no shell
            "inputs.apply-options": "",
            "inputs.digest": self.digest,
            "inputs.token": "t",
            "github.event_name": self.event,
            "github.event.pull_request.number": "7",
            "github.server_url": "https://git.example",
            "github.repository": "o/r",
            "github.run_id": "5",
        }
        failed = 0
        for step in self.steps:
            condition = step.get("if", "")
            wanted = self._holds(condition, values) if condition else not failed
            if "run" not in step or not wanted:
                continue
            given = {
                name: re.sub(r"\$\{\{ *(.*?) *\}\}", lambda m: values[m[1]], str(value))
                for name, value in step.get("env", {}).items()
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.folder,
                env={
                    **os.environ,
                    **given,
                    "PATH": f"{self.tools}:{os.environ['PATH']}",
                    "GITHUB_ACTION_PATH": str(CI),
                    "GITHUB_REPOSITORY": "o/r",
                    "GITHUB_SHA": "0" * 40,
                    "GITHUB_STEP_SUMMARY": str(self.summary),
                    "RUNNER_TEMP": str(self.temp),
                    "COMMENTS": str(self.comments),
                    "PIP_LOG": str(self.temp / "pip.log"),
                },
                capture_output=True,
                text=True,
            )
            assert "owned" not in done.stdout
            failed = failed or done.returncode
        return failed

    @staticmethod
    def _holds(condition: str, values: dict[str, str]) -> bool:
        """`${{ … }}` of the few forms that the action uses."""
        text = condition.removeprefix("${{").removesuffix("}}").replace("!cancelled()", "True")
        text = re.sub(r"\b(?:inputs|github)\.[a-z_]+", lambda m: repr(values[m[0]]), text)
        return bool(eval(text.replace("&&", "and").replace("||", "or"), {"__builtins__": {}}))


@pytest.mark.programs
def test_each_step_of_the_action_as_github_would_run_it(remote: Path) -> None:
    action = Action(checkout(remote, "main-job"), "push")
    assert [action.run(command) for command in ("validate", "plan")] == [0, 0]
    assert json.loads(action.comments.read_text()) == []  # no pull request
    forged = {"id": 1, "body": FORGED, "user": {"login": "mallory"}}
    action.comments.write_text(json.dumps([forged]))
    assert action.run("apply") == 5  # nobody has approved it: it is commented, for review
    first, anew = json.loads(action.comments.read_text())
    assert first == forged and anew["body"].startswith(MARKED)
    assert action.run("apply") == 0  # somebody has read that, and runs the job again
    assert action.run("drift") == 0
    assert "mzplan==1.2; echo owned" in (action.temp / "pip.log").read_text()
    assert "**No drift.**" in action.summary.read_text()

    push_edit(remote, "feature", "a:9092", "b:9092")
    review = Action(checkout(remote, "review-job", "feature"), "pull_request_target")
    for _ in range(2):
        assert review.run("plan") == 0
    (comment,) = json.loads(review.comments.read_text())
    assert comment["body"].startswith("<!-- mzplan:plan:shop -->")
    assert "[The plan as a picture](<https://git.example/o/r/actions/runs/5#artifacts>)" in comment["body"]
    (upload,) = [step for step in review.steps if "upload-artifact" in step.get("uses", "")]
    assert Action._holds(upload["if"], {"inputs.command": "plan"})
    kept = upload["with"]["path"].replace("${{ runner.temp }}", str(review.temp))
    assert Path(kept).read_text().startswith("<!doctype html>")

    push_edit(remote, "broken", "connection: k", "connection: nobody")
    broken = Action(checkout(remote, "broken-job", "broken"), "pull_request_target")
    assert broken.run("plan") == 1  # and the comment step, which runs all the same, does not fail of it
    assert json.loads(broken.comments.read_text()) == []

    (remote.parent / "shared-state" / "status" / "local.json").unlink()
    assert action.run("drift") == 3
    assert "`missing-query`" in action.summary.read_text()


def push_a_state_of_ones_own(remote: Path) -> Path:
    """A branch that wants its plan to read another state; the folder that it names."""
    folder, theirs = checkout(remote, "edit-theirs"), remote.parent / "theirs"
    git(folder, "checkout", "-qb", "theirs")
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text().replace(str(remote.parent / "shared-state"), str(theirs)))
    git(folder, "commit", "-qam", "another state")
    git(folder, "push", "-q", "origin", "theirs")
    return theirs


def commit_main(remote: Path) -> None:
    out, folder = remote.parent / "out", checkout(remote, "committed")
    ci(folder, "plan", str(out))
    ci(folder, "apply", str(out), **approved(out))


@pytest.mark.programs
def test_a_request_does_not_choose_the_state_on_github(remote: Path) -> None:
    """The job of the workflow, step by step: main's checkout, the request's in it, main's action."""
    commit_main(remote)
    push_a_state_of_ones_own(remote)
    workflow = yaml.safe_load((CI / "github-workflow.yml").read_text())
    assert "pull_request_target" in workflow[True] and "pull_request" not in workflow[True]
    ours, theirs, planned = workflow["jobs"]["plan"]["steps"]
    assert "ref" not in ours["with"] and theirs["with"]["path"] == "request"
    folder = checkout(remote, "main-job")
    shutil.move(checkout(remote, "requested", "theirs"), folder / "request")
    action = Action(folder, "pull_request_target")
    action.project, action.state_config = planned["with"]["project"], planned["with"]["state-config"]
    assert action.run("plan") == 0
    (comment,) = json.loads(action.comments.read_text())
    assert "**No changes.**" in comment["body"]  # as main's state has it: theirs would have none of it


@pytest.mark.programs
def test_a_request_does_not_choose_the_state_on_gitlab(remote: Path, tmp_path: Path) -> None:
    commit_main(remote)
    push_a_state_of_ones_own(remote)
    tools = shims(tmp_path)
    folder = checkout(remote, "requested", "theirs")
    shutil.copytree(CI, folder / ".ci")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_LOG": str(tmp_path / "pip.log")}
    done = gitlab_job("mzplan-plan", folder, CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main", **environment)
    assert done.returncode == 0, done.stderr
    assert "**No changes.**" in (folder / "mzplan-out" / "comment.md").read_text()


def test_actions_are_pinned_by_commit() -> None:
    for file in (CI / "action.yml", CI / "github-workflow.yml", CI / "promotion-workflow.yml"):
        used = re.findall(r"uses: (\S+)", file.read_text())
        assert used
        for name in used:
            assert name.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name


def gitlab_job(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A job of gitlab-ci.yml: what it extends, then its script, in one shell that ends with an error."""
    jobs = yaml.safe_load((CI / "gitlab-ci.yml").read_text())
    job = {**jobs[jobs[name]["extends"]], **jobs[name]}
    lines = [*job["before_script"], *job["script"]]
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, **job["variables"], **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.programs
def test_each_job_of_the_gitlab_template(
    remote: Path, tmp_path: Path, gitlab: tuple[str, list[dict[str, Any]]]
) -> None:
    url, notes = gitlab
    tools = shims(tmp_path)
    common = {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_LOG": str(tmp_path / "pip.log")}
    request = {
        "CI_API_V4_URL": url,
        "CI_PROJECT_ID": "5",
        "CI_MERGE_REQUEST_IID": "7",
        "GITLAB_TOKEN": "t",
    }
    merged = {**request, "CI_MERGE_REQUEST_IID": "", "CI_COMMIT_SHA": "0" * 40}
    folder = checkout(remote, "gitlab")
    shutil.copytree(CI, folder / ".ci")  # where the README says that it is copied to
    for name, more, code in (
        ("mzplan-validate", request, 0),
        ("mzplan-plan", {**request, "CI_JOB_URL": "https://git.example/o/r/-/jobs/5"}, 0),
        ("mzplan-plan", {}, 0),  # on the default branch there is no note
        ("mzplan-apply", {}, 5),  # without the note, nothing is approved
        ("mzplan-apply", merged, 0),
        ("mzplan-drift", {}, 0),
        ("mzplan-apply", merged, 5),  # the plan that was applied; the note after it has nothing to do
    ):
        done = gitlab_job(name, folder, **common, **more)
        assert done.returncode == code, f"{name}: {done.stdout}{done.stderr}"
    assert [n["body"].split("\n")[0] for n in notes] == ["looks good", MARKED, MARKED, MARKED]
    picture = "https://git.example/o/r/-/jobs/5/artifacts/file/mzplan-out/plan.html"
    assert f"(<{picture}>)" in notes[2]["body"] and (folder / "mzplan-out" / "plan.html").exists()
    assert notes[1]["body"] == FORGED and "**No changes.**" in notes[3]["body"]
    (remote.parent / "shared-state" / "status" / "local.json").unlink()
    assert gitlab_job("mzplan-drift", folder, **common).returncode == 3
    assert (folder / "mzplan-out" / "drift.md").exists()


@pytest.mark.programs
def test_the_drift_job_of_systemd_and_of_cron(remote: Path, tmp_path: Path) -> None:
    """The lines as they stand there, with this machine's folders."""
    folder = checkout(remote, "served")
    ci(folder, "plan", "out")
    ci(folder, "apply", "out", **approved(folder / "out"))
    service = (CI / "mzplan-drift.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    (variable,) = re.findall(r"^Environment=(.*)$", service, re.MULTILINE)
    (line,) = re.findall(r"^#   17 \* \* \* \* (.*)$", (CI / "mzplan-drift.timer").read_text(), re.MULTILINE)

    def here(text: str) -> str:
        text = text.replace("/srv/mzplan/project", str(folder)).replace("/srv/mzplan/ci", str(CI))
        return text.replace("/var/lib/mzplan/drift", str(tmp_path / "drift"))

    for script in (f"{here(variable)} exec {here(command)}", here(line)):
        sh(tmp_path, "sh", "-c", script)
    assert "**No drift.**" in (tmp_path / "drift" / "drift.md").read_text()
    (remote.parent / "shared-state" / "status" / "local.json").unlink()
    for script in (f"{here(variable)} exec {here(command)}", here(line)):
        sh(tmp_path, "sh", "-c", script, code=3)
    if shutil.which("systemd-analyze"):
        for name in ("mzplan-drift.service", "mzplan-drift.timer"):
            (tmp_path / name).write_text(here((CI / name).read_text()).replace("User=mzplan\n", ""))
        sh(tmp_path, "systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("mzplan-drift.*")))
