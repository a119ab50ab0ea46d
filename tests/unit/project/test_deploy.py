"""docs/deploy.md and the Kubernetes example, without a cluster. tests/faults/test_cluster.py uses one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from mzplan import __version__
from mzplan.config.loader import load_project
from mzplan.host.spark_lines import NEWEST
from mzplan.secrets.policy import POLICY_VARIABLE, read_policy
from mzplan.spark.process.settings import _spark_defaults, configuration_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
KUBERNETES = ROOT / "examples" / "kubernetes"


MANIFESTS = list(yaml.safe_load_all((KUBERNETES / "manifests.yaml").read_text()))
BY_KIND = {one["kind"]: one for one in MANIFESTS}


def test_the_manifests_are_valid() -> None:
    for one in MANIFESTS:
        kubernetes_validate.validate(one, "1.37", strict=True)
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "mzplan"
    assert {"StatefulSet", "Service", "Role", "ConfigMap"} < set(BY_KIND)


def test_the_kubernetes_example_encrypts_and_limits_its_traffic() -> None:
    policy, service = BY_KIND["NetworkPolicy"]["spec"], BY_KIND["Service"]["spec"]
    assert policy["podSelector"] == {} and policy["policyTypes"] == ["Ingress"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == {port["port"] for port in service["ports"]} and all(r["from"] for r in policy["ingress"])
    spark = BY_KIND["ConfigMap"]["data"]["spark-defaults.conf"]
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert re.search(rf"^{re.escape(name)} +true$", spark, re.MULTILINE), name


def test_the_manifests_agree_with_each_other(tmp_path: Path, monkeypatch: Any) -> None:
    pods, service = BY_KIND["StatefulSet"]["spec"], BY_KIND["Service"]
    for name, text in BY_KIND["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
    project = load_project(str(tmp_path))
    (runner,) = pods["template"]["spec"]["containers"]
    instance = runner["args"][runner["args"].index("--instance") + 1]
    assert project.instances[instance].type == "cluster"
    served = int(runner["args"][runner["args"].index("--metrics-port") + 1])
    assert served in [p["containerPort"] for p in runner["ports"]]
    assert pods["serviceName"] == service["metadata"]["name"]
    assert pods["selector"]["matchLabels"] == service["spec"]["selector"]
    assert pods["template"]["metadata"]["labels"] == service["spec"]["selector"]

    mounted = {one["mountPath"]: one["subPath"] for one in runner["volumeMounts"]}
    variables = {one["name"]: one["value"] for one in runner["env"]}
    assert read_policy(str(tmp_path / mounted[variables[POLICY_VARIABLE]])).allowed

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    given = _spark_defaults()
    assert given["spark.kubernetes.driver.pod.name"] == f"{BY_KIND['StatefulSet']['metadata']['name']}-0"
    pod, namespace = given["spark.kubernetes.driver.pod.name"], given["spark.kubernetes.namespace"]
    assert given["spark.driver.host"] == f"{pod}.{pods['serviceName']}.{namespace}.svc"
    ports = {p["name"]: str(p["port"]) for p in service["spec"]["ports"]}
    assert given["spark.driver.port"] == ports["driver"]
    assert given["spark.blockManager.port"] == ports["blocks"]
    made = dict(configuration_of("mzplan", {}, given).getAll())
    assert made["spark.driver.host"] == given["spark.driver.host"]
    assert made["spark.master"].startswith("k8s://")


def test_examples_install_this_version_with_existing_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    folders = [ROOT / "examples" / name for name in ("ci", "kubernetes")]
    examples = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    pinned = set()
    for path in (*examples, ROOT / "action.yml", ROOT / "docs" / "deploy.md"):
        text = path.read_text()
        for extra, version in re.findall(r"mzplan\[([a-z-]+)\]==([0-9][0-9.]*[0-9])", text):
            assert extra in extras and version == __version__, (path, extra, version)
            pinned.add(path.name)
        for line in re.findall(r"pip install .*", text):
            bare = path.name == "deploy.md" and line == "pip install mzplan"
            assert bare or "$" in line or f"=={__version__}" in line, (path, line)
    assert pinned >= {"action.yml", "deploy.md"}


def test_the_image_is_built_of_the_wheel(tmp_path: Path) -> None:
    """Without docker: the copied files are in the context, and pip accepts the command with this wheel."""
    make = ["make", "--silent", "-o", "setup", "dist", f"DIST={tmp_path / 'dist'}"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (sdist,), (wheel,) = (list((tmp_path / "dist").glob(form)) for form in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as files:
        assert any(name.endswith("/mzplan/__init__.py") for name in files.getnames())
    lines = (KUBERNETES / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert copied == ["dist/mzplan-*.whl", "examples/kubernetes/entrypoint.sh"]
    assert (ROOT / copied[1]).is_file()
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in kept and "!dist/*.whl" in kept and f"!{copied[1]}" in kept
    (command,) = (line.removeprefix("RUN ") for line in lines if line.startswith("RUN pip"))
    # This machine's pip checks the command, and fetches nothing.
    shim = tmp_path / "pip"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@" --dry-run --no-deps --no-index\n')
    shim.chmod(0o755)
    run = command.replace("/opt/dist", str(wheel.parent)).replace("--no-cache-dir", "")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command_line = ["sh", "-c", run]
    done = subprocess.run(command_line, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "docker build -t IMAGE -f examples/kubernetes/Dockerfile ." in PAGE


def test_every_runner_on_the_page_has_a_policy(tmp_path: Path) -> None:
    lines = re.findall(r"^.* run --instance .*$", PAGE, re.MULTILINE)
    assert len(lines) == 3 and all("--policy" in line for line in lines)
    for page in ("deploy.md", "security.md"):
        (found,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        (tmp_path / "policy.toml").write_text(textwrap.dedent(found))
        assert read_policy(str(tmp_path / "policy.toml")).allowed


def test_the_commands_on_the_page_match_the_tested_ones() -> None:
    submits = re.findall(r"--packages (\S+)", PAGE)
    assert submits == [",".join(NEWEST.packages)] * 2
    entrypoint = (KUBERNETES / "entrypoint.sh").read_text()
    assert "KubernetesExecutorBackend" in entrypoint and 'exec mzplan "$@"' in entrypoint
