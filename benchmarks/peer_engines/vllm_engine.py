"""vLLM on a CPU: its engine, stepped in this process. Its server puts two more processes and HTTP before the same
engine, which on two cores costs the model a part of them.
"""

from collections.abc import Sequence

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.peer_engines.engine_settings import PeerSettings

BLOCK_TOKENS = 128
"""Its own choice for CPUs."""
MAX_BATCH_TOKENS = 2048


class VllmEngine:
    """The engine, stepped."""

    def __init__(self, settings: PeerSettings) -> None:
        arguments = EngineArgs(
            model=str(settings.model),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_num_seqs=settings.max_batch,
            max_num_batched_tokens=MAX_BATCH_TOKENS,
            num_gpu_blocks_override=settings.kv_tokens // BLOCK_TOKENS,
            kv_cache_memory_bytes=4 << 30,
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        """See PeerEngine."""
        kind = RequestOutputKind.DELTA if watched else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False, output_kind=kind
        )
        self._engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, params)

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        """See PeerEngine."""
        return [(int(one.request_id), one.outputs[0].token_ids) for one in self._engine.step()]


def engine(settings: PeerSettings) -> VllmEngine:
    """The engine of a model that is loaded and compiled."""
    return VllmEngine(settings)
