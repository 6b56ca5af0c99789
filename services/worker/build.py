"""Builds an engine from its settings: model, pools, measured cost model; and the facts that the worker announces."""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from services.domain.errors import InvalidFieldError
from services.domain.ids import Epoch
from services.domain.worker_facts import WorkerFacts
from services.runtime.model_files import fingerprint
from services.runtime.profile_file import Profile, Source
from services.worker.engine.compute_environment import usable_cores
from services.worker.engine.engine import Engine
from services.worker.kernels.kernel_choice import computes_natively, with_kernels
from services.worker.kv.pools import BlockShape, available_device_bytes, available_host_bytes, block_counts, make_pools
from services.worker.model.config_json import read_model_config
from services.worker.model.loader import filled_model
from services.worker.profiling.cost_measurement import MeasuringLimits, measure_or_read
from services.worker.settings import EngineSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Built:
    """An engine, the facts that its worker announces (epoch still 0), and its measured profile: the cost model that is
    among the facts, with its check and the source of its numbers.
    """

    engine: Engine
    facts: WorkerFacts
    profile: Profile


def build(settings: EngineSettings, profile_folder: Path | None = None) -> Built:
    """Loads the model and gets its cost model: from `profile_folder` if an earlier worker has kept it there, else
    measured.

    Raises ModelFolderError, and InvalidFieldError for settings that do not fit the machine or the model.
    """
    device = _device(settings.device)
    threads = settings.threads or max(1, usable_cores() // settings.workers_here)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    config = read_model_config(settings.model)
    dtype_name = settings.dtype or default_dtype(config.dtype, device)
    model_fingerprint = fingerprint(settings.model)
    natively = computes_natively(settings.kernels, config, device, _DTYPES[dtype_name])
    model = with_kernels(filled_model(settings.model, device, _DTYPES[dtype_name], settings.max_model_len), natively)

    shape = BlockShape(
        config.layer_count, settings.block_size, config.kv_head_count, config.head_dim, _DTYPES[dtype_name]
    )
    counts = block_counts(
        shape,
        device,
        settings.kv_device_tokens,
        settings.kv_host_tokens,
        available_device_bytes(device),
        available_host_bytes(),
        settings.workers_here,
    )
    pools = make_pools(shape, *counts, device)
    limits = MeasuringLimits(model.max_model_len, settings.max_batch)
    source: Source = {
        "model": settings.model.resolve().name,
        "model_fingerprint": model_fingerprint,
        "device": device_name(device),
        "dtype": dtype_name,
        "threads": threads,
        "block_size": settings.block_size,
        "torch": torch.__version__,
        "kernels": "native" if natively else "torch",
    }
    profile = measure_or_read(model, pools, limits, source, profile_folder)
    facts = WorkerFacts(
        epoch=Epoch(0),
        group=0,
        model_fingerprint=model_fingerprint,
        block_size=settings.block_size,
        device_blocks=pools.device_block_count,
        host_blocks=pools.host_block_count,
        max_model_len=model.max_model_len,
        block_bytes=shape.block_bytes,
        profile=profile.cost,
        device="cpu" if device.type == "cpu" else device_name(device),
    )
    return Built(Engine(model, pools), facts, profile)


def default_dtype(checkpoint_dtype: str | None, device: torch.device) -> str:
    """float16 for a float16 checkpoint on CUDA, else bfloat16: it halves the memory to read, and has fast products."""
    if device.type == "cuda" and checkpoint_dtype == "float16":
        return "float16"
    return "bfloat16"


def device_name(device: torch.device) -> str:
    """The processor's or the GPU's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidFieldError("--device", "cuda is not available on this machine")
    return torch.device(name)
