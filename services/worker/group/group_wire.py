"""Values <-> frames of the connection between a group's leader and another rank (group.proto): a frame is a message
preceded by its length.

Functions come in pairs: `x_frame` makes a whole frame, `x_of` reads the message of one. The readers raise ProtocolError
for what is no message, or one of an unexpected kind.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from google.protobuf.message import DecodeError, Message

from fastserve.v1 import group_pb2 as wire
from services.domain.errors import PeerMismatchError, ProtocolError
from services.domain.ids import Epoch, JobId
from services.domain.iteration import WorkerResult
from services.domain.protocol import Done, IterationResult
from services.wire.kvmanager_worker import (
    acknowledgements_from_wire,
    acknowledgements_to_wire,
    commands_from_wire,
    commands_to_wire,
)
from services.wire.scheduler_worker import (
    plan_from_wire,
    plan_to_wire,
    result_from_wire,
    result_to_wire,
    scored_from_wire,
    scored_to_wire,
)
from services.wire.shared_fields import guide_from_wire, guide_to_wire
from services.worker.group.messages import (
    Begin,
    Copied,
    Failed,
    FromRank,
    Prepared,
    PrepareGuide,
    Ran,
    RankFacts,
    RankIdentity,
    Ready,
    Relayed,
    Run,
    Scored,
    ToRank,
)
from services.worker.step import Step, StepOutcome

LENGTH_BYTES = 4
MOST_FRAME_BYTES = 16 * 1024 * 1024
"""As for messages by gRPC (runtime/channel.py)."""
MOST_REASON_CHARACTERS = 1000


def length_of(head: bytes) -> int:
    """The length of the message that follows the first LENGTH_BYTES of a frame. Raises ProtocolError if it is too
    long.
    """
    length = int.from_bytes(head, "big")
    if length > MOST_FRAME_BYTES:
        raise ProtocolError(f"the peer announces a message of {length} bytes, more than {MOST_FRAME_BYTES}")
    return length


def _frame(message: Message) -> bytes:
    data = message.SerializeToString()
    if len(data) > MOST_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes is longer than {MOST_FRAME_BYTES}")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def _to_rank(data: bytes) -> wire.LeaderToRank:
    try:
        return wire.LeaderToRank.FromString(data)
    except DecodeError:
        raise ProtocolError("the leader sent what is no message") from None


def _from_rank(data: bytes) -> wire.RankToLeader:
    try:
        return wire.RankToLeader.FromString(data)
    except DecodeError:
        raise ProtocolError("a rank sent what is no message") from None


PING_FRAME = _frame(wire.LeaderToRank(ping=wire.Ping()))
PONG_FRAME = _frame(wire.RankToLeader(pong=wire.Ping()))


def _identity_values(identity: RankIdentity | wire.RankIdentity) -> dict[str, Any]:
    """What says who a rank is: value and message name it alike."""
    return {one.name: getattr(identity, one.name) for one in fields(RankIdentity)}


def hello_frame(facts: RankFacts) -> bytes:
    """The first message of a rank."""
    return _frame(
        wire.RankToLeader(
            hello=wire.RankHello(
                identity=wire.RankIdentity(**_identity_values(facts)),
                max_model_len=facts.max_model_len,
                first_layers=facts.first_layers,
                device_blocks=facts.device_blocks,
                host_blocks=facts.host_blocks,
                block_bytes=facts.block_bytes,
                kernels=facts.kernels,
                weights=facts.weights,
            )
        )
    )


def hello_of(data: bytes) -> RankFacts:
    """The inverse of hello_frame."""
    message = _from_rank(data)
    if not message.HasField("hello"):
        raise ProtocolError("the first message of a rank must be its hello")
    hello = message.hello
    return RankFacts(
        **_identity_values(hello.identity),
        max_model_len=hello.max_model_len,
        first_layers=tuple(hello.first_layers),
        device_blocks=hello.device_blocks,
        host_blocks=hello.host_blocks,
        block_bytes=hello.block_bytes,
        kernels=hello.kernels,
        weights=hello.weights,
    )


def question_frame(identity: RankIdentity) -> bytes:
    """A rank asks for the stages' layers."""
    return _frame(wire.RankToLeader(ask_layers=wire.RankIdentity(**_identity_values(identity))))


def question_of(data: bytes) -> RankIdentity | None:
    """The inverse of question_frame; None if a rank's first message is no question."""
    message = _from_rank(data)
    if not message.HasField("ask_layers"):
        return None
    return RankIdentity(**_identity_values(message.ask_layers))


def layers_frame(first_layers: Sequence[int]) -> bytes:
    """The first layers of the stages."""
    return _frame(wire.LeaderToRank(layers=wire.StageLayers(first_layers=first_layers)))


def layers_of(data: bytes) -> tuple[int, ...]:
    """The inverse of layers_frame. Raises PeerMismatchError if the answer is a refusal."""
    answer = _to_rank(data)
    _raise_refusal(answer)
    if not answer.HasField("layers"):
        raise ProtocolError("the leader does not answer which layers the stages have")
    return tuple(answer.layers.first_layers)


def welcome_frame(silence_limit_s: float) -> bytes:
    """The rank is taken."""
    return _frame(wire.LeaderToRank(welcome=wire.RankWelcome(silence_limit_s=silence_limit_s)))


def refusal_frame(field: str, reason: str) -> bytes:
    """The rank does not fit."""
    return _frame(wire.LeaderToRank(refusal=wire.RankRefusal(field=field, reason=reason)))


def welcome_of(data: bytes) -> float:
    """The silence limit of the leader's first message. Raises PeerMismatchError if it is a refusal."""
    answer = _to_rank(data)
    _raise_refusal(answer)
    if not answer.HasField("welcome"):
        raise ProtocolError("the leader's first message is neither a welcome nor a refusal")
    return answer.welcome.silence_limit_s


def _raise_refusal(answer: wire.LeaderToRank) -> None:
    if answer.HasField("refusal"):
        raise PeerMismatchError(answer.refusal.field, answer.refusal.reason)


def to_rank_frame(message: ToRank) -> bytes:
    """A message of the leader."""
    return _frame(_to_rank_message(message))


def _to_rank_message(message: ToRank) -> wire.LeaderToRank:
    match message:
        case Begin(epoch, store_port, wait_limit_s, measures):
            begin = wire.BeginEpoch(epoch=epoch, store_port=store_port, wait_limit_s=wait_limit_s, measures=measures)
            return wire.LeaderToRank(begin=begin)
        case Relayed(epoch, command):
            return wire.LeaderToRank(commands=commands_to_wire(epoch, (command,)))
        case Run(epoch, step):
            run = wire.RunPlan(passed_over_job_ids=sorted(step.passed_over_job_ids))
            run.plan.CopyFrom(plan_to_wire(epoch, step.plan.plan_number, step.plan.entries))
            for job_id, token_id in step.input_token_ids.items():
                run.input_tokens.add(job_id=job_id, token_id=token_id)
            return wire.LeaderToRank(run=run)
        case PrepareGuide(epoch, job_id, guide, output):
            prepare = wire.PrepareGuide(epoch=epoch, job_id=job_id, output_token_ids=output)
            prepare.guide.CopyFrom(guide_to_wire(guide))
            return wire.LeaderToRank(prepare=prepare)


def to_rank_of(data: bytes) -> ToRank | None:
    """The inverse of to_rank_frame; None for a ping."""
    message = _to_rank(data)
    match message.WhichOneof("message"):
        case "begin":
            begin = message.begin
            return Begin(Epoch(begin.epoch), begin.store_port, begin.wait_limit_s, begin.measures)
        case "commands":
            epoch, commands = commands_from_wire(message.commands)
            if len(commands) != 1:
                raise ProtocolError(f"{len(commands)} commands in one message to a rank")
            return Relayed(epoch, commands[0])
        case "run":
            run = message.run
            plan = plan_from_wire(run.plan)
            passed_over = frozenset(JobId(job_id) for job_id in run.passed_over_job_ids)
            tokens = {JobId(one.job_id): one.token_id for one in run.input_tokens}
            return Run(plan.epoch, Step(plan, passed_over, tokens))
        case "prepare":
            prepare = message.prepare
            guide = guide_from_wire(prepare.guide)
            if guide is None:
                raise ProtocolError("the leader asks for a guide that says nothing")
            return PrepareGuide(Epoch(prepare.epoch), JobId(prepare.job_id), guide, tuple(prepare.output_token_ids))
        case "ping":
            return None
        case kind:
            raise ProtocolError(f"a message of the leader is of the unexpected kind {kind}")


def from_rank_frame(message: FromRank) -> bytes:
    """A message of a rank."""
    return _frame(_from_rank_message(message))


def _from_rank_message(message: FromRank) -> wire.RankToLeader:
    match message:
        case Ready(epoch):
            return wire.RankToLeader(ready=wire.RankReady(epoch=epoch))
        case Copied(epoch, command_number):
            return wire.RankToLeader(copied=acknowledgements_to_wire(epoch, (Done(command_number),)))
        case Ran():
            one = message.outcome
            result = IterationResult(message.epoch, message.plan_number, one.tokens, one.cut_job_ids, one.compute_s)
            made = WorkerResult(result, one.logprobs, message.counters, one.failures)
            return wire.RankToLeader(ran=result_to_wire(made))
        case Prepared(epoch, job_id):
            return wire.RankToLeader(prepared=wire.GuidePrepared(epoch=epoch, job_id=job_id))
        case Scored(epoch, prompt):
            return wire.RankToLeader(scored=scored_to_wire(epoch, prompt))
        case Failed(epoch, reason):
            return wire.RankToLeader(failed=wire.RankFailed(epoch=epoch, reason=reason[:MOST_REASON_CHARACTERS]))


def from_rank_of(data: bytes) -> FromRank | None:
    """The inverse of from_rank_frame, but for the stall of a step, which is among its counters; None for a pong."""
    message = _from_rank(data)
    match message.WhichOneof("message"):
        case "ready":
            return Ready(Epoch(message.ready.epoch))
        case "copied":
            epoch, answers = acknowledgements_from_wire(message.copied)
            if len(answers) != 1 or not isinstance(answers[0], Done):
                raise ProtocolError(f"a rank says {answers} where one command is done")
            return Copied(epoch, answers[0].command_number)
        case "ran":
            made = result_from_wire(message.ran)
            one = made.result
            outcome = StepOutcome(one.tokens, made.logprobs, one.cut_job_ids, one.duration_s, 0.0, made.failures)
            return Ran(one.epoch, one.plan_number, outcome, made.counters)
        case "prepared":
            return Prepared(Epoch(message.prepared.epoch), JobId(message.prepared.job_id))
        case "scored":
            return Scored(Epoch(message.scored.epoch), scored_from_wire(message.scored))
        case "failed":
            return Failed(Epoch(message.failed.epoch), message.failed.reason)
        case "pong":
            return None
        case kind:
            raise ProtocolError(f"a message of a rank is of the unexpected kind {kind}")
