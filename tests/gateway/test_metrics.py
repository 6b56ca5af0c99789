"""/metrics: the names that scrapers know, and values that are current."""

import asyncio
from pathlib import Path
from typing import Any

from fastserve.v1 import inference_pb2 as api
from fastserve.v1.admin_pb2 import LevelStatus
from services.domain.errors import AdmissionFullError
from services.domain.generation import EndReason
from tests.builders.generate_requests import ids_request
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import Pair, running_pair

LABELS = '{group="0",model_name="tiny"}'


def request(**sampling: Any) -> api.GenerateRequest:
    return ids_request([5] * 7, **{"max_tokens": 64, **sampling})


def value(metrics: dict[str, float], name: str, **labels: str) -> float:
    written = ",".join(
        f'{key}="{text}"' for key, text in sorted({"group": "0", "model_name": "tiny", **labels}.items())
    )
    return metrics[f"fastserve:{name}{{{written}}}"]


async def test_what_clients_see_is_counted_per_choice_and_prompts_per_request(pair: Pair) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(request(n=2)))
    jobs = [await scheduler.next_job() for _ in range(2)]
    for job in jobs:
        job.send(5)
        job.send(6)
    jobs[0].send(7, finish=EndReason.LENGTH)
    jobs[1].send(8, finish=EndReason.STOP)
    await collecting
    metrics = await gateway.metrics()
    assert value(metrics, "prompt_tokens_total") == 7
    assert value(metrics, "generation_tokens_total") == 6
    assert value(metrics, "request_success_total", finished_reason="length") == 1
    assert value(metrics, "request_success_total", finished_reason="stop") == 1
    assert value(metrics, "request_success_total", finished_reason="abort") == 0
    assert value(metrics, "time_to_first_token_seconds_count") == 2
    assert value(metrics, "inter_token_latency_seconds_count") == 4
    assert value(metrics, "request_time_per_output_token_seconds_count") == 2
    assert value(metrics, "e2e_request_latency_seconds_count") == 2
    assert value(metrics, "request_prompt_tokens_sum") == 7
    assert value(metrics, "request_generation_tokens_sum") == 6
    assert value(metrics, "request_queue_time_seconds_sum") == 0.5
    assert value(metrics, "request_prefill_time_seconds_sum") == 1.0
    assert value(metrics, "request_decode_time_seconds_sum") == 2.0
    assert value(metrics, "request_num_preemptions_sum") == 4


async def test_buckets_are_those_that_dashboards_expect(pair: Pair) -> None:
    metrics = await pair[0].metrics()
    expected = {
        "time_to_first_token_seconds": ("0.001", "0.25", "2560.0"),
        "inter_token_latency_seconds": ("0.01", "0.75", "80.0"),
        "e2e_request_latency_seconds": ("0.3", "960.0", "7680.0"),
        "request_queue_time_seconds": ("0.3", "960.0", "7680.0"),
        "request_num_preemptions": ("1.0", "4.0", "20.0"),
    }
    for name, bounds in expected.items():
        for bound in bounds:
            assert value(metrics, f"{name}_bucket", le=bound) == 0


async def test_requests_that_end_early_are_counted_as_what_they_are(pair: Pair) -> None:
    gateway, scheduler = pair
    refused = asyncio.create_task(gateway.refusal(request()))
    (await scheduler.next_job()).refuse(AdmissionFullError("full", 1.0))
    await refused
    stream = gateway.generate(request())
    job = await scheduler.next_job()
    stream.cancel()
    await job.cancel_reason()
    async with asyncio.timeout(SOON_S):
        while not value(metrics := await gateway.metrics(), "request_success_total", finished_reason="abort"):
            pass
    assert value(metrics, "request_success_total", finished_reason="abort") == 1
    assert value(metrics, "request_success_total", finished_reason="error") == 1


async def test_a_repeat_of_a_finished_request_does_not_count_as_new_work(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.script = lambda _: [5, 6, 7]
    first = request(n=2)
    first.request_id = "again"

    def counted(metrics: dict[str, float]) -> dict[str, float]:
        return {
            name: figure for name, figure in metrics.items() if name.startswith("fastserve:") and "_created" not in name
        }

    await gateway.collect(first)
    before = counted(await gateway.metrics())
    assert value(before, "generation_tokens_total") == 6
    again = await gateway.collect(first)
    assert sum(len(message.token_ids) for message in again) == 6
    assert counted(await gateway.metrics()) == before


def a_busy_group(scheduler: FakeSchedulerForGateway, group: int = 0) -> None:
    """One more group in the scheduler's status, and its counters."""
    status = scheduler.status
    status.groups.add(
        group=group, levels=[LevelStatus(running=3, waiting=4, swapped_out=2)],
        device_blocks_total=40, device_blocks_free=10, host_blocks_total=100, host_blocks_free=75,
    )  # fmt: skip
    status.counters.preemptions = 11
    status.admission_rejections = 5
    status.iteration_tokens.bounds[:] = [1, 8]
    status.iteration_tokens.counts[:] = [2, 3, 4]
    status.iteration_tokens.sum = 77


async def test_the_scheduler_s_figures_are_repeated_only_where_a_switch_says_so(pair: Pair) -> None:
    gateway, scheduler = pair
    a_busy_group(scheduler)
    repeated = ("num_requests_", "kv_cache", "kv_offload", "num_preemptions", "iteration_tokens")
    names = [name.removeprefix("fastserve:") for name in await gateway.metrics()]
    assert not [name for name in names if name.startswith(("vllm:", *repeated)) or "queue_full" in name]


async def test_old_metrics_are_read_from_the_scheduler_during_the_scrape(model: Path) -> None:
    async with running_pair(model, old_metrics=True) as (gateway, scheduler):
        a_busy_group(scheduler)
        metrics = await gateway.metrics()
        assert value(metrics, "num_requests_running") == 3
        assert value(metrics, "num_requests_waiting") == 6
        assert value(metrics, "num_requests_swapped") == 2
        assert value(metrics, "kv_cache_usage_perc") == 0.75
        assert value(metrics, "kv_offload_cpu_cache_usage_perc") == 0.25
        assert value(metrics, "num_preemptions_total") == 11
        assert value(metrics, "admission_rejections_total", reason="queue_full") == 5
        assert value(metrics, "iteration_tokens_bucket", le="8.0") == 5
        assert value(metrics, "iteration_tokens_bucket", le="+Inf") == 9
        assert value(metrics, "iteration_tokens_sum") == 77
        scheduler.status.groups[0].levels[0].running = 1
        assert value(await gateway.metrics(), "num_requests_running") == 1
        await scheduler.stop()
        metrics = await asyncio.wait_for(gateway.metrics(), SOON_S)
        assert f"fastserve:num_requests_running{LABELS}" not in metrics
        assert value(metrics, "generation_tokens_total") == 0


async def test_an_endpoint_picker_reads_all_groups_together_under_vllm_s_names(model: Path) -> None:
    async with running_pair(model, vllm_metrics=True) as (gateway, scheduler):
        a_busy_group(scheduler)
        a_busy_group(scheduler, group=1)
        scheduler.status.groups[1].device_blocks_free = 40
        metrics = await gateway.metrics()
        shown = {name: figure for name, figure in metrics.items() if name.startswith("vllm:")}
        assert shown == {
            'vllm:num_requests_running{model_name="tiny"}': 6,
            'vllm:num_requests_waiting{model_name="tiny"}': 12,
            'vllm:kv_cache_usage_perc{model_name="tiny"}': 0.375,
        }


async def test_refusals_by_a_full_gateway_are_counted(model: Path) -> None:
    async with running_pair(model, max_open_requests=1) as (gateway, scheduler):
        stream = gateway.generate(request())
        await scheduler.next_job()
        await gateway.refusal(request())
        assert value(await gateway.metrics(), "admission_rejections_total", reason="gateway_full") == 1
        stream.cancel()
