"""Requests survive the wire, and the digest of a body tells different bodies apart."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fastserve.v1 import inference_pb2 as api
from services.domain.generation import (
    EndReason,
    GenerateRequest,
    OutputPiece,
    SamplingRequest,
    ServedModel,
    StreamMessage,
    StreamProgress,
    TokenLogprob,
    Usage,
)
from services.wire.client_gateway import (
    body_digest,
    model_to_wire,
    models_from_wire,
    piece_from_wire,
    piece_to_wire,
    progress_from_wire,
    request_from_wire,
    request_to_wire,
)

FLOATS = st.none() | st.floats(width=32, allow_nan=False)
INTEGERS = st.none() | st.integers(-(2**31), 2**31 - 1)
IDS = st.integers(0, 2**32 - 1)
SAMPLINGS = st.builds(
    SamplingRequest,
    max_tokens=INTEGERS, min_tokens=INTEGERS, temperature=FLOATS, top_p=FLOATS, top_k=INTEGERS, min_p=FLOATS,
    presence_penalty=FLOATS, frequency_penalty=FLOATS, repetition_penalty=FLOATS,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1), stop=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    stop_token_ids=st.lists(IDS, max_size=3).map(tuple), ignore_eos=st.booleans(), logprobs=INTEGERS, n=INTEGERS,
    logit_bias=st.dictionaries(IDS, st.floats(width=32, allow_nan=False), max_size=3),
)  # fmt: skip
PROMPTS = st.tuples(st.text(max_size=5), st.none()) | st.tuples(st.none(), st.lists(IDS, max_size=4))


@given(sampling=SAMPLINGS, prompt=PROMPTS, resume=st.none() | IDS, client=st.text(max_size=5))
def test_a_request_comes_back_as_it_was_with_absent_fields_absent(
    sampling: SamplingRequest, prompt: tuple[str | None, list[int] | None], resume: int | None, client: str
) -> None:
    request = GenerateRequest("tiny", "an-id", *prompt, sampling, resume, client)
    back = request_from_wire(request_to_wire(request))
    ids = None if back.token_ids is None else list(back.token_ids)
    assert replace(back, token_ids=ids) == request


def test_the_digest_depends_on_the_body_and_on_nothing_else() -> None:
    body = api.GenerateRequest(text="x", sampling=api.SamplingParams(logit_bias={3: 1.0, 1: 2.0}))
    same = api.GenerateRequest(
        model="tiny", request_id="other", text="x", resume_from_token=4, client="alice",
        sampling=api.SamplingParams(logit_bias={1: 2.0, 3: 1.0}),
    )  # fmt: skip
    assert body_digest(body, "tiny") == body_digest(same, "tiny")
    others = [
        api.GenerateRequest(text="y", sampling=body.sampling),
        api.GenerateRequest(text="x", sampling=api.SamplingParams(logit_bias={3: 1.0})),
        api.GenerateRequest(token_ids=api.TokenIds(ids=[1]), sampling=body.sampling),
    ]
    assert len({body_digest(other, "tiny") for other in [body, *others]}) == 4
    assert body_digest(body, "tiny") != body_digest(body, "large")


LOGPROBS = st.just((TokenLogprob(3, -0.5, ((3, -0.5), (4, -1.25))),)) | st.just(())


@given(
    piece=st.builds(
        OutputPiece,
        st.integers(0, 15),
        IDS,
        st.lists(IDS, max_size=3).map(tuple),
        st.text(max_size=5),
        LOGPROBS,
        st.sampled_from([None, EndReason.STOP, EndReason.LENGTH, EndReason.ABORT]),
        LOGPROBS,
    ),
    usage=st.none() | st.builds(Usage, IDS, IDS, IDS),
)
def test_a_message_of_a_stream_comes_back_as_it_went(piece: OutputPiece, usage: Usage | None) -> None:
    data = piece_to_wire("an-id", piece, usage).SerializeToString()
    assert piece_from_wire(api.GenerateResponse.FromString(data)) == StreamMessage("an-id", piece, usage)


def test_a_load_generator_counts_tokens_and_learns_how_a_stream_ended() -> None:
    usage = Usage(5, 3, 1)
    last = piece_to_wire("an-id", OutputPiece(0, 2, (7,), "x", (), EndReason.LENGTH), usage)
    assert progress_from_wire(last) == StreamProgress(1, EndReason.LENGTH, usage)
    assert last.usage.total_tokens == usage.total_tokens == 8


def test_the_served_model_comes_back_as_it_went() -> None:
    model = ServedModel("tiny", 1_700_000_000, 128, 2048)
    assert models_from_wire(model_to_wire(model)) == (model,)
