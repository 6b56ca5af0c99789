"""Builds an engine from its settings: model, pools, measured cost model; and the facts that the worker announces."""

import contextlib
import hashlib
import json
import platform
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from services.domain.cost import CostProfile
from services.domain.errors import InvalidFieldError, ModelFolderError
from services.domain.ids import Epoch
from services.domain.worker_facts import WorkerFacts
from services.runtime.guide_compiler import GuideCompiler
from services.runtime.model_files import fingerprint
from services.runtime.profile_file import Profile, Source
from services.worker.engine.compute_environment import return_freed_memory, usable_cores
from services.worker.engine.engine import Engine
from services.worker.kernels.cpu.decoder_library import best_program
from services.worker.kernels.gpu.recorded_decoder import RecordedDecoder
from services.worker.kernels.kernel_choice import computes_by_triton, computes_natively, with_kernels
from services.worker.kv.pools import (
    BlockShape,
    KvPools,
    available_device_bytes,
    available_host_bytes,
    block_counts,
    make_pools,
)
from services.worker.model.batch import PagedKv
from services.worker.model.config_json import read_model_config
from services.worker.model.served_decoder import ServedDecoder
from services.worker.parallel.layout import GroupRank, Layout, check_layout, share_config, split_layers
from services.worker.parallel.share_weights import filled_rank
from services.worker.parallel.stage_pass import ALONE
from services.worker.profiling.cost_measurement import MeasuringLimits, measure_or_read
from services.worker.profiling.stage_costs import measured_stage_costs
from services.worker.sampling.guide_states import GuideStates
from services.worker.settings import EngineSettings

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MEASURED_BATCHES = {"cpu": 64, "cuda": 256}
"""Largest batch for which the cost model is measured, by device: where more tokens a second still come of more jobs."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's share of a model and its pools, and what a measurement of its speed needs. `first_layers` are those of
    the stages.
    """

    model: ServedDecoder
    pools: KvPools
    limits: MeasuringLimits
    source: Source
    first_layers: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        return self.pools.device.device

    def facts(self, cost: CostProfile) -> WorkerFacts:
        """What a worker of this rank alone announces; it has had no epoch so far."""
        return WorkerFacts(
            last_epoch=Epoch(0),
            group=0,
            model_fingerprint=str(self.source["model_fingerprint"]),
            block_size=self.pools.shape.block_size,
            device_blocks=self.pools.device_block_count,
            host_blocks=self.pools.host_block_count,
            max_model_len=self.model.max_model_len,
            block_bytes=self.pools.shape.block_bytes,
            profile=cost,
            device="cpu" if self.device.type == "cpu" else device_name(self.device),
        )


@dataclass(frozen=True, slots=True)
class Built:
    """An engine, the facts that its worker announces, and its measured profile: the cost model that is
    among the facts, with its check and the source of its numbers.
    """

    engine: Engine
    facts: WorkerFacts
    profile: Profile


def build(settings: EngineSettings, profile_folder: Path | None = None) -> Built:
    """Loads the model for a worker of one rank and gets its cost model: from `profile_folder` if an earlier worker has
    kept it there, else measured. Raises like `load_rank_of`.
    """
    loaded = load_rank_of(settings)
    model, pools = loaded.model, loaded.pools
    profile = measure_or_read(model, pools, loaded.limits, loaded.source, profile_folder)
    return Built(Engine(model, pools, guides=guides_of(settings.model)), loaded.facts(profile.cost), profile)


def guides_of(model: Path) -> GuideStates:
    """What makes the guides of jobs, for the rank that samples. With a tokenizer that llguidance can't read, guided
    jobs fail; the gateway refuses them before.
    """
    try:
        return GuideStates(GuideCompiler(model))
    except ModelFolderError as error:
        return GuideStates(None, str(error))


def stages_of(settings: EngineSettings, layout: Layout, local_rank: int, folder: Path) -> tuple[int, ...]:
    """The first layers of the stages: those that `folder` keeps from an earlier start like this one, else by what a
    layer and the ends of the model cost on this machine, which is then kept. The same at every start, so that ranks
    that live on fit a new leader.
    """
    config = read_model_config(settings.model)
    if layout.pp == 1:
        return (0,)
    device = _device(settings.device, local_rank)
    dtype_name = settings.dtype or default_dtype(config.dtype, device)
    threads = settings.threads or max(1, usable_cores() // settings.workers_here)
    dtype = _DTYPES[dtype_name]
    natively = computes_natively(settings.kernels, config, device, dtype, says_why=False)  # that the load does
    quantized = settings.weights == "int8"
    max_batch = _max_batch(settings, device)
    kind = [fingerprint(settings.model), str(layout), max_batch, device_name(device), dtype_name, threads]
    kind += [natively and best_program(), quantized]
    key = hashlib.sha256(json.dumps([*kind, torch.__version__]).encode()).hexdigest()[:24]
    file = folder / "stages" / f"{key}.json"
    if file.exists():
        with contextlib.suppress(OSError, ValueError):
            return tuple(int(first) for first in json.loads(file.read_text(encoding="utf-8")))
    torch.set_num_threads(threads)
    costs = measured_stage_costs(config, layout.tp, max_batch, device, dtype, natively=natively, quantized=quantized)
    first_layers = tuple(layers.start for layers in split_layers(costs, layout.pp))
    with contextlib.suppress(OSError):  # a folder that can't be written: measured again at the next start
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(first_layers), encoding="utf-8")
    return first_layers


def load_rank_of(
    settings: EngineSettings, rank: GroupRank = ALONE, local_rank: int = 0, first_layers: tuple[int, ...] = (0,)
) -> Loaded:
    """Loads a rank's share of the model and makes its pools. The ranks of a machine share its cores and its memory;
    `local_rank` numbers them. `first_layers` are those of the stages.

    Raises ModelFolderError, and InvalidFieldError for settings that do not fit the machine or the model.
    """
    device = _device(settings.device, local_rank)
    threads = settings.threads or max(1, usable_cores() // settings.workers_here)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    config = read_model_config(settings.model)
    check_layout(config, rank.layout)
    dtype_name = settings.dtype or default_dtype(config.dtype, device)
    dtype = _DTYPES[dtype_name]
    stage_layers = tuple(range(*ends) for ends in pairwise((*first_layers, config.layer_count)))
    share = share_config(config, rank, stage_layers)
    natively = computes_natively(settings.kernels, config, device, dtype)
    quantized = settings.weights == "int8"
    if quantized and not natively:
        raise InvalidFieldError("--weights", "int8 needs the compiled decoder of CPUs (--kernels)")
    filled = filled_rank(settings.model, config, rank, stage_layers, device, dtype, settings.max_model_len)
    by_triton = computes_by_triton(settings.kernels, device)
    is_whole = rank.layout.rank_count == 1
    model = with_kernels(filled, natively, quantized=quantized, by_triton=by_triton, is_whole=is_whole)
    return_freed_memory()

    shape = BlockShape(share.layer_count, settings.block_size, share.kv_head_count, share.head_dim, dtype)
    counts = block_counts(
        shape,
        device,
        settings.kv_device_tokens,
        settings.kv_host_tokens,
        available_device_bytes(device),
        available_host_bytes(),
        settings.workers_here,
        rank.layout.rank_count,
    )
    pools = make_pools(shape, *counts, device)
    max_batch = _max_batch(settings, device)
    if isinstance(model, RecordedDecoder):
        model.record(PagedKv(pools.device), max_batch)
    source: Source = {
        "model": settings.model.resolve().name,
        "model_fingerprint": fingerprint(settings.model),
        "device": device_name(device),
        "dtype": dtype_name,
        "threads": threads,
        "block_size": settings.block_size,
        "torch": torch.__version__,
        "kernels": "native" if natively else "triton" if by_triton else "torch",
        "weights": settings.weights or dtype_name,
    }
    if natively:
        source = {**source, "program": best_program()}
    if rank.layout.rank_count > 1:
        layers = " ".join(map(str, first_layers))
        source = {**source, "tp": rank.layout.tp, "pp": rank.layout.pp, "first_layers": layers}
    return Loaded(model, pools, MeasuringLimits(model.max_model_len, max_batch), source, first_layers)


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


def _max_batch(settings: EngineSettings, device: torch.device) -> int:
    return settings.max_batch or _MEASURED_BATCHES[device.type]


def _device(name: str, local_rank: int) -> torch.device:
    if name != "cuda":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise InvalidFieldError("--device", "cuda is not available on this machine")
    return torch.device("cuda", local_rank % torch.cuda.device_count())
