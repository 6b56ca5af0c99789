"""What all tests share: one thread of torch a worker, and hypothesis without a clock, so that a busy machine fails
nothing.

The examples are the same in every run: a failure seen once is seen again. `HYPOTHESIS_PROFILE=search` draws new and
more ones.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was left out and why: a test that is skipped silently is a test that nobody misses."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"LEFT OUT, {count} tests: {reason.removeprefix('Skipped: ')}", yellow=True)
