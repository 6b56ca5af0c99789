"""Values <-> wire for the public API: requests, the messages of a stream, and the served models.

Functions come in pairs, `x_to_wire` / `x_from_wire`; the gateway uses one of each pair, our own clients the other.
"""

import hashlib
from typing import Any

from fastserve.v1 import inference_pb2
from services.domain.errors import InvalidFieldError
from services.domain.generation import (
    GenerateRequest,
    OutputPiece,
    SamplingRequest,
    ServedModel,
    StreamMessage,
    StreamProgress,
    Usage,
)
from services.domain.guide import Guide
from services.wire.gateway_scheduler import FINISH_FROM_WIRE, FINISH_TO_WIRE
from services.wire.shared_fields import guide_from_wire, guide_to_wire, logprob_from_wire, logprob_to_wire

_OPTIONAL_SAMPLING_FIELDS = tuple(
    field.name
    for field in inference_pb2.SamplingParams.DESCRIPTOR.fields
    if field.has_presence and field.message_type is None
)


def request_from_wire(message: inference_pb2.GenerateRequest) -> GenerateRequest:
    """A request as the client sent it, unchecked; `token_ids` is the message's own list. Raises InvalidFieldError for a
    guide that says nothing.
    """
    prompt = message.WhichOneof("prompt")
    return GenerateRequest(
        model=message.model,
        request_id=message.request_id or None,
        text=message.text if prompt == "text" else None,
        token_ids=message.token_ids.ids if prompt == "token_ids" else None,
        sampling=sampling_from_client(message.sampling),
        resume_from_token=message.resume_from_token if message.HasField("resume_from_token") else None,
        client=message.client,
    )


def request_to_wire(request: GenerateRequest) -> inference_pb2.GenerateRequest:
    """The inverse of request_from_wire."""
    message = inference_pb2.GenerateRequest(
        model=request.model, request_id=request.request_id or "", client=request.client
    )
    if request.text is not None:
        message.text = request.text
    if request.token_ids is not None:
        message.token_ids.ids.extend(request.token_ids)
        message.token_ids.SetInParent()
    message.sampling.CopyFrom(sampling_to_client(request.sampling))
    if request.resume_from_token is not None:
        message.resume_from_token = request.resume_from_token
    return message


def sampling_from_client(message: inference_pb2.SamplingParams) -> SamplingRequest:
    """The SamplingParams of a request, with absent fields as None."""
    optional: dict[str, Any] = {
        name: getattr(message, name)
        for name in _OPTIONAL_SAMPLING_FIELDS
        if message.HasField(name)  # type: ignore[arg-type]
    }
    return SamplingRequest(
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=dict(message.logit_bias),
        guide=_guide_from_client(message),
        **optional,
    )


def _guide_from_client(message: inference_pb2.SamplingParams) -> Guide | None:
    guide = guide_from_wire(message.guide) if message.HasField("guide") else None
    if guide is None and message.HasField("guide"):
        raise InvalidFieldError(
            "sampling.guide", "must have one of json_schema, json_object: true, regex, grammar, choice"
        )
    return guide


def sampling_to_client(sampling: SamplingRequest) -> inference_pb2.SamplingParams:
    """The inverse of sampling_from_client."""
    return inference_pb2.SamplingParams(
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
        guide=None if sampling.guide is None else guide_to_wire(sampling.guide),
        **{name: getattr(sampling, name) for name in _OPTIONAL_SAMPLING_FIELDS},
    )


def body_digest(message: inference_pb2.GenerateRequest, served_model: str) -> bytes:
    """A digest of model, prompt and sampling, which must be equal in two requests with the same id."""
    body = inference_pb2.GenerateRequest()
    body.CopyFrom(message)
    body.model = served_model
    body.ClearField("request_id")
    body.ClearField("resume_from_token")
    body.ClearField("client")
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


def piece_to_wire(request_id: str, piece: OutputPiece, usage: Usage | None) -> inference_pb2.GenerateResponse:
    """One message of a stream."""
    choice, first_token_number, token_ids, text, logprobs, finish, prompt_logprobs = piece
    message = inference_pb2.GenerateResponse(
        request_id=request_id, index=choice, first_token_number=first_token_number, token_ids=token_ids, text=text
    )
    if logprobs:
        message.logprobs.extend(logprob_to_wire(one) for one in logprobs)
    if prompt_logprobs:
        message.prompt_logprobs.extend(logprob_to_wire(one) for one in prompt_logprobs)
    if finish is not None:
        message.finish_reason = FINISH_TO_WIRE[finish]
    if usage is not None:
        message.usage.prompt_tokens = usage.prompt_tokens
        message.usage.completion_tokens = usage.completion_tokens
        message.usage.total_tokens = usage.total_tokens
        message.usage.preemptions = usage.preemptions
    return message


def piece_from_wire(message: inference_pb2.GenerateResponse) -> StreamMessage:
    """The inverse of piece_to_wire."""
    piece = OutputPiece(
        message.index,
        message.first_token_number,
        tuple(message.token_ids),
        message.text,
        tuple(logprob_from_wire(one) for one in message.logprobs),
        FINISH_FROM_WIRE.get(message.finish_reason),
        tuple(logprob_from_wire(one) for one in message.prompt_logprobs),
    )
    return StreamMessage(message.request_id, piece, _usage_from_wire(message))


def progress_from_wire(message: inference_pb2.GenerateResponse) -> StreamProgress:
    """Like piece_from_wire, but only the parts that a load generator needs."""
    reason = message.finish_reason
    if not reason:
        return StreamProgress(len(message.token_ids), None, None)
    return StreamProgress(len(message.token_ids), FINISH_FROM_WIRE.get(reason), _usage_from_wire(message))


def _usage_from_wire(message: inference_pb2.GenerateResponse) -> Usage | None:
    if not message.HasField("usage"):
        return None
    return Usage(message.usage.prompt_tokens, message.usage.completion_tokens, message.usage.preemptions)


def model_to_wire(model: ServedModel) -> inference_pb2.ListModelsResponse:
    """The one served model."""
    response = inference_pb2.ListModelsResponse()
    response.models.add(
        id=model.model_id,
        created=model.created_s,
        owned_by="fastserve",
        max_model_len=model.max_model_len,
        vocabulary_size=model.vocabulary_size,
    )
    return response


def models_from_wire(message: inference_pb2.ListModelsResponse) -> tuple[ServedModel, ...]:
    """The served models."""
    return tuple(
        ServedModel(model.id, model.created, model.max_model_len, model.vocabulary_size) for model in message.models
    )
