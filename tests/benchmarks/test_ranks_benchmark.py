"""The benchmark of groups of ranks: what keeps a group busy, and what is read off its timeline."""

import itertools

import pytest

from benchmarks.offline_engine import OfflineJob
from benchmarks.ranks import busy_share, run_figures
from benchmarks.saturated_lanes import SaturatedLanes
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Assign, ReleaseBlocks, SampledToken
from services.worker.step import OutputLedger
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.tiny_engine import BLOCK_SIZE, alone, new_engine, prompt_of, sampling

MAX_BATCH, PROMPT_TOKENS, OUTPUT_TOKENS = 2, 6, 4


def lanes_of(lane_count: int, block_count: int = 64, most_tokens: int = 9) -> SaturatedLanes:
    prompts = [prompt_of(number, PROMPT_TOKENS) for number in range(3)]
    jobs = (
        OfflineJob(JobId(f"{number}/0"), prompts[number % 3], sampling(max_tokens=OUTPUT_TOKENS))
        for number in itertools.count()
    )
    return SaturatedLanes(jobs, lane_count, MAX_BATCH, most_tokens, block_count, BLOCK_SIZE)


def test_lanes_run_on_an_engine_and_their_jobs_give_what_each_gives_alone() -> None:
    engine = new_engine()
    FakeKvCommands(engine)  # begins an epoch
    lanes, ledger, outputs = lanes_of(2), OutputLedger(), dict[JobId, list[int]]()
    under_way = [lanes.next_plan(lane, engine.epoch) for lane in range(2)]
    steps = [ledger.step_of(each.plan) for each in under_way]
    for _ in range(20):
        each, step = under_way.pop(0), steps.pop(0)
        for command in each.commands:
            engine.apply(command)
        tokens = engine.step(step).tokens
        ledger.take(each.plan.plan_number, tokens)
        lanes.take(each.lane, tokens)
        for token in tokens:
            outputs.setdefault(token.job_id, []).append(token.token_id)
        under_way.append(lanes.next_plan(each.lane, engine.epoch))
        steps.append(ledger.step_of(under_way[-1].plan))
    engine.check()
    engine.close()
    ended = [tokens for tokens in outputs.values() if len(tokens) == OUTPUT_TOKENS]
    expected = [alone(prompt_of(number, PROMPT_TOKENS), sampling(max_tokens=OUTPUT_TOKENS)) for number in range(3)]
    assert len(ended) > 6
    assert all(tokens in expected for tokens in ended)


def test_a_lane_computes_prompts_in_chunks_beside_its_decodes_and_takes_in_what_fits() -> None:
    lanes = lanes_of(1, most_tokens=PROMPT_TOKENS + 2)
    first = lanes.next_plan(0, Epoch(1))
    assert [(entry.from_token, entry.to_token) for entry in first.plan.entries] == [(0, PROMPT_TOKENS), (0, 2)]
    lanes.take(0, (SampledToken(first.plan.entries[0].job_id, 5, False),))
    second = lanes.next_plan(0, Epoch(1))
    assert [(entry.from_token, entry.to_token) for entry in second.plan.entries] == [
        (PROMPT_TOKENS, PROMPT_TOKENS + 1),
        (2, PROMPT_TOKENS),
    ]
    assert [type(command) for command in (*first.commands, *second.commands)] == [Assign, Assign]
    no_room = lanes_of(2, block_count=5)  # a job needs 3 blocks
    assert len(no_room.next_plan(0, Epoch(1)).plan.entries) == 1
    assert no_room.next_plan(1, Epoch(1)).plan.entries == ()


def test_an_ended_jobs_blocks_are_released_before_they_are_given_again() -> None:
    lanes = lanes_of(1, block_count=3)
    for _ in range(OUTPUT_TOKENS):
        (entry,) = lanes.next_plan(0, Epoch(1)).plan.entries
        lanes.take(0, (SampledToken(entry.job_id, 5, False),))
    commands = lanes.next_plan(0, Epoch(1)).commands
    assert [type(command) for command in commands] == [ReleaseBlocks, Assign]


def test_a_stage_is_busy_for_the_share_of_the_counted_time_in_which_it_computed() -> None:
    spans = [(1, 0.0, 2.0), (2, 3.0, 4.0), (3, 9.0, 12.0)]
    assert busy_share(spans, 1.0, 11.0) == pytest.approx((1 + 1 + 2) / 10)


def test_a_runs_figures_are_those_of_the_counted_time() -> None:
    leader = {
        "from_s": 10.0,
        "to_s": 20.0,
        "output_tokens": 500,
        "prompt_tokens": 800,
        "lanes": 3,
        "layers": 13,
        "sums": {"seconds": 0.3, "count": 150},
        "spans": [(1, 9.0, 12.0)],
    }
    figures = run_figures(leader, [leader, {**leader, "layers": 11, "spans": [(1, 12.0, 18.0)], "sums": None}])
    assert figures["output_tokens_per_s"] == 50.0
    assert figures["prompt_tokens_per_s"] == 80.0
    assert figures["busy_shares"] == [0.2, 0.6]
    assert figures["layers"] == [13, 11]
    assert figures["sum_shares"] == [0.1]
    assert figures["sum_ms"] == [2.0]
