"""Several worker groups in one KV manager, over real gRPC: what ends one of them leaves the others alone."""

from contextlib import ExitStack
from pathlib import Path

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from services.cli.simulate.replay_command import replay_file
from services.domain.errors import ProtocolError
from services.domain.protocol import Assign
from services.domain.server_status import PoolUsage
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.recording.recording_settings import RecordingSettings
from tests.builders.waits import until
from tests.kvmanager.fake_scheduler_for_kv_manager import FakeSchedulerForKvManager
from tests.kvmanager.fake_worker_for_kv_manager import FakeWorkerForKvManager
from tests.kvmanager.machine.checked_kv_manager import resident
from tests.kvmanager.running_kv_manager import RunningKvManager, knobs, running_kv_manager


async def opened(served: RunningKvManager) -> tuple[FakeSchedulerForKvManager, list[FakeWorkerForKvManager]]:
    """Groups 0 and 3, in epochs 5 and 2, with a job on the device each."""
    scheduler = served.scheduler()
    workers: list[FakeWorkerForKvManager] = []
    for group, epoch, name in ((0, 5, "a"), (3, 2, "b")):
        scheduler.group = group
        await scheduler.jobs(epoch, name)
        workers.append(await served.worker(epoch, group=group))
        assert isinstance(await workers[-1].obey(), Assign)
        assert await scheduler.hear() == resident(name, 2)
    return scheduler, workers


async def test_each_group_has_blocks_and_epochs_of_its_own() -> None:
    async with running_kv_manager() as served:
        scheduler, _ = await opened(served)
        await until(lambda: [pools for _, pools in served.driver.pool_usages()] == 2 * [PoolUsage(4, 2, 8, 8)])
        assert [group for group, _ in served.driver.pool_usages()] == [0, 3]
        scheduler.group = 0
        await scheduler.run(5, 0, "a", 0, 2)


async def test_a_worker_that_breaks_the_protocol_ends_its_group_alone() -> None:
    async with running_kv_manager() as served:
        scheduler, (zero, three) = await opened(served)
        await three.acknowledge(99)
        assert await three.end() is grpc.StatusCode.INTERNAL
        await still_served(scheduler, zero)
        scheduler.group = 3
        await scheduler.jobs(3, "c")
        assert isinstance(await (await served.worker(3, group=3)).obey(), Assign)
        assert await scheduler.hear() == resident("c", 2)


async def test_what_ends_a_group_leaves_the_recording_of_the_other_whole(tmp_path: Path) -> None:
    settings = RecordingSettings.model_validate({"record": tmp_path})
    with ExitStack() as recordings:

        def recorder_of(group: int) -> Recorder | None:
            return recordings.enter_context(recording(settings, KV_MANAGER_FORMAT, knobs(), strict=True, group=group))

        async with running_kv_manager(recorder_of=recorder_of) as served:
            scheduler, (zero, three) = await opened(served)
            await three.acknowledge(99)
            assert await three.end() is grpc.StatusCode.INTERNAL
            await still_served(scheduler, zero)
    _, of_zero = replay_file(tmp_path / "kvmanager-001.jsonl.gz")
    _, of_three = replay_file(tmp_path / "kvmanager-group-3-001.jsonl.gz")
    assert (of_zero.difference, of_zero.last_fault) == (None, None)
    assert of_three.difference is None
    assert isinstance(of_three.last_fault, ProtocolError)
    assert of_zero.turns > of_three.turns


async def test_a_scheduler_that_breaks_the_protocol_of_a_group_ends_that_group_alone() -> None:
    async with running_kv_manager() as served:
        scheduler, (zero, three) = await opened(served)
        scheduler.group = 3
        await scheduler.run(2, 0, "nobody", 0, 1)
        assert await three.end() is grpc.StatusCode.INTERNAL
        await still_served(scheduler, zero)


async def test_a_message_that_can_not_be_read_ends_its_group_alone() -> None:
    async with running_kv_manager() as served:
        scheduler, (zero, three) = await opened(served)
        await scheduler.write(wire.SchedulerLinkRequest(epoch=2, group=3, messages=[wire.SchedulerToKv()]))
        assert await three.end() is grpc.StatusCode.INTERNAL
        await still_served(scheduler, zero)


async def test_a_worker_that_is_lost_or_superseded_concerns_its_group_alone() -> None:
    async with running_kv_manager() as served:
        scheduler, (zero, three) = await opened(served)
        newer = await served.worker(9, group=3)
        assert await three.end() is grpc.StatusCode.ABORTED
        newer.hang_up()
        await until(lambda: dict(served.driver.pool_usages())[3] is None)
        await still_served(scheduler, zero)


async def test_a_message_about_a_group_that_can_not_be_ends_the_stream() -> None:
    async with running_kv_manager() as served:
        scheduler, _ = await opened(served)
        await scheduler.write(wire.SchedulerLinkRequest(epoch=2, group=1024))
        assert await scheduler.end() is grpc.StatusCode.INTERNAL


async def still_served(scheduler: FakeSchedulerForKvManager, zero: FakeWorkerForKvManager) -> None:
    """Group 0 goes on in its epoch, over the same streams."""
    scheduler.group = 0
    await scheduler.arrive(5, "d", 7.0)
    assert isinstance(await zero.obey(), Assign)
    assert await scheduler.hear() == resident("d", 2)
