"""What all tests share: one thread of torch a worker, hypothesis without a clock, so that a busy machine fails nothing,
and which tests come first, and which get a second chance.

The examples are the same in every run: a failure seen once is seen again. `HYPOTHESIS_PROFILE=search` draws new and
more ones.
"""

import gc
import inspect
import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


FIRST = (
    "tests/e2e/test_token_parity.py",
    "tests/e2e/test_opt.py",
    "tests/e2e/test_group.py",
    "tests/e2e/test_lives.py",
    "tests/e2e/",
    "tests/worker/test_worker_process.py",
    "tests/benchmarks/",
    "tests/protocol/",
    "tests/worker/",
    "tests/scheduler/",
    "tests/cli/",
    "tests/evaluation/",
    "tests/rest/",
    "tests/runtime/",
    "tests/test_house_rules.py",
    "tests/deploy/",
    "tests/simulator/",
    "tests/experiments/",
    "tests/gateway/",
)
"""Files that take long, those that take longest first: the last files of a run are short, so that no process is left to
end it alone.
"""


WITH_TRANSFORMERS = (
    "tests/e2e/test_opt.py",
    "tests/models/",
    "tests/worker/engine/test_opt.py",
    "tests/worker/engine/test_prompt_scoring.py",
    "tests/worker/kernels/",
    "tests/worker/model/",
)
"""Most of these compare with models of transformers, whose import takes seconds: one process runs them all."""


OF_PROCESSES = ("tests/e2e/", "tests/rest/", "tests/cli/", "tests/benchmarks/", "tests/worker/test_worker_process.py")
"""These start processes, or talk to some; other files' tests do if they are coroutines. On a machine that stands still
for seconds one in thousands can fail for that alone, so each is run once more. At most MOST_RERUNS in all: more than
that is not the machine. The summary tells of each, because a test that needs two runs is to be mended. What is pure
has one run.
"""

MOST_RERUNS = 3

COLLECT_THRESHOLDS = (20_000, 20, 50)
"""Of Python's collector. With its own it runs all the time where explorer and simulator make objects that stay."""

gc.disable()  # until all that the tests import is there


class ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A file, or several of WITH_TRANSFORMERS, for the next process that has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        return "with transformers" if nodeid.startswith(WITH_TRANSFORMERS) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    """How xdist hands out the tests."""
    return ByWhatIsShared(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of FIRST, then all others; each file's own in their order."""

    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)
    for item in items:
        if item.nodeid.startswith(OF_PROCESSES) or inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """What is loaded now stays until the end, so the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_THRESHOLDS)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Bounds the second runs of a whole run."""
    if config.option.max_suite_reruns is None:
        config.option.max_suite_reruns = MOST_RERUNS


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A service's `main` sends the process's records to the stderr of its test, which is closed when others log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was left out and why, and what failed at first: what is silent is missed by nobody."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"LEFT OUT, {count} tests: {reason.removeprefix('Skipped: ')}", yellow=True)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"RUN TWICE, to be mended: {report.nodeid}", yellow=True)
        terminalreporter.write_line(report.longreprtext)
