"""The GitHub Action, the GitLab component, the hook and examples/ci as a team runs them, with reviews."""

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
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli_runs import write
from tests.warm_commands import warm_mzplan

ROOT = Path(__file__).parents[3]
CI = ROOT / "examples" / "ci"


def sh(folder: Path, *command: str, code: int = 0, **environment: str) -> str:
    """Run a command without this machine's git settings, check its exit code, and return its output."""
    clean = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "MZPLAN": warm_mzplan()}
    given = {**os.environ, **clean, **environment}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=given)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def script(folder: Path, lines: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run lines of shell code as a CI job does, in one shell that stops at the first error."""
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", lines]
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)


def git(folder: Path, *arguments: str) -> str:
    return sh(folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments)


def ci(folder: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    return sh(folder, str(CI / "mzplan-ci.sh"), *arguments, code=code, **environment)


def approved(out: Path) -> dict[str, str]:
    """Return the digest that the comment in this folder shows, as an approval."""
    comment = (out / "comment.md").read_text()
    (digest,) = re.findall(r"^Digest: `(sha256:[0-9a-f]{64})`", comment, re.MULTILINE)
    return {"MZPLAN_DIGEST": digest}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """Return a bare repository with a project on main. All checkouts share its state."""
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
    """Return a new clone, as each CI job has."""
    folder = remote.parent / name
    sh(remote.parent, "git", "clone", "-q", "-b", branch, str(remote), str(folder))
    return folder


def push_edit(remote: Path, branch: str, before: str, after: str, file: str = "pipeline.yaml") -> None:
    folder = checkout(remote, f"edit-{branch}")
    git(folder, "checkout", "-qb", branch)
    path = folder / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    git(folder, "commit", "-qam", branch)
    git(folder, "push", "-q", "origin", branch)


def merge(remote: Path, branch: str) -> None:
    folder = checkout(remote, f"merge-{branch}")
    git(folder, "merge", "-q", "--no-ff", "-m", f"merge {branch}", f"origin/{branch}")
    git(folder, "push", "-q", "origin", "main")


def plan_and_apply(remote: Path, name: str, out: Path) -> Path:
    """Apply main after a review, and return the checkout."""
    folder = checkout(remote, name)
    ci(folder, "plan", str(out))
    ci(folder, "apply", str(out), **approved(out))
    return folder


def stop_reporting(remote: Path) -> None:
    """Remove the runner's status, so that there is drift."""
    (remote.parent / "shared-state" / "status" / "local.json").unlink()


@pytest.mark.smoke
@pytest.mark.programs
def test_from_a_pull_request_to_production(remote: Path) -> None:
    out = remote.parent / "out"
    main = checkout(remote, "job-0")
    assert ci(main, "nonsense", code=64).startswith("#")
    ci(main, "validate", str(out))
    assert "has no tests" in ci(main, "test", str(out))
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

    # Another change is applied first. It touches nothing in this plan, so the approval stays valid.
    push_edit(remote, "more-rows", "rows: 3", "rows: 4")
    merge(remote, "more-rows")
    plan_and_apply(remote, "job-2", out / "other")
    merge(remote, "move-broker")
    merged = checkout(remote, "job-3")
    agreed = approved(out)
    ci(merged, "plan", str(out))  # for the merge commit, at a later serial
    ci(merged, "apply", str(out), **agreed)
    assert "nothing to change" in ci(merged, "plan", str(out))

    # Two changes of the same connection: one approval doesn't cover the other change.
    push_edit(remote, "again", "b:9092", "c:9092")
    ci(checkout(remote, "job-4", "again"), "plan", str(out))
    push_edit(remote, "rival", "b:9092", "d:9092")
    merge(remote, "rival")
    rival = checkout(remote, "job-5")
    ci(rival, "plan", str(out / "rival"))
    said = ci(rival, "apply", str(out / "rival"), code=5, **approved(out))
    assert "not the one that was reviewed" in said
    assert "d:9092" in (out / "rival" / "anew.md").read_text()
    ci(rival, "apply", str(out / "rival"), **approved(out / "rival"))
    said = ci(rival, "apply", str(out), code=5, **approved(out))
    assert "connection.k was changed" in said and "Review the new plan" in said


@pytest.mark.programs
def test_a_commit_is_promoted_from_staging_to_prod(remote: Path) -> None:
    """The jobs of promotion-workflow.yml differ by MZPLAN_ENV. Each environment needs its own approval."""
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
def test_the_pre_commit_hook_refuses_a_broken_project(remote: Path, tmp_path: Path) -> None:
    folder = checkout(remote, "hooked")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (wanted,) = yaml.safe_load((CI / "pre-commit-config.yaml").read_text())["repos"]
    assert [one["id"] for one in wanted["hooks"]] == [hook["id"]]
    local = {**hook, "language": "system", "entry": hook["entry"].replace("mzplan", warm_mzplan(), 1)}
    repos = [{"repo": "local", "hooks": [local]}]
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": repos}))
    git(folder, "add", ".")
    run = (sys.executable, "-m", "pre_commit", "run", "--all-files")
    home = {"PRE_COMMIT_HOME": str(tmp_path / "pre-commit")}
    assert "Passed" in sh(folder, *run, **home)
    path = folder / "pipeline.yaml"
    path.write_text(path.read_text().replace("connection: k", "connection: nobody"))
    assert "MZ012" in sh(folder, *run, code=1, **home)


GH = """#!/usr/bin/env python3
import json, os, re, sys
from pathlib import Path

store = Path(os.environ["COMMENTS"])
comments = json.loads(store.read_text())
arguments = sys.argv[2:]
if "graphql" in arguments:
    print("github-actions[bot]")
elif arguments[0].endswith("/pulls"):
    print("7")
elif "--jq" in arguments:
    jq = arguments[arguments.index("--jq") + 1]
    marker = re.search(r'startswith\\("(.*?)"\\)', jq)[1]
    author = re.search(r'user.login == "(.*?)"', jq)[1]
    for c in comments:
        if c["body"].startswith(marker) and c["user"]["login"] == author:
            shown = re.search("\\nDigest: `(sha256:[0-9a-f]{64})`", c["body"])
            print((shown[1] if shown else "none") if "capture" in jq else c["id"])
else:
    body = Path(next(a for a in arguments if a.startswith("body=@"))[6:]).read_text()
    if arguments[arguments.index("--method") + 1] == "PATCH":
        next(c for c in comments if str(c["id"]) == arguments[2].rpartition("/")[2])["body"] = body
    else:
        comments.append({"id": len(comments) + 1, "body": body, "user": {"login": "github-actions[bot]"}})
    store.write_text(json.dumps(comments))
"""
MARKED = "<!-- mzplan:plan:shop -->"
FORGED = f"{MARKED}\n\nDigest: `sha256:{'0' * 64}`, from another author.\n"


@pytest.fixture
def gitlab() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve GitLab's notes as far as note.py needs them. Yields the address and the notes."""
    written = ((1, "looks good", 1), (2, FORGED, 666))
    notes: list[dict[str, Any]] = [{"id": n, "body": text, "author": {"id": a}} for n, text, a in written]

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def answer(self, content: Any) -> None:
            assert self.headers["PRIVATE-TOKEN"] == "t"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

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


def test_the_action_puts_no_input_into_a_shell() -> None:
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert all(step["shell"] == "bash" and "${{" not in step["run"] for step in steps if "run" in step)


def test_the_workflows_run_pinned_actions() -> None:
    for file in (ROOT / "action.yml", CI / "github-workflow.yml", CI / "promotion-workflow.yml"):
        used = re.findall(r"uses: (\S+)", file.read_text())
        assert used
        for name in used:
            assert name == "OWNER/mzplan@COMMIT" or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
    jobs = yaml.safe_load((CI / "github-workflow.yml").read_text())["jobs"].values()
    commands = {step.get("with", {}).get("command") for job in jobs for step in job["steps"]}
    assert commands - {None} == {"test", "plan", "apply", "drift"}


# The collection has no rows, so Spark doesn't start.
EMPTY_PREVIEW = "**Preview** of `sink.few`\n\n```diff\nThe collection of source.orders is still empty."


def shims(folder: Path) -> dict[str, str]:
    """Return the variables for a PATH with mzplan, a `python` whose pip only logs its arguments in
    folder/pip.log, and a `gh` that stores comments in a file."""
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
    return {"PATH": f"{tools}:{os.environ['PATH']}", "PIP_LOG": str(folder / "pip.log")}


class Action:
    """Runs action.yml as GitHub does: each step in its own shell, with its `env` and `if` filled in."""

    def __init__(self, folder: Path, event: str, **inputs: str):
        self.folder, self.event = folder, event
        self.inputs = {name.replace("_", "-"): value for name, value in inputs.items()}
        self.steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
        self.temp, self.summary = folder.parent / f"{folder.name}-temp", folder.parent / f"{folder.name}.md"
        self.comments = folder.parent / f"{folder.name}.json"
        self.comments.write_text("[]")
        self.temp.mkdir()
        self.annotations: list[str] = []
        places = {"RUNNER_TEMP": str(self.temp), "COMMENTS": str(self.comments), **shims(self.temp)}
        github = {"REPOSITORY": "o/r", "SHA": "0" * 40, "STEP_SUMMARY": str(self.summary)}
        given = {f"GITHUB_{name}": value for name, value in github.items()}
        self.environment = {**places, **given, "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_ACTIONS": "true"}

    def run(self, command: str) -> int:
        """Run all steps, and return the exit code of the first failure. Later steps need an `if` to run."""
        version = "mzplan==1.2; echo owned"  # never run as shell code
        given = {**self.inputs, "command": command, "version": version, "token": "t"}
        inputs = {
            "project": ".",
            "state-config": "",
            "apply-options": "",
            "preview": "false",
            "digest": "",
            "extra": "postgres",
            **given,
        }
        github = {"event_name": self.event, "event.pull_request.number": "7", "repository": "o/r"}
        github |= {"server_url": "https://git.example", "run_id": "5"}
        values = {f"inputs.{name}": value for name, value in inputs.items()}
        values |= {f"github.{name}": value for name, value in github.items()}
        failed = 0
        for step in self.steps:
            condition = step.get("if", "")
            wanted = self._holds(condition, values) if condition else not failed
            if "run" not in step or not wanted:
                continue
            filled = partial(re.sub, r"\$\{\{ *(.*?) *\}\}", lambda m: values[m[1]])
            given = {name: filled(str(value)) for name, value in step.get("env", {}).items()}
            done = script(self.folder, step["run"], {**self.environment, **given})
            assert "owned" not in done.stdout
            self.annotations += [line for line in done.stdout.splitlines() if line.startswith("::")]
            failed = failed or done.returncode
        return failed

    @staticmethod
    def _holds(condition: str, values: dict[str, str]) -> bool:
        """`${{ … }}` of the few forms that the action uses."""
        text = condition.removeprefix("${{").removesuffix("}}").replace("!cancelled()", "True")
        text = re.sub(r"\b(?:inputs|github)\.[a-z_]+", lambda m: repr(values[m[0]]), text)
        return bool(eval(text.replace("&&", "and").replace("||", "or"), {"__builtins__": {}}))


@pytest.mark.programs
def test_the_github_action_reviews_applies_and_finds_drift(remote: Path) -> None:
    action = Action(checkout(remote, "main-job"), "push")
    assert [action.run(command) for command in ("validate", "plan")] == [0, 0]
    assert json.loads(action.comments.read_text()) == []  # no pull request
    texts = {"ann": "looks good", "mallory": FORGED}
    others = [{"id": n, "body": texts[u], "user": {"login": u}} for n, u in enumerate(texts, 1)]
    action.comments.write_text(json.dumps(others))
    assert action.run("apply") == 5  # nobody has approved the plan, so it becomes a comment
    *first, new = json.loads(action.comments.read_text())
    assert first == others and new["body"].startswith(MARKED)
    assert action.run("apply") == 0  # somebody has read the comment, and runs the job again
    assert action.run("drift") == 0
    assert "mzplan==1.2; echo owned" in (action.temp / "pip.log").read_text()
    assert "**No drift.**" in action.summary.read_text()

    push_edit(remote, "feature", "a:9092", "b:9092")
    review = Action(checkout(remote, "review-job", "feature"), "pull_request_target")
    review.comments.write_text(json.dumps(others))
    assert review.run("plan") == 0
    push_edit(remote, "more", "rows: 3", "rows: 4")
    git(review.folder, "pull", "-q", "--no-rebase", "--no-edit", "origin", "more")
    assert review.run("plan") == 0
    *first, comment = json.loads(review.comments.read_text())
    assert first == others and comment["body"].startswith(MARKED)  # mzplan's one comment, edited
    assert "rows" in comment["body"]
    assert "[The plan as a picture](<https://git.example/o/r/actions/runs/5#artifacts>)" in comment["body"]
    (upload,) = [step for step in review.steps if "upload-artifact" in step.get("uses", "")]
    assert Action._holds(upload["if"], {"inputs.command": "plan"})
    kept = upload["with"]["path"].replace("${{ runner.temp }}", str(review.temp))
    assert Path(kept).read_text().startswith("<!doctype html>")

    push_edit(remote, "selected", "rows: 3", "rows: 3, where: id > 5")
    previewing = Action(checkout(remote, "preview-job", "selected"), "pull_request_target", preview="true")
    assert previewing.run("plan") == 0
    (comment,) = json.loads(previewing.comments.read_text())
    assert EMPTY_PREVIEW in comment["body"]

    push_edit(remote, "broken", "connection: k", "connection: nobody")
    broken = Action(checkout(remote, "broken-job", "broken"), "pull_request_target")
    assert broken.run("plan") == 1  # the comment step also runs, and doesn't fail
    assert json.loads(broken.comments.read_text()) == []
    (annotation,) = broken.annotations
    assert annotation.startswith(
        "::error title=MZ012,file=pipeline.yaml,line=4,endLine=4,col=24,endColumn=30::Unknown"
    )
    assert "%0AFix: " in annotation

    stop_reporting(remote)
    assert action.run("drift") == 3
    assert "`missing-query`" in action.summary.read_text()


@pytest.mark.programs
def test_a_failed_test_is_shown_beside_its_line(remote: Path) -> None:
    """A test of the verdict on a view's state needs no Spark."""
    folder = checkout(remote, "tested")
    (folder / "tests").mkdir()
    (folder / "tests" / "few.yaml").write_text(
        "tests:\n  few, rows:\n    view: few\n    expect: {state: mixed}\n"
    )
    pipeline = folder / "pipeline.yaml"
    view = "views:\n  few: {query: SELECT id FROM orders}\n"
    pipeline.write_text(pipeline.read_text().replace("  few: {", "  some: {") + view)
    git(folder, "commit", "-qam", "a view")
    action = Action(folder, "pull_request_target")
    assert action.run("test") == 1
    assert action.annotations == [
        "::error title=few%2C rows,file=tests/few.yaml,line=2::state: expected mixed, found "
        "no committed view.few"
    ]
    pipeline.write_text(pipeline.read_text().replace("FROM orders", "FROM nothing"))
    assert action.run("test") == 1
    assert action.annotations[1].startswith("::error title=MZ0")


def push_another_state(remote: Path) -> None:
    """Apply main, and push branch `theirs`, whose plan would read an empty state."""
    plan_and_apply(remote, "committed", remote.parent / "out")
    push_edit(remote, "theirs", "shared-state", "their-state", file="mzplan.yaml")


@pytest.mark.programs
def test_a_pull_request_does_not_choose_the_state_on_github(remote: Path) -> None:
    """The workflow's job checks out main, puts the request's checkout inside, and runs main's action."""
    push_another_state(remote)
    workflow = yaml.safe_load((CI / "github-workflow.yml").read_text())
    assert "pull_request_target" in workflow[True] and "pull_request" not in workflow[True]
    ours, theirs, planned = workflow["jobs"]["plan"]["steps"]
    assert "ref" not in ours["with"] and theirs["with"]["path"] == "request"
    folder = checkout(remote, "main-job")
    shutil.move(checkout(remote, "requested", "theirs"), folder / "request")
    inputs = {name.replace("-", "_"): value for name, value in planned["with"].items()}
    action = Action(folder, "pull_request_target", **inputs)
    assert action.run("plan") == 0
    (comment,) = json.loads(action.comments.read_text())
    assert "**No changes.**" in comment["body"]  # their state would be empty


@pytest.mark.programs
def test_a_merge_request_does_not_choose_the_state_on_gitlab(remote: Path, tmp_path: Path) -> None:
    push_another_state(remote)
    folder = checkout(remote, "requested", "theirs")
    given = {**shims(tmp_path), "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
    done = gitlab_job("mzplan-plan", folder, **given)
    assert done.returncode == 0, done.stderr
    assert "**No changes.**" in (folder / "mzplan-out" / "comment.md").read_text()


def gitlab_job(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a job of the GitLab component as GitLab does, with mzplan's scripts from a repository."""
    tools = folder.parent / "tools.git"
    if not tools.exists():
        shutil.copytree(CI, tools / "examples" / "ci")
        sh(tools, "git", "init", "-q", "-b", "v0.1.0")
        git(tools, "add", ".")
        git(tools, "commit", "-qm", "mzplan")
    specification, _, text = (ROOT / "templates" / "mzplan.yml").read_text().partition("\n---\n")
    declared = yaml.safe_load(specification)["spec"]["inputs"]
    values = {input_: given["default"] for input_, given in declared.items() if "default" in given}
    values["repository"] = str(tools)
    assert values.keys() == declared.keys() == set(re.findall(r"\$\[\[ inputs\.([\w-]+) \]\]", text))
    texts = {
        input_: value if isinstance(value, str) else json.dumps(value) for input_, value in values.items()
    }
    jobs = yaml.safe_load(re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda m: texts[m[1]], text))
    base = jobs[jobs[name]["extends"]]
    given = {**base["variables"], **jobs[name].get("variables", {}), **variables}
    return script(folder, "\n".join([*base["before_script"], *jobs[name]["script"]]), given)


@pytest.mark.programs
def test_the_gitlab_jobs_review_apply_and_find_drift(
    remote: Path, tmp_path: Path, gitlab: tuple[str, list[dict[str, Any]]]
) -> None:
    url, notes = gitlab
    common = shims(tmp_path)
    request = {"CI_API_V4_URL": url, "CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7", "GITLAB_TOKEN": "t"}
    merged = {**request, "CI_MERGE_REQUEST_IID": "", "CI_COMMIT_SHA": "0" * 40}
    folder = checkout(remote, "gitlab")
    for name, more, code in (
        ("mzplan-validate", request, 0),
        ("mzplan-plan", request, 0),
        ("mzplan-plan", {**request, "CI_JOB_URL": "https://git.example/o/r/-/jobs/5"}, 0),  # edits the note
        ("mzplan-plan", {}, 0),  # on the default branch there is no note
        ("mzplan-apply", {}, 5),  # without the note, nothing is approved
        ("mzplan-apply", merged, 0),
        ("mzplan-drift", {}, 0),
        ("mzplan-apply", merged, 5),  # the approved plan was applied before; the new note has no changes
    ):
        done = gitlab_job(name, folder, **common, **more)
        assert done.returncode == code, f"{name}: {done.stdout}{done.stderr}"
    assert [n["body"].split("\n")[0] for n in notes] == ["looks good", MARKED, MARKED, MARKED]
    picture = "https://git.example/o/r/-/jobs/5/artifacts/file/mzplan-out/plan.html"
    assert f"(<{picture}>)" in notes[2]["body"] and (folder / "mzplan-out" / "plan.html").exists()
    assert notes[1]["body"] == FORGED and "**No changes.**" in notes[3]["body"]
    (folder / "pipeline.yaml").write_text(
        (folder / "pipeline.yaml").read_text().replace("rows: 3", "rows: 3, where: id > 5")
    )
    assert "runner" not in (tmp_path / "pip.log").read_text()
    assert gitlab_job("mzplan-plan", folder, **common, **request, MZPLAN_PREVIEW="true").returncode == 0
    assert EMPTY_PREVIEW in notes[3]["body"] and "[runner,postgres]" in (tmp_path / "pip.log").read_text()
    stop_reporting(remote)
    assert gitlab_job("mzplan-drift", folder, **common).returncode == 3
    assert (folder / "mzplan-out" / "drift.md").exists()


@pytest.mark.programs
def test_the_drift_jobs_of_systemd_and_cron(remote: Path, tmp_path: Path) -> None:
    """The printed lines, with this machine's folders."""
    folder = plan_and_apply(remote, "served", tmp_path / "out")
    service = (CI / "mzplan-drift.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    (variable,) = re.findall(r"^Environment=(.*)$", service, re.MULTILINE)
    (line,) = re.findall(r"^#   17 \* \* \* \* (.*)$", (CI / "mzplan-drift.timer").read_text(), re.MULTILINE)

    def here(text: str) -> str:
        text = text.replace("/srv/mzplan/project", str(folder)).replace("/srv/mzplan/ci", str(CI))
        return text.replace("/var/lib/mzplan/drift", str(tmp_path / "drift"))

    scripts = (f"{here(variable)} exec {here(command)}", here(line))
    for lines in scripts:
        sh(tmp_path, "sh", "-c", lines)
    assert "**No drift.**" in (tmp_path / "drift" / "drift.md").read_text()
    stop_reporting(remote)
    for lines in scripts:
        sh(tmp_path, "sh", "-c", lines, code=3)
    if shutil.which("systemd-analyze"):
        for name in ("mzplan-drift.service", "mzplan-drift.timer"):
            (tmp_path / name).write_text(here((CI / name).read_text()).replace("User=mzplan\n", ""))
        sh(tmp_path, "systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("mzplan-drift.*")))
