"""A real Prometheus on loopback, with the settings of examples/monitoring but for whom it scrapes, when."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from examples.servers.ports import free_port
from tests.support import eventually

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())


def dashboard_expressions() -> list[str]:
    """The PromQL of all panels, with everything chosen of each variable."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [re.sub(r"\$\w+", ".*", expression) for expression in found]


def metrics_used() -> set[str]:
    """The names of mzplan's metrics in the dashboard (variables too) and the alert rules."""
    texts = [(MONITORING / name).read_text() for name in ("dashboard.json", "rules.yml")]
    return set(re.findall(r"\bmzplan_\w+", " ".join(texts))) - {"mzplan_instance"}  # which is a label


def samples(port: int) -> list[Sample]:
    """What a runner's page of metrics has, at this moment. Raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [one for family in families for one in family.samples]


class Prometheus:
    """One that runs and scrapes each second."""

    def __init__(self, port: int):
        self._at = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """What its HTTP API answers, without the envelope. Raises OSError."""
        url = f"{self._at}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, str]]:
        """The labels of each series of the result."""
        return [one["metric"] for one in self.ask("query", query=expression)["result"]]

    def has_scraped(self, names: Collection[str]) -> None:
        """Wait until there are such metrics, all at once."""

        def missing() -> set[str]:
            try:
                return set(names) - {one["__name__"] for one in self.query('{__name__=~"mzplan_.+"}')}
            except OSError:
                return {"Prometheus"}  # it starts

        try:
            eventually("all metrics are scraped", lambda: not missing())
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {sorted(missing())} are missing") from None


@contextmanager
def scraping(folder: Path, *ports: int) -> Iterator[Prometheus]:
    """Scrape runners of this machine; all files in this folder."""
    folder.mkdir(parents=True)
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(MONITORING / name) for name in settings["rule_files"]]
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *arguments], stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(timeout=60)
