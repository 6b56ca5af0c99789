"""Requests to generate."""

from collections.abc import Iterable
from typing import Any

from fastserve.v1 import inference_pb2 as api


def text_request(text: str, **sampling: Any) -> api.GenerateRequest:
    """A prompt of text and fields of SamplingParams."""
    return api.GenerateRequest(text=text, sampling=api.SamplingParams(**sampling))


def ids_request(ids: Iterable[int], **sampling: Any) -> api.GenerateRequest:
    """A prompt of token ids and fields of SamplingParams."""
    return api.GenerateRequest(token_ids=api.TokenIds(ids=ids), sampling=api.SamplingParams(**sampling))


def dog_request(
    text: str = "the dog", *, request_id: str = "", resume: int | None = None, **sampling: Any
) -> api.GenerateRequest:
    """A short prompt of words that the gateway's tiny tokenizer knows; 64 tokens at most unless a test says more."""
    made = text_request(text, **{"max_tokens": 64, **sampling})
    made.request_id = request_id
    if resume is not None:
        made.resume_from_token = resume
    return made
