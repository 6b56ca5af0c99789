"""Groups of real processes give the tokens of the unsplit model, whatever is done to their jobs."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from models.make_random import PRESETS, RandomModel, write_random_model
from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId
from services.domain.iteration import WorkerResult
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs
from services.worker.engine.engine import Engine
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.model.loader import filled_model
from services.worker.parallel.layout import Layout
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans
from tests.worker.parallel.rank_processes import LIMIT_S, GroupOfProcesses, group_of
from tests.worker.random_swaps import chunked_mixed_and_recomputed, swap_at_random
from tests.worker.tiny_engine import new_engine, prompt_of, sampling

LLAMA = replace(PRESETS["tiny"], layers=3)
ONE_KV_HEAD = replace(LLAMA, kv_heads=1, tied=True, vocabulary=513)  # whose logits are cut unevenly too
OPT = replace(LLAMA, family="opt", kv_heads=4, tied=True)
LIKE_OPT_350M = replace(OPT, embedding=32, norm_after=True)
JOBS = 6

Output = tuple[list[int], list[float], PromptLogprobs]
"""A job's tokens, and their log probabilities and those of its prompt, whose bits are those of its logits."""


class RecordedPlans(FakeSchedulerPlans):
    """Keeps the log probabilities too."""

    def __init__(self, engine: Engine | GroupOfProcesses, epoch: int = 1) -> None:
        super().__init__(FakeKvCommands(cast(Engine, engine), epoch))
        self.logprobs: dict[JobId, list[float]] = {}

    def take(self, result: WorkerResult) -> None:
        super().take(result)
        for job_id, logprob in result.logprobs.items():
            self.logprobs.setdefault(job_id, []).append(logprob.logprob)

    def output(self, job_id: JobId) -> Output:
        assert self.scores[job_id].are_complete
        return self.outputs[job_id], self.logprobs[job_id], self.scores[job_id].known


def varied(number: int) -> JobSampling:
    """Greedy, plainly sampled, and sampled with penalties, in turn."""
    kinds: list[dict[str, object]] = [{}, {"temperature": 1.0}, {"temperature": 0.9, "repetition_penalty": 1.3}]
    fields = {"logprobs": 0, "prompt_logprobs": number, **kinds[number % len(kinds)]}
    return sampling(max_tokens=8 + number, seed=number, **fields)  # type: ignore[arg-type]


def each_alone(engine: Engine | GroupOfProcesses, epoch: int) -> list[Output]:
    """What each job gives when it has the engine to itself."""
    runner, found = RecordedPlans(engine, epoch), []
    for number in range(JOBS):
        job_id = runner.add(f"{number}/0", prompt_of(number, 6 + number), varied(number))
        runner.finish(job_id)
        runner.kv.release(job_id)
        found.append(runner.output(job_id))
    return found


def all_swapped(engine: Engine | GroupOfProcesses, epoch: int) -> list[Output]:
    """What the same jobs give in mixed batches, in chunks, recomputed, and swapped out all the time."""
    runner = RecordedPlans(engine, epoch)
    jobs = [runner.add(f"{number}/0", prompt_of(number, 6 + number), varied(number)) for number in range(JOBS)]
    chunked_mixed_and_recomputed(runner, jobs)
    assert swap_at_random(runner, jobs, random.Random(7)) > 20
    return [runner.output(job_id) for job_id in jobs]


def folder_of(model: RandomModel, parent: Path) -> Path:
    write_random_model(model, parent / "model")
    return parent / "model"


def unsplit(folder: Path, *, natively: bool = False, dtype: torch.dtype = torch.float32) -> list[Output]:
    model = with_kernels(filled_model(folder, "cpu", dtype), natively)
    engine = new_engine(device_blocks=24, host_blocks=48, model=model)
    try:
        return each_alone(engine, 1)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(LLAMA, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llama_outputs(llama_folder: Path) -> list[Output]:
    return unsplit(llama_folder)


KERNELS = pytest.mark.parametrize("natively", [False, True], ids=["torch", "native"])


def tokens_of(outputs: list[Output]) -> list[list[int]]:
    return [tokens for tokens, _, _ in outputs]


@pytest.mark.parametrize(
    ("pp", "natively", "dtype"),
    [(2, False, torch.float32), (3, False, torch.float32), (2, True, torch.bfloat16), (3, True, torch.float32)],
)
def test_stages_change_no_bit(pp: int, natively: bool, dtype: torch.dtype, llama_folder: Path) -> None:
    with group_of(llama_folder, Layout(pp=pp), natively=natively, dtype=dtype) as group:
        assert all_swapped(group, 1) == unsplit(llama_folder, natively=natively, dtype=dtype)


@KERNELS
@pytest.mark.parametrize(("tp", "in_memory"), [(2, True), (4, False)])
def test_shares_of_layers_give_the_tokens_of_the_whole_and_the_same_bits_in_every_batch(
    tp: int, in_memory: bool, natively: bool, llama_folder: Path, llama_outputs: list[Output]
) -> None:
    with group_of(llama_folder, Layout(tp=tp), natively=natively) as group:
        group.sums_in_memory = in_memory
        alone = each_alone(group, 1)
        assert tokens_of(alone) == tokens_of(llama_outputs)
        assert all_swapped(group, 2) == alone


@KERNELS
@pytest.mark.parametrize(
    "model", [LLAMA, ONE_KV_HEAD, OPT, LIKE_OPT_350M], ids=["llama", "one kv head", "opt", "opt as the 350m model"]
)
def test_shares_of_layers_in_stages_give_the_tokens_of_the_whole(
    model: RandomModel, natively: bool, tmp_path: Path
) -> None:
    folder = folder_of(model, tmp_path)
    with group_of(folder, Layout(tp=2, pp=2), natively=natively) as group:
        assert tokens_of(all_swapped(group, 1)) == tokens_of(unsplit(folder))


@pytest.fixture(scope="module")
def two_stages(llama_folder: Path) -> Iterator[GroupOfProcesses]:
    with group_of(llama_folder, Layout(pp=2), device_blocks=64) as group:
        yield group


def test_a_stage_begins_the_next_batch_while_the_one_behind_it_computes(
    two_stages: GroupOfProcesses, llama_outputs: list[Output]
) -> None:
    """Two batches take turns; each plan is begun before the other batch's is back."""
    group = two_stages
    runner = RecordedPlans(group, int(group.epoch) + 1)
    jobs = [runner.add(f"{number}/0", prompt_of(number, 6 + number), varied(number)) for number in range(JOBS)]
    batches = [jobs[:3], jobs[3:]]
    most_under_way = 0
    for turn in range(40):
        batch = [job_id for job_id in batches[turn % 2] if job_id not in runner.ended]
        group.start(runner.plan(*(runner.entry(job_id) for job_id in batch)))
        most_under_way = max(most_under_way, len(group.under_way))
        if len(group.under_way) == 2:
            runner.take(group.finish())
    runner.take(group.finish())
    assert most_under_way == 2
    assert [runner.outputs[job_id] for job_id in jobs] == tokens_of(llama_outputs)


@pytest.mark.parametrize(
    ("layout", "in_memory", "natively"),
    [
        (Layout(pp=2), True, False),
        (Layout(tp=2), True, False),
        (Layout(tp=2), False, False),
        (Layout(tp=2), True, True),
    ],
)
def test_a_rank_that_does_not_come_ends_the_others_wait_and_the_next_epoch_is_as_good_as_new(
    layout: Layout, in_memory: bool, natively: bool, llama_folder: Path, llama_outputs: list[Output]
) -> None:
    with group_of(llama_folder, layout, natively=natively) as group:
        group.sums_in_memory = in_memory
        runner = RecordedPlans(group)
        job_id = runner.add("0/0", prompt_of(0, 6), varied(0))
        runner.run(runner.entry(job_id))
        group.wait_limit_s = 0.5  # in which a busy machine might not let both ranks come
        alone = RecordedPlans(group, 2)
        alone.add("0/0", prompt_of(0, 6), varied(0))
        group.start(alone.plan(alone.entry(job_id)), to=[1])
        with pytest.raises(RuntimeError, match=r"[Tt]imed out|did not come to a sum"):
            group.ranks[1].answer()
        group.wait_limit_s = LIMIT_S
        again = RecordedPlans(group, 3)
        again.add("0/0", prompt_of(0, 6), varied(0))
        again.finish(job_id)
        assert again.outputs[job_id] == llama_outputs[0][0]


def test_what_was_on_its_way_when_an_epoch_ended_is_not_met_in_the_next(
    two_stages: GroupOfProcesses, llama_outputs: list[Output]
) -> None:
    group = two_stages
    runner = RecordedPlans(group, int(group.epoch) + 1)
    job_id = runner.add("1/0", prompt_of(1, 7), varied(1))
    group.start(runner.plan(runner.entry(job_id)), to=[0])
    group.ranks[0].answer()
    again = RecordedPlans(group, int(group.epoch) + 1)
    again.add("1/0", prompt_of(1, 7), varied(1))
    again.finish(job_id)
    assert again.outputs[job_id] == llama_outputs[1][0]


def test_one_rank_of_several_gives_up_no_prefill(two_stages: GroupOfProcesses) -> None:
    runner = RecordedPlans(two_stages, int(two_stages.epoch) + 1)
    job_id = runner.add("0/0", prompt_of(0, 6), varied(0))
    with pytest.raises(ProtocolError, match="one rank of several can't give up a prefill"):
        runner.run(runner.entry(job_id, cut_after_s=1.0))


def test_the_cost_model_is_measured_through_all_ranks_and_kept_for_the_next_group_of_its_kind(
    tmp_path: Path, llama_folder: Path, llama_outputs: list[Output]
) -> None:
    with group_of(llama_folder, Layout(tp=2, pp=2)) as group:
        profile = group.measure(Epoch(1), tmp_path)
        assert [point.tokens for point in profile.cost.prefill] == [16, 32]
        assert [(point.batch, point.context_tokens) for point in profile.cost.decode] == [(1, 32), (2, 32)]
        assert profile.source["tp"] == profile.source["pp"] == profile.stages == profile.tensor_parallel == 2
        assert profile.pipeline is not None
        assert sum(profile.pipeline.prefill_shares) == pytest.approx(1.0)
        assert 0.0 < profile.pipeline.hand_over_s < LIMIT_S
        # Each rank has one of the two kv heads in its stage's layers, two of three or one.
        assert profile.kv_bytes_per_token == 2 * LLAMA.layers * LLAMA.kv_heads * LLAMA.head_dim * 4
        assert group.measure(Epoch(2), tmp_path) == profile
        runner = RecordedPlans(group, 3)
        job_id = runner.add("0/0", prompt_of(0, 6), varied(0))
        runner.finish(job_id)
        assert runner.outputs[job_id] == llama_outputs[0][0]
