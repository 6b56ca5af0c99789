"""Values <-> wire for fields that several streams carry: sampling parameters and log probabilities."""

from array import array

from fastserve.v1 import inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1.inference_pb2 import TokenLogprob as WireTokenLogprob
from services.domain.errors import ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.guide import Guide, GuideKind
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs


def sampling_to_wire(sampling: JobSampling) -> wire.JobSampling:
    """The JobSampling of SubmitJob and JobSpec."""
    message = wire.JobSampling(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        choice=sampling.choice,
        stop_token_ids=sampling.stop_token_ids,
    )
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    if sampling.prompt_logprobs is not None:
        message.prompt_logprobs = sampling.prompt_logprobs
    if sampling.logit_bias:
        message.logit_bias.update(dict(sampling.logit_bias))
    if sampling.guide is not None:
        message.guide.CopyFrom(guide_to_wire(sampling.guide))
    return message


def sampling_from_wire(message: wire.JobSampling) -> JobSampling:
    """The inverse of sampling_to_wire."""
    return JobSampling(
        max_tokens=message.max_tokens,
        seed=message.seed,
        choice=message.choice,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        guide=guide_from_wire(message.guide) if message.HasField("guide") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def guide_to_wire(guide: Guide) -> inference_pb2.Guide:
    """What an output must look like."""
    match guide.kind:
        case GuideKind.JSON_SCHEMA:
            return inference_pb2.Guide(json_schema=guide.text)
        case GuideKind.JSON_OBJECT:
            return inference_pb2.Guide(json_object=True)
        case GuideKind.REGEX:
            return inference_pb2.Guide(regex=guide.text)
        case GuideKind.GRAMMAR:
            return inference_pb2.Guide(grammar=guide.text)
        case GuideKind.CHOICE:
            return inference_pb2.Guide(choice=inference_pb2.GuideChoices(texts=guide.choices))


def guide_from_wire(message: inference_pb2.Guide) -> Guide | None:
    """The inverse of guide_to_wire; None for a message that says nothing."""
    match message.WhichOneof("kind"):
        case "json_schema":
            return Guide(GuideKind.JSON_SCHEMA, message.json_schema)
        case "json_object" if message.json_object:
            return Guide(GuideKind.JSON_OBJECT)
        case "regex":
            return Guide(GuideKind.REGEX, message.regex)
        case "grammar":
            return Guide(GuideKind.GRAMMAR, message.grammar)
        case "choice":
            return Guide(GuideKind.CHOICE, choices=tuple(message.choice.texts))
        case _:
            return None


def logprob_to_wire(logprob: TokenLogprob) -> WireTokenLogprob:
    """The TokenLogprob that workers, scheduler and gateway pass on."""
    message = WireTokenLogprob(token_id=logprob.token_id, logprob=logprob.logprob)
    for token_id, value in logprob.top:
        message.top.add(token_id=token_id, logprob=value)
    return message


def logprob_from_wire(message: WireTokenLogprob) -> TokenLogprob:
    """The inverse of logprob_to_wire."""
    return TokenLogprob(message.token_id, message.logprob, tuple((one.token_id, one.logprob) for one in message.top))


def prompt_logprobs_to_wire(part: PromptLogprobs) -> wire.PromptLogprobs:
    """The PromptLogprobs that workers and scheduler pass on."""
    return wire.PromptLogprobs(
        first_token=part.first_token,
        logprobs=part.logprobs,
        top_token_ids=part.top_token_ids,
        top_logprobs=part.top_logprobs,
    )


def prompt_logprobs_from_wire(message: wire.PromptLogprobs) -> PromptLogprobs:
    """The inverse of prompt_logprobs_to_wire. Raises ProtocolError if tokens and alternatives do not fit together."""
    tokens, tops = len(message.logprobs), len(message.top_token_ids)
    if message.first_token < 1 or not tokens or tops % tokens or len(message.top_logprobs) != tops:
        raise ProtocolError(
            f"PromptLogprobs: {tokens} tokens from {message.first_token} on with {tops} ids and "
            f"{len(message.top_logprobs)} log probabilities of alternatives"
        )
    return PromptLogprobs(
        message.first_token,
        array("f", message.logprobs),
        array("I", message.top_token_ids),
        array("f", message.top_logprobs),
    )
