"""Scrapes all services of a cluster, as Prometheus does."""

import json
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import Cluster

PREFIX = "fastserve:"
SCRAPE_LIMIT_S = 60.0


class ScrapedSample(NamedTuple):
    """`family` is the name without a suffix such as _bucket or _total."""

    service: str
    family: str
    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """What all services said at a time."""

    def __init__(self, samples: list[ScrapedSample]) -> None:
        self.samples = samples

    def sum(self, name: str, **labels: str) -> float:
        """The sum over everything that was scraped, as PromQL's sum. Fails if there is no such sample."""
        found = [
            one.value for one in self.samples if one.name == PREFIX + name and labels.items() <= one.labels.items()
        ]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)


def scrape(cluster: Cluster) -> Scrape:
    """Asks every service of the cluster once."""
    samples = []
    for service, process in cluster.processes.items():
        address = json.loads(process.ready_file.read_text())["metrics"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_LIMIT_S) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        samples += [
            ScrapedSample(service, family.name, sample.name, sample.labels, sample.value)
            for family in families
            if not family.name.startswith(("process_", "python_")) and not family.name.endswith("_created")
            for sample in family.samples
        ]
    return Scrape(samples)
