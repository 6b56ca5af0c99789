"""Values <-> wire for what the gateway says to clients, and its hello to the scheduler. What both ends of the stream to
the scheduler use is in services.runtime.gateway_link.
"""

import hashlib
from typing import Any

from fastserve.v1 import admin_pb2, inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from services.gateway.policy.output import Piece, Usage
from services.gateway.policy.request import Request, SamplingRequest
from services.gateway.policy.status import GroupLoad, IterationTokens, SchedulerLoad
from services.runtime.gateway_link.convert import FINISH_TO_WIRE
from services.runtime.scheduler_link.convert import logprob_to_wire

_OPTIONAL_SAMPLING_FIELDS = tuple(
    field.name for field in inference_pb2.SamplingParams.DESCRIPTOR.fields if field.has_presence
)


# --- clients ---------------------------------------------------------------------------------------------------------


def request_from_wire(message: inference_pb2.GenerateRequest) -> Request:
    """A request as the client put it. Nothing is checked; `token_ids` is the message's own list."""
    prompt = message.WhichOneof("prompt")
    return Request(
        model=message.model,
        request_id=message.request_id or None,
        text=message.text if prompt == "text" else None,
        token_ids=message.token_ids.ids if prompt == "token_ids" else None,
        sampling=sampling_from_client(message.sampling),
        resume_from_token=message.resume_from_token if message.HasField("resume_from_token") else None,
    )


def request_to_wire(request: Request) -> inference_pb2.GenerateRequest:
    """The inverse of request_from_wire."""
    message = inference_pb2.GenerateRequest(model=request.model, request_id=request.request_id or "")
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
    """SamplingParams, absent fields as None."""
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
        **optional,
    )


def sampling_to_client(sampling: SamplingRequest) -> inference_pb2.SamplingParams:
    """The inverse of sampling_from_client."""
    return inference_pb2.SamplingParams(
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
        **{name: getattr(sampling, name) for name in _OPTIONAL_SAMPLING_FIELDS},
    )


def body_digest(message: inference_pb2.GenerateRequest, served_model: str) -> bytes:
    """Stands for model, prompt and sampling: what must be equal for two requests with one id to be the same."""
    body = inference_pb2.GenerateRequest()
    body.CopyFrom(message)
    body.model = served_model
    body.ClearField("request_id")
    body.ClearField("resume_from_token")
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()


def piece_to_wire(request_id: str, piece: Piece, usage: Usage | None) -> inference_pb2.GenerateResponse:
    """One message of a stream."""
    choice, first_token_number, token_ids, text, logprobs, finish = piece
    message = inference_pb2.GenerateResponse(
        request_id=request_id, index=choice, first_token_number=first_token_number, token_ids=token_ids, text=text
    )
    if logprobs:
        message.logprobs.extend(logprob_to_wire(one) for one in logprobs)
    if finish is not None:
        message.finish_reason = FINISH_TO_WIRE[finish]
    if usage is not None:
        message.usage.prompt_tokens = usage.prompt_tokens
        message.usage.completion_tokens = usage.completion_tokens
        message.usage.total_tokens = usage.prompt_tokens + usage.completion_tokens
        message.usage.preemptions = usage.preemptions
    return message


def model_to_wire(
    name: str, created_s: int, max_model_len: int, vocabulary_size: int
) -> inference_pb2.ListModelsResponse:
    """The one served model."""
    response = inference_pb2.ListModelsResponse()
    response.models.add(
        id=name, created=created_s, owned_by="fastserve", max_model_len=max_model_len, vocabulary_size=vocabulary_size
    )
    return response


# --- the scheduler ---------------------------------------------------------------------------------------------------


def hello_to_wire(gateway_id: str, model_fingerprint: str) -> wire.GatewayLinkRequest:
    """First on the stream."""
    return wire.GatewayLinkRequest(hello=wire.GatewayHello(gateway_id=gateway_id, model_fingerprint=model_fingerprint))


def load_from_wire(status: admin_pb2.Status) -> SchedulerLoad:
    """What the metrics show of the scheduler's state."""
    tokens = status.iteration_tokens
    return SchedulerLoad(
        groups=tuple(
            GroupLoad(
                group=group.group,
                running=group.running,
                waiting=group.waiting,
                swapped_out=group.swapped_out,
                device_blocks_total=group.device_blocks_total,
                device_blocks_free=group.device_blocks_free,
                host_blocks_total=group.host_blocks_total,
                host_blocks_free=group.host_blocks_free,
            )
            for group in status.groups
        ),
        preemptions=status.counters.preemptions,
        admission_rejections=status.admission_rejections,
        iteration_tokens=IterationTokens(tuple(tokens.bounds), tuple(tokens.counts), tokens.sum),
    )
