"""A real Prometheus for a few minutes: it scrapes every second what a targets file names, and evaluates our rules with
shorter times, because nobody wants to wait for five minutes of trouble.
"""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.grafana.prometheus_tools import tool

RULES = Path(__file__).with_name("rules.yml")
SHORT_WINDOW = "10s"
SHORT_FOR = "2s"
START_LIMIT_S = 60.0
ASK_LIMIT_S = 30.0

_CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: fastserve
    file_sd_configs: [{{files: ["{targets}"], refresh_interval: 1s}}]
"""


def shortened(rules: str) -> str:
    """The rules with windows and waits as short as a run of minutes needs. Nothing else is changed."""
    return re.sub(r"for: \d+m\b", f"for: {SHORT_FOR}", re.sub(r"\[\d+m\]", f"[{SHORT_WINDOW}]", rules))


class RunningPrometheus:
    """Its HTTP API."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **parameters: str | float) -> Any:
        """The `data` of an answer of the API. Raises OSError where there is none."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=ASK_LIMIT_S) as answer:
            return json.load(answer)["data"]

    def series(self, expr: str, from_s: float, to_s: float, step_s: float = 1.0) -> list[dict[str, Any]]:
        """The series of a query over a stretch of time: `metric` has the labels, `values` pairs of time and text."""
        found: list[dict[str, Any]] = self.ask("query_range", query=expr, start=from_s, end=to_s, step=step_s)["result"]
        return found

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def alerts(self) -> set[str]:
        """The names of all alerts."""
        groups = self.ask("rules", type="alert")["groups"]
        return {rule["name"] for group in groups for rule in group["rules"]}


@contextmanager
def running_prometheus(folder: Path, targets: Path, address: str) -> Iterator[RunningPrometheus]:
    """A Prometheus at this address, ready to answer; ended at the end. Raises ToolMissingError, TimeoutError."""
    (folder / "rules.yml").write_text(shortened(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(targets=targets), encoding="utf-8")
    argv = [tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*argv, f"--web.listen-address={address}"], stdout=log, stderr=log, cwd=folder)
    running = RunningPrometheus(address)
    try:
        _until_ready(running, process, folder / "prometheus.log")
        yield running
    finally:
        process.terminate()
        process.wait()


def _until_ready(running: RunningPrometheus, process: "subprocess.Popen[bytes]", log: Path) -> None:
    limit_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit_s and process.poll() is None:
        try:
            running.ask("query", query="1")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"prometheus did not come up:\n{log.read_text(errors='replace')[-2000:]}")
