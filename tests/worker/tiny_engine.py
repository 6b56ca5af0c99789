"""A tiny random model and an engine around it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from services.domain.job_sampling import JobSampling
from services.runtime.guide_compiler import GuideCompiler
from services.worker.engine.engine import Engine
from services.worker.kernels.kernel_choice import with_kernels
from services.worker.kv.copier import Copier
from services.worker.kv.pools import BlockShape, KvPools, make_pools
from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import filled_model, load_model
from services.worker.model.served_decoder import ServedDecoder
from services.worker.sampling.guide_states import CompilesGuides, GuideStates
from tests.builders.model_folders import tiny_model_folder
from tests.worker.fake_kv_commands import FakeKvCommands
from tests.worker.fake_scheduler_plans import FakeSchedulerPlans

BLOCK_SIZE = 4


@cache
def tiny_model() -> DecoderModel:
    """Float32, 2 layers, vocabulary 512. Loaded once a process: nothing changes it."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        return load_model(tiny_model_folder(Path(folder)), "cpu", torch.float32)


def tiny_pools(device_blocks: int = 64, host_blocks: int = 64, model: ServedDecoder | None = None) -> KvPools:
    config = (model or tiny_model()).config
    dtype = torch.float32 if model is None else model.dtype
    shape = BlockShape(config.layer_count, BLOCK_SIZE, config.kv_head_count, config.head_dim, dtype)
    return make_pools(shape, device_blocks, host_blocks, torch.device("cpu"))


def sampling(max_tokens: int = 16, seed: int = 0, temperature: float = 0.0, **fields: object) -> JobSampling:
    return JobSampling(max_tokens=max_tokens, seed=seed, temperature=temperature, **fields)  # type: ignore[arg-type]


def prompt_of(number: int, tokens: int) -> tuple[int, ...]:
    return tuple((number * 97 + position * 31) % 509 for position in range(tokens))


@cache
def native_tiny_model() -> ServedDecoder:
    """The same, compiled."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        return with_kernels(filled_model(tiny_model_folder(Path(folder)), "cpu", torch.float32), natively=True)


@cache
def tiny_compiler() -> GuideCompiler:
    """For guides of the tiny model."""
    with TemporaryDirectory() as folder:
        return GuideCompiler(tiny_model_folder(Path(folder)))


def new_engine(
    device_blocks: int = 64,
    host_blocks: int = 64,
    copier: Copier | None = None,
    model: ServedDecoder | None = None,
    compiler: CompilesGuides | None = None,
) -> Engine:
    """An engine of `model`, by default the tiny one."""
    pools = tiny_pools(device_blocks, host_blocks, model)
    return Engine(model or tiny_model(), pools, copier, guides=GuideStates(compiler or tiny_compiler()))


def alone(prompt: Sequence[int], how: JobSampling) -> list[int]:
    """What a job gives when it runs by itself, computed with torch."""
    engine = new_engine()
    try:
        runner = FakeSchedulerPlans(FakeKvCommands(engine))
        job_id = runner.add("alone", prompt, how)
        runner.finish(job_id)
        return runner.outputs[job_id]
    finally:
        engine.close()
