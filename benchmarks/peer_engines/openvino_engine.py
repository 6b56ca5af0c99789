"""OpenVINO GenAI: its pipeline with continuous batching, in this process, which is what its model server runs.

The model is exported by Optimum with 16-bit weights. Computation and KV cache are set to bfloat16, or to float32 on a
processor without products of bfloat16, where it takes nothing less for both; the cache would be 8-bit otherwise.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import openvino
import openvino_genai

from benchmarks.peer_engines.engine_settings import PeerSettings

BLOCK_TOKENS = 32
"""Fixed by its CPU plugin."""
MAX_BATCH_TOKENS = 2048
DONE = "exported"


class OpenVinoEngine:
    """The pipeline, stepped."""

    def __init__(self, settings: PeerSettings) -> None:
        _export(settings)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = settings.kv_tokens // BLOCK_TOKENS
        scheduler.max_num_batched_tokens = MAX_BATCH_TOKENS
        scheduler.max_num_seqs = settings.max_batch
        scheduler.enable_prefix_caching = False
        has_bfloat16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precision = "bf16" if has_bfloat16 else "f32"
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": settings.threads,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(settings.made), scheduler, "CPU", properties)
        self._handles: dict[int, Any] = {}
        self._missing: dict[int, int] = {}

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        """See PeerEngine."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        self._handles[number] = self._pipeline.add_request(number, ids, config)
        self._missing[number] = output_tokens

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        """See PeerEngine."""
        self._pipeline.step()
        made: list[tuple[int, Sequence[int]]] = []
        for number, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    made.append((number, output.generated_ids))
                    self._missing[number] -= len(output.generated_ids)
            if self._missing[number] <= 0:
                del self._handles[number], self._missing[number]
        return made


def _export(settings: PeerSettings) -> None:
    if (settings.made / DONE).exists():
        return
    from optimum.exporters.openvino import main_export

    main_export(
        str(settings.model), str(settings.made), task="text-generation-with-past", convert_tokenizer=True, stateful=True
    )
    (settings.made / DONE).touch()


def engine(settings: PeerSettings) -> OpenVinoEngine:
    """The engine of a model that is loaded."""
    return OpenVinoEngine(settings)
