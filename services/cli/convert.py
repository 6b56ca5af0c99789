"""Between the public protos and the values of the client commands."""

from fastserve.v1 import admin_pb2, inference_pb2
from services.cli.completion import CompletionRequest, LogprobFigures, Piece, Progress, UsageFigures
from services.cli.snapshot import Counters, GroupSnapshot, LevelSnapshot, ServedModel, Snapshot

_FINISH_REASONS: dict[int, str | None] = {
    inference_pb2.FINISH_REASON_UNSPECIFIED: None,
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
    inference_pb2.FINISH_REASON_ABORT: "abort",
}


def request_to_wire(request: CompletionRequest) -> inference_pb2.GenerateRequest:
    """Raises ValueError or TypeError for a value that its field can't carry."""
    sampling = inference_pb2.SamplingParams(**request.sampling)  # type: ignore[arg-type]
    wire = inference_pb2.GenerateRequest(model=request.model, request_id=request.request_id, sampling=sampling)
    if isinstance(request.prompt, str):
        wire.text = request.prompt
    else:
        wire.token_ids.ids.extend(request.prompt)
    return wire


def _usage_from_wire(message: inference_pb2.GenerateResponse) -> UsageFigures | None:
    if not message.HasField("usage"):
        return None
    usage = message.usage
    return UsageFigures(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.preemptions)


def piece_from_wire(message: inference_pb2.GenerateResponse) -> Piece:
    """One message of a stream, whole."""
    return Piece(
        request_id=message.request_id,
        choice=message.index,
        first_token_number=message.first_token_number,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=tuple(
            LogprobFigures(token.token_id, token.logprob, tuple((top.token_id, top.logprob) for top in token.top))
            for token in message.logprobs
        ),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        usage=_usage_from_wire(message),
    )


def progress_from_wire(message: inference_pb2.GenerateResponse) -> Progress:
    """One message of a stream, as little of it as a load generator needs."""
    reason = message.finish_reason
    if not reason:
        return Progress(len(message.token_ids), None, None)
    return Progress(len(message.token_ids), _FINISH_REASONS.get(reason), _usage_from_wire(message))


def snapshot_from_wire(message: admin_pb2.Status) -> Snapshot:
    """The server's status."""
    return Snapshot(
        model=message.model,
        policy=message.policy,
        kv_policy=message.kv_policy,
        groups=tuple(_group_from_wire(group) for group in message.groups),
        counters=Counters(**{name: getattr(message.counters, name) for name in Counters.__slots__}),
        uptime_s=message.uptime_s,
        max_queued_jobs=message.max_queued_jobs,
        admission_rejections=message.admission_rejections,
    )


def _group_from_wire(message: admin_pb2.GroupStatus) -> GroupSnapshot:
    levels = tuple(
        LevelSnapshot(level.level, level.quantum_s, level.running, level.waiting, level.swapped_out)
        for level in message.levels
    )
    return GroupSnapshot(
        group=message.group,
        ready=message.ready,
        levels=levels,
        running=message.running,
        waiting=message.waiting,
        swapped_out=message.swapped_out,
        device_blocks_total=message.device_blocks_total,
        device_blocks_free=message.device_blocks_free,
        host_blocks_total=message.host_blocks_total,
        host_blocks_free=message.host_blocks_free,
        block_size=message.block_size,
        device=message.device,
        worker_joins=message.worker_joins,
    )


def models_from_wire(message: inference_pb2.ListModelsResponse) -> tuple[ServedModel, ...]:
    """The served models."""
    return tuple(ServedModel(model.id, model.max_model_len, model.vocabulary_size) for model in message.models)
