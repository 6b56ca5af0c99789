"""transformers' continuous batching: its manager, which works in a thread of this process."""

import os
import queue
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peer_engines.engine_settings import PeerSettings

PAGE_TOKENS = 32
MAX_BATCH_TOKENS = 2048
NO_TOKEN = -1


class FailedRequestError(Exception):
    """The manager gave a request up."""


class TransformersEngine:
    """The manager's queue of results, read."""

    def __init__(self, settings: PeerSettings) -> None:
        torch.set_num_threads(settings.threads)
        model = AutoModelForCausalLM.from_pretrained(
            str(settings.model), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        batching = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=settings.kv_tokens // PAGE_TOKENS,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_requests_per_batch=settings.max_batch,
            allow_block_sharing=False,
        )
        make_config: Any = GenerationConfig  # its constructor has no types
        greedy = make_config(do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0)
        self._manager = model.init_continuous_batching(greedy, batching)
        self._manager.start()
        self._told: dict[str, int] = {}

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        """See PeerEngine."""
        name = str(number)
        self._told[name] = 0
        self._manager.add_request(
            list(prompt), name, max_new_tokens=output_tokens, streaming=watched, eos_token_id=NO_TOKEN
        )

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        """See PeerEngine. Raises FailedRequestError."""
        results = self._manager.output_router.output_queue
        try:
            one = results.get(timeout=limit_s) if limit_s > 0 else results.get_nowait()
        except queue.Empty:
            return []
        if one.error is not None:
            raise FailedRequestError(one.error)
        new = one.generated_tokens[self._told[one.request_id] :]
        self._told[one.request_id] += len(new)
        return [(int(one.request_id), new)]


def engine(settings: PeerSettings) -> TransformersEngine:
    """The engine of a model that is loaded."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    return TransformersEngine(settings)
