"""Open streams of a real gateway while the leader changes: they go on with the next one, and only with that."""

from pathlib import Path

import pytest

from services.domain.ids import JobId
from services.runtime.model_files import fingerprint
from tests.builders.generate_requests import dog_request
from tests.builders.waits import until
from tests.gateway.running_gateway import running_gateway
from tests.gateway.test_resubmissions import ReadStream
from tests.gateway.tiny_model import CONTEXT_TOKENS, write_byte_level_folder
from tests.gateway.tiny_model import VOCABULARY_SIZE as TINY_VOCABULARY_SIZE
from tests.scheduler import fake_worker_for_scheduler, served_setup
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler, tokens_of
from tests.scheduler.leadership.leader_service import leader_service
from tests.scheduler.running_scheduler import RunningScheduler, running_scheduler

TOKENS = 12
NAMES = ("a", "b", "c")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What all serve; the worker makes up tokens that it has."""
    monkeypatch.setattr(fake_worker_for_scheduler, "VOCABULARY_SIZE", TINY_VOCABULARY_SIZE)
    folder = write_byte_level_folder(tmp_path / "tiny")
    monkeypatch.setattr(served_setup, "FINGERPRINT", fingerprint(folder))
    return folder


async def worker_of(scheduler: RunningScheduler, model: Path, epoch: int) -> FakeWorkerForScheduler:
    worker = FakeWorkerForScheduler(
        scheduler.channel, epoch=epoch, model_fingerprint=fingerprint(model), max_model_len=CONTEXT_TOKENS
    )
    await worker.join()
    return worker


async def make(worker: FakeWorkerForScheduler, tokens: int) -> None:
    """Each entry of a plan makes a token."""
    while tokens > 0:
        tokens -= len((await worker.step()).entries)


def made(scheduler: RunningScheduler, names: tuple[str, ...]) -> list[int]:
    """Tokens of these jobs that the scheduler knows; of those that it has."""
    stored = [scheduler.driver.jobs.get(JobId(f"{name}/0")) for name in names]
    return [len(one.output) for one in stored if one is not None]


@pytest.mark.parametrize("hands_over", [True, False], ids=["hands-over", "is-cut-off"])
async def test_open_streams_go_on_with_the_next_leader_and_one_that_wakes_gets_none_of_them(
    hands_over: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_scheduler() as first,
        running_scheduler() as second,
        leader_service(first.address) as service,
    ):
        first.driver.term, second.driver.term = 1, None
        worker = await worker_of(first, model, 1)
        async with running_gateway(model, service.address) as gateway:
            requests = [dog_request(request_id=name, max_tokens=TOKENS, ignore_eos=True) for name in NAMES]
            streams = [ReadStream(gateway, request) for request in requests]
            await make(worker, 8)
            await until(lambda: sum(len(stream.token_ids) for stream in streams) >= 8)

            # The next one leads, and has a worker that comes from the first.
            if hands_over:
                first.driver.hand_over()
            second.driver.term = 2
            service.lead(second.address)
            next_worker = await worker_of(second, model, 2)
            await until(lambda: len(made(second, NAMES)) == len(NAMES))
            assert sum(made(second, NAMES)) >= 8
            await make(next_worker, TOKENS * len(NAMES) - sum(made(second, NAMES)))
            for name, stream in zip(NAMES, streams, strict=True):
                await stream.ended()
                assert stream.token_ids == tokens_of(f"{name}/0", TOKENS)

            # The first wakes, and for a while the Service leads to it.
            late = ReadStream(gateway, dog_request(request_id="late", max_tokens=TOKENS, ignore_eos=True))
            await make(next_worker, 3)
            await late.until_tokens(3)
            dialled: list[str] = []
            check_gateway = first.driver.check_gateway

            def dial(mark: str) -> None:
                dialled.append(mark)
                check_gateway(mark)

            monkeypatch.setattr(first.driver, "check_gateway", dial)
            service.lead(first.address)
            # The second time it has refused what it met the first time.
            await until(lambda: len(dialled) >= 2)
            assert await gateway.health("readiness") == "NOT_SERVING"
            assert made(first, ("late",)) == []
            service.lead(second.address)
            await gateway.until_health("readiness", "SERVING")
            await make(next_worker, TOKENS - 3)
            await late.ended()
            assert late.token_ids == tokens_of("late/0", TOKENS)
