"""docs/deploy.md and the Kubernetes example, without a cluster. tests/faults/test_cluster.py uses one."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from mzplan.config.loader import load_project
from mzplan.secrets.policy import POLICY_VARIABLE, read_policy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deploy.md").read_text()
KUBERNETES = ROOT / "examples" / "kubernetes"


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / "manifests.yaml").read_text()))


def test_the_kubernetes_example_encrypts_and_limits_its_traffic() -> None:
    by_kind = {one["kind"]: one for one in manifests()}
    policy, service = by_kind["NetworkPolicy"]["spec"], by_kind["Service"]["spec"]
    assert policy["podSelector"] == {} and policy["policyTypes"] == ["Ingress"]
    opened = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert opened == {port["port"] for port in service["ports"]} and all(r["from"] for r in policy["ingress"])
    spark = by_kind["ConfigMap"]["data"]["spark-defaults.conf"]
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert re.search(rf"^{re.escape(name)} +true$", spark, re.MULTILINE), name


def test_the_manifests_are_valid_and_agree_with_each_other(tmp_path: Path) -> None:
    for one in manifests():
        kubernetes_validate.validate(one, "1.37", strict=True)
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "mzplan"
    by_kind = {one["kind"]: one for one in manifests()}
    pods, service = by_kind["StatefulSet"]["spec"], by_kind["Service"]
    for name, text in by_kind["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
    (runner,) = pods["template"]["spec"]["containers"]
    instance = runner["args"][runner["args"].index("--instance") + 1]
    assert load_project(str(tmp_path)).instances[instance].type == "cluster"
    assert pods["serviceName"] == service["metadata"]["name"]
    assert pods["template"]["metadata"]["labels"] == service["spec"]["selector"]
    mounted = {one["mountPath"]: one["subPath"] for one in runner["volumeMounts"]}
    variables = {one["name"]: one["value"] for one in runner["env"]}
    assert read_policy(str(tmp_path / mounted[variables[POLICY_VARIABLE]])).allowed


def test_every_runner_on_the_page_has_a_policy(tmp_path: Path) -> None:
    lines = re.findall(r"^.* run --instance .*$", PAGE, re.MULTILINE)
    assert len(lines) == 3 and all("--policy" in line for line in lines)
    for page in ("deploy.md", "security.md"):
        (found,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        (tmp_path / "policy.toml").write_text(textwrap.dedent(found))
        assert read_policy(str(tmp_path / "policy.toml")).allowed
