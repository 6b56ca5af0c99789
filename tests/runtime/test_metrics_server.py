"""/metrics of a service."""

import socket
import urllib.request

import pytest
from prometheus_client import Counter

from services.domain.errors import AddressInUseError
from services.runtime.metrics_server import MetricsServer, new_registry
from tests.runtime.ipv6 import has_ipv6


def test_metrics_are_served_on_a_free_port_with_the_figures_of_the_process() -> None:
    registry = new_registry()
    Counter("fastserve:prompt_tokens", "Prompt tokens.", ["model_name"], registry=registry).labels("m").inc(3)
    server = MetricsServer("127.0.0.1", 0, registry)
    try:
        assert server.address == f"127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as response:
            text = response.read().decode()
    finally:
        server.stop()
    assert 'fastserve:prompt_tokens_total{model_name="m"} 3.0' in text
    assert "process_resident_memory_bytes" in text


def test_a_metrics_port_in_use_is_a_typed_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        with pytest.raises(AddressInUseError, match="can't serve metrics on 127"):
            MetricsServer("127.0.0.1", taken.getsockname()[1], new_registry())


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_metrics_are_served_on_ipv6_where_the_machine_has_it(host: str) -> None:
    if not has_ipv6():
        with pytest.raises(AddressInUseError, match=r"can't serve metrics on \[::1\]:0: "):
            MetricsServer(host, 0, new_registry())
        return
    server = MetricsServer(host, 0, new_registry())
    try:
        assert server.address == f"[::1]:{server.port}"
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=60) as response:
            assert "process_resident_memory_bytes" in response.read().decode()
    finally:
        server.stop()


def test_a_stopped_server_frees_its_port() -> None:
    first = MetricsServer("127.0.0.1", 0, new_registry())
    first.stop()
    second = MetricsServer("127.0.0.1", first.port, new_registry())
    assert second.port == first.port
    second.stop()
